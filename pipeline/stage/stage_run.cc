#include "weft/pipeline/stage/stage_run.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/dist_autograd/graph/recv_node.h"

namespace weft::pipeline_internal {
namespace {

using dist_autograd_internal::LeafGradient;
using dist_autograd_internal::LocalGraph;
using dist_autograd_internal::LocalGraphOptions;
using dist_autograd_internal::RecvAnswer;
using dist_autograd_internal::SendRecord;

// Names for the two transfers of a micro-batch. Each micro-batch has a graph of its own, so all of
// them use one name for the outputs. Those for the inputs differ, so that a forward that uses an
// input of another micro-batch is found.
constexpr WorkerId kNobody{1, 1};
constexpr SendId kOutputs{kNobody, 1};
SendId inputs_of(int micro_batch) { return {kNobody, static_cast<uint64_t>(micro_batch) + 2}; }

// Seeds LibTorch's generator for one forward, and restores it afterwards.
class Seeded {
 public:
  explicit Seeded(uint64_t seed) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    before_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~Seeded() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(before_);
  }
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  const RandomTurn turn_;
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor before_;
};

// SplitMix64: seeds that differ in one bit give numbers that have nothing in common.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

RandomTurn::RandomTurn() : lock_(mutex()) {}

std::mutex& RandomTurn::mutex() {
  static std::mutex mutex;
  return mutex;
}

at::Tensor own_memory(at::Tensor tensor) {
  const bool shared =
      tensor.use_count() > 1 || (tensor.has_storage() && tensor.storage().use_count() > 1);
  return shared ? tensor.detach().clone() : tensor.detach();
}

uint64_t StageRun::seed_of(uint64_t seed, int stage, int micro_batch) {
  const uint64_t place = static_cast<uint64_t>(stage) << 32 | static_cast<uint64_t>(micro_batch);
  return mixed(mixed(seed) ^ mixed(place));
}

absl::Status StageRun::named(int micro_batch, StageWork work, const absl::Status& why) const {
  return prepend(absl::StrCat(StageAction{options_.stage, work, micro_batch}.to_string(), ": "),
                 why);
}

absl::Status StageRun::fail(int micro_batch, StageWork work, const absl::Status& why) {
  status_ = named(micro_batch, work, why);
  open_.clear();
  waiting_.clear();
  sums_.take();
  return status_;
}

absl::StatusOr<StageRun::MicroBatch*> StageRun::at(int micro_batch, StageWork work, State state) {
  WEFT_RETURN_IF_ERROR(status_);
  const auto found = open_.find(micro_batch);
  if (found == open_.end() || found->second.state != state) {
    return named(micro_batch, work,
                 absl::FailedPreconditionError("what it needs was not done, or is used up"));
  }
  return &found->second;
}

// ---- forward

absl::StatusOr<StageTensors> StageRun::forward(int micro_batch, StageTensors inputs,
                                               bool recomputed) {
  constexpr StageWork kWork = StageWork::kForward;
  WEFT_RETURN_IF_ERROR(status_);
  if (micro_batch < 0 || micro_batch >= options_.micro_batches) {
    return named(micro_batch, kWork,
                 absl::InvalidArgumentError(
                     absl::StrCat("the step has ", options_.micro_batches, " micro-batches")));
  }
  if (micro_batch < summed_ || waiting_.contains(micro_batch) || open_.contains(micro_batch)) {
    return named(micro_batch, kWork, absl::FailedPreconditionError("it was done before"));
  }
  MicroBatch run;
  run.input_count = inputs.values.size();
  absl::StatusOr<StageTensors> outputs =
      run_forward(micro_batch, run, std::move(inputs), /*keep_inputs=*/recomputed);
  if (!outputs.ok()) return named(micro_batch, kWork, outputs.status());
  if (recomputed) {
    run.record = {};  // frees the graph
  } else {
    run.state = State::kForwardDone;
  }
  open_.emplace(micro_batch, std::move(run));
  return outputs;
}

absl::Status StageRun::recompute(int micro_batch) {
  WEFT_ASSIGN_OR_RETURN(MicroBatch* const run,
                        at(micro_batch, StageWork::kRecompute, State::kStarted));
  const absl::Status done =
      run_forward(micro_batch, *run, std::exchange(run->inputs, {}), /*keep_inputs=*/false)
          .status();
  if (!done.ok()) return fail(micro_batch, StageWork::kRecompute, done);
  run->state = State::kForwardDone;
  return absl::OkStatus();
}

absl::StatusOr<StageTensors> StageRun::run_forward(int micro_batch, MicroBatch& run,
                                                   StageTensors inputs, bool keep_inputs) {
  if (inputs.values.size() != inputs.requires_grad.size()) {
    return absl::InvalidArgumentError(absl::StrCat(inputs.values.size(), " inputs have ",
                                                   inputs.requires_grad.size(),
                                                   " flags whether they require gradients"));
  }
  run.first_node = at::sequence_number::peek();
  try {
    std::vector<at::Tensor> received;
    for (size_t i = 0; i < inputs.values.size(); ++i) {
      if (!inputs.values[i].defined()) {
        return absl::InvalidArgumentError(absl::StrCat("input ", i, " is undefined"));
      }
      if (keep_inputs) run.inputs.values.push_back(inputs.values[i]);
      received.push_back(own_memory(std::move(inputs.values[i])));
    }
    WEFT_RETURN_IF_ERROR(dist_autograd_internal::attach_recv(inputs_of(micro_batch), received,
                                                             inputs.requires_grad));
    if (keep_inputs) run.inputs.requires_grad = inputs.requires_grad;
    inputs = {};  // the forward may free them
    const Seeded seeded(seed_of(options_.seed, options_.stage, micro_batch));
    const at::AutoGradMode record(true);
    return sent(options_.forward(std::move(received)), run);
  } catch (...) {
    return absl::UnknownError(dist_autograd_internal::text_of_current_exception());
  }
}

// Checks what a forward has returned, and records it.
absl::StatusOr<StageTensors> StageRun::sent(const std::vector<at::Tensor>& outputs,
                                            MicroBatch& run) {
  if (outputs.size() != output_count_.value_or(outputs.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the forward returned ", outputs.size(),
                                                   " tensors, and before it returned ",
                                                   *output_count_));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) {
      return absl::InvalidArgumentError(absl::StrCat("output ", i, " is undefined"));
    }
    if (!outputs[i].device().is_cpu()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output ", i, " is on ", outputs[i].device().str(), ", not on the CPU"));
    }
  }
  run.record = dist_autograd_internal::record_send(kOutputs, kNobody, outputs);
  output_count_ = outputs.size();
  StageTensors sent;
  for (size_t i = 0; i < outputs.size(); ++i) {
    sent.values.push_back(outputs[i].detach());
    sent.requires_grad.push_back(run.record.edges[i].is_valid());
  }
  return sent;
}

