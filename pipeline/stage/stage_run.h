// Does the actions of one stage of a pipeline, for all micro-batches of one step.
//
//   StageRun run({.stage = 1, .micro_batches = 4, .forward = [&](auto in) { return net(in); }});
//   StageTensors outputs = *run.forward(0, inputs);             // 1F0
//   std::vector<at::Tensor> back = *run.input_gradients(0, g);  // 1I0
//   run.weight_gradients(0);                                    // 1W0
//
// The actions of different micro-batches may come in any order. The gradients of the weights are
// summed in the order of the micro-batches all the same. So the result has the bits of a program
// that runs the micro-batches one after the other, clones what goes from one stage to the next, and
// accumulates into `.grad`. Only what a forward itself changes, such as the statistics of a batch
// norm, follows the order of the F's.
//
// The random numbers of a forward depend on seed, stage and micro-batch only. So they are the same
// in every schedule, and when a forward is done again.
//
// A forward may use nothing that was recorded before it began, such as a state that an earlier
// micro-batch computed and did not detach. The backward refuses it if the same thread does all
// actions.
//
// Hooks of leaves do not run here: they belong to the sum.
//
// Thread safety: none; one thread at a time. The generator of random numbers is LibTorch's default
// one. The forwards of all stages in a process take turns with it. Another thread that draws from
// it meanwhile makes the numbers differ.
// Lifetime: keeps the graph of a micro-batch from its forward to its weight gradients. Until then
// nobody may change the gradients in place that went in and came out.
// Errors: the message begins with the action, such as "1F0: ". An F that failed may be done again.
// Every other error but FailedPrecondition is final: later calls return it, and all memory is
// freed.
//
//   - Unknown: the forward or a node threw.
//
//   - InvalidArgument: an input, output or gradient does not fit, or an output depends on what was
//     recorded before the forward.
//
//   - FailedPrecondition: an action comes too early or twice.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/dist_autograd/graph/leaf_stage.h"
#include "weft/dist_autograd/graph/local_graph.h"
#include "weft/dist_autograd/graph/send_record.h"
#include "weft/pipeline/schedules/schedule.h"

namespace weft::pipeline_internal {

// What goes from one stage to another. The tensors are part of no graph.
struct StageTensors {
  std::vector<at::Tensor> values;
  // Of each value. For an output: a gradient may come back. For an input: its gradient is wanted.
  std::vector<bool> requires_grad;
};

// The turn of a thread with LibTorch's default generator, among all pipelines of the process.
// A thread that seeds it, or puts its state back, holds one.
class RandomTurn {
 public:
  RandomTurn();

 private:
  static std::mutex& mutex();
  const std::lock_guard<std::mutex> lock_;
};

// Returns the values of a tensor in memory that nobody else holds: copies it if somebody does. So a
// forward may change what it gets.
at::Tensor own_memory(at::Tensor tensor);

class StageRun {
 public:
  using Forward = std::function<std::vector<at::Tensor>(std::vector<at::Tensor> inputs)>;
  struct Options {
    int stage = 0;
    int micro_batches = 1;
    uint64_t seed = 0;  // another one for each step
    Forward forward;
  };

  // The seed of LibTorch's generator for one forward.
  static uint64_t seed_of(uint64_t seed, int stage, int micro_batch);

  explicit StageRun(Options options) : options_(std::move(options)) {}

  // F. `recomputed`: an R follows, so only the inputs are kept.
  absl::StatusOr<StageTensors> forward(int micro_batch, StageTensors inputs,
                                       bool recomputed = false);
  // R. The forward must not change the module's buffers.
  absl::Status recompute(int micro_batch);
  // I. `gradients`: one per output; undefined where none comes. Returns one per input, undefined
  // where the input requires none or the output does not depend on it.
  absl::StatusOr<std::vector<at::Tensor>> input_gradients(int micro_batch,
                                                          std::vector<at::Tensor> gradients);
  // W.
  absl::Status weight_gradients(int micro_batch);
  // B: both in one, without the split.
  absl::StatusOr<std::vector<at::Tensor>> backward(int micro_batch,
                                                   std::vector<at::Tensor> gradients);

  // Whether the gradients of all micro-batches are in the sum.
  bool complete() const { return summed_ == options_.micro_batches; }
  // Takes the sums, in the order in which the leaves first got a gradient. FailedPrecondition: not
  // complete().
  absl::StatusOr<std::vector<dist_autograd_internal::LeafGradient>> take_gradients();

 private:
  enum class State : uint8_t { kStarted, kForwardDone, kInputsDone };
  // A micro-batch between its forward and its weight gradients.
  struct MicroBatch {
    State state = State::kStarted;
    StageTensors inputs;  // kept only for a recompute
    size_t input_count = 0;
    uint64_t first_node = 0;  // the sequence number of the first node that the forward recorded
    dist_autograd_internal::SendRecord record;
    std::vector<at::Tensor> answer;  // gradients of the inputs
    std::unique_ptr<dist_autograd_internal::LocalGraph> graph;
  };

  absl::StatusOr<StageTensors> run_forward(int micro_batch, MicroBatch& run, StageTensors inputs,
                                           bool keep_inputs);
  absl::StatusOr<StageTensors> sent(const std::vector<at::Tensor>& outputs, MicroBatch& run);
  absl::StatusOr<std::vector<at::Tensor>> run_backward(int micro_batch, StageWork work,
                                                       std::vector<at::Tensor> gradients);
  absl::Status feed(int micro_batch, MicroBatch& run, bool split,
                    std::vector<at::Tensor> gradients);
  absl::Status finish(int micro_batch, StageWork work, MicroBatch& run);
  void add_up();
  absl::StatusOr<MicroBatch*> at(int micro_batch, StageWork work, State state);
  absl::Status named(int micro_batch, StageWork work, const absl::Status& why) const;
  absl::Status fail(int micro_batch, StageWork work, const absl::Status& why);

  const Options options_;
  absl::Status status_;                 // the first final error
  std::optional<size_t> output_count_;  // of every forward; known after the first
  std::map<int, MicroBatch> open_;
  // Gradients of micro-batches whose predecessors are not in the sum yet.
  std::map<int, std::vector<dist_autograd_internal::LeafGradient>> waiting_;
  dist_autograd_internal::LeafStage sums_;
  int summed_ = 0;  // the gradients of micro-batches below it are in `sums_`
  bool taken_ = false;
};

}  // namespace weft::pipeline_internal