// ---- backward

absl::StatusOr<std::vector<at::Tensor>> StageRun::input_gradients(
    int micro_batch, std::vector<at::Tensor> gradients) {
  return run_backward(micro_batch, StageWork::kInputGradients, std::move(gradients));
}

absl::StatusOr<std::vector<at::Tensor>> StageRun::backward(int micro_batch,
                                                           std::vector<at::Tensor> gradients) {
  return run_backward(micro_batch, StageWork::kBackward, std::move(gradients));
}

absl::StatusOr<std::vector<at::Tensor>> StageRun::run_backward(int micro_batch, StageWork work,
                                                               std::vector<at::Tensor> gradients) {
  WEFT_ASSIGN_OR_RETURN(MicroBatch* const run, at(micro_batch, work, State::kForwardDone));
  const bool split = work == StageWork::kInputGradients;
  if (const absl::Status fed = feed(micro_batch, *run, split, std::move(gradients)); !fed.ok()) {
    return fail(micro_batch, work, fed);
  }
  run->state = State::kInputsDone;
  run->answer.resize(run->input_count);  // without an answer, no input gets a gradient
  std::vector<at::Tensor> answer = std::move(run->answer);
  if (!split) WEFT_RETURN_IF_ERROR(finish(micro_batch, work, *run));
  return answer;
}

absl::Status StageRun::feed(int micro_batch, MicroBatch& run, bool split,
                            std::vector<at::Tensor> gradients) {
  const torch::autograd::edge_list& edges = run.record.edges;
  if (gradients.size() != edges.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(gradients.size(), " gradients came for ", edges.size(), " outputs"));
  }
  for (size_t i = 0; i < edges.size(); ++i) {
    if (gradients[i].defined() && !edges[i].is_valid()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a gradient came for output ", i, ", which requires none"));
    }
  }
  try {
    torch::autograd::validate_outputs(edges, gradients, [](const std::string& text) {
      return absl::StrCat("of the outputs' gradients, an ", text);
    });
  } catch (...) {
    return absl::InvalidArgumentError(dist_autograd_internal::text_of_current_exception());
  }
  LocalGraphOptions options;
  options.split = split;
  options.leaf_hooks = false;
  bool foreign = false;
  // Only feed() below answers: run_weights() has no received tensors left.
  options.on_answer = [&](RecvAnswer answer) {
    foreign = foreign || answer.send != inputs_of(micro_batch);
    run.answer = std::move(answer.gradients);
  };
  run.graph = std::make_unique<LocalGraph>(std::move(options));
  const SendRecord* const sends[] = {&run.record};
  WEFT_RETURN_IF_ERROR(run.graph->engage({}, sends));
  const torch::autograd::Node* const oldest = run.graph->oldest_node();
  if (oldest != nullptr && oldest->sequence_nr() < run.first_node) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the outputs depend on ", oldest->name(),
        ", which was recorded before this forward; compute it in the forward, or detach it"));
  }
  WEFT_RETURN_IF_ERROR(run.graph->feed(kOutputs, std::move(gradients)));
  if (foreign) {
    return absl::InvalidArgumentError("the outputs depend on an input of another micro-batch");
  }
  return absl::OkStatus();
}

absl::Status StageRun::weight_gradients(int micro_batch) {
  constexpr StageWork kWork = StageWork::kWeightGradients;
  WEFT_ASSIGN_OR_RETURN(MicroBatch* const run, at(micro_batch, kWork, State::kInputsDone));
  const absl::Status done = run->graph->run_weights();
  return done.ok() ? finish(micro_batch, kWork, *run) : fail(micro_batch, kWork, done);
}

absl::Status StageRun::finish(int micro_batch, StageWork work, MicroBatch& run) {
  waiting_.emplace(micro_batch, run.graph->take_leaves());
  open_.erase(micro_batch);
  try {
    add_up();
  } catch (...) {
    return fail(micro_batch, work,
                absl::UnknownError(dist_autograd_internal::text_of_current_exception()));
  }
  return absl::OkStatus();
}

void StageRun::add_up() {
  const at::AutoGradMode off(false);
  for (auto next = waiting_.find(summed_); next != waiting_.end();
       next = waiting_.find(++summed_)) {
    for (LeafGradient& leaf : next->second) {
      sums_.add(leaf.variable, std::move(leaf.gradient), /*held_by_hooks=*/false);
    }
    waiting_.erase(next);
  }
}

absl::StatusOr<std::vector<LeafGradient>> StageRun::take_gradients() {
  WEFT_RETURN_IF_ERROR(status_);
  if (!complete() || taken_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "stage ", options_.stage, ": the gradients of ", summed_, " of ", options_.micro_batches,
        " micro-batches are in the sum", taken_ ? ", and were taken before" : ""));
  }
  taken_ = true;
  return sums_.take();
}

}  // namespace weft::pipeline_internal
