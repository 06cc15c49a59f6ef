#include "weft/pipeline/stage/stage_run.h"

#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

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

// Names for the two transfers of a micro-batch. They never leave this class.
constexpr WorkerId kNobody{1, 1};
constexpr SendId kInputs{kNobody, 1};
constexpr SendId kOutputs{kNobody, 2};

// A generator of random numbers that is seeded for one forward, and then as it was before.
class Seeded {
 public:
  explicit Seeded(uint64_t seed) : before_(generator().get_state()) {
    std::lock_guard<std::mutex> lock(generator().mutex());
    generator().set_current_seed(seed);
  }
  ~Seeded() {
    std::lock_guard<std::mutex> lock(generator().mutex());
    generator().set_state(before_);
  }
  Seeded(const Seeded&) = delete;
  Seeded& operator=(const Seeded&) = delete;

 private:
  static at::Generator generator() { return at::detail::getDefaultCPUGenerator(); }
  const at::Tensor before_;
};

// SplitMix64: seeds that differ in one bit give numbers that have nothing in common.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t StageRun::seed_of(uint64_t seed, int stage, int micro_batch) {
  const uint64_t place = static_cast<uint64_t>(stage) << 32 | static_cast<uint64_t>(micro_batch);
  return mixed(mixed(seed) ^ mixed(place));
}

absl::Status StageRun::failed(int micro_batch, StageWork work, const absl::Status& why) const {
  return prepend(absl::StrCat(StageAction{options_.stage, work, micro_batch}.to_string(), ": "),
                 why);
}

absl::StatusOr<StageRun::MicroBatch*> StageRun::at(int micro_batch, StageWork work, State state) {
  const auto found = open_.find(micro_batch);
  if (found == open_.end() || found->second.state != state) {
    return failed(micro_batch, work,
                  absl::FailedPreconditionError("what it needs was not done, or is used up"));
  }
  return &found->second;
}

// ---- forward

absl::StatusOr<StageTensors> StageRun::forward(int micro_batch, StageTensors inputs,
                                               bool recomputed) {
  constexpr StageWork kWork = StageWork::kForward;
  if (micro_batch < 0 || micro_batch >= options_.micro_batches) {
    return failed(micro_batch, kWork,
                  absl::InvalidArgumentError(
                      absl::StrCat("the step has ", options_.micro_batches, " micro-batches")));
  }
  if (micro_batch < summed_ || waiting_.contains(micro_batch) || open_.contains(micro_batch)) {
    return failed(micro_batch, kWork, absl::FailedPreconditionError("it was done before"));
  }
  MicroBatch run;
  run.input_count = inputs.values.size();
  if (!recomputed) {
    absl::StatusOr<StageTensors> outputs = run_forward(micro_batch, run, std::move(inputs));
    if (!outputs.ok()) return failed(micro_batch, kWork, outputs.status());
    run.state = State::kForwardDone;
    open_.emplace(micro_batch, std::move(run));
    return outputs;
  }
  MicroBatch dropped;  // with the graph
  absl::StatusOr<StageTensors> outputs = run_forward(micro_batch, dropped, inputs);
  if (!outputs.ok()) return failed(micro_batch, kWork, outputs.status());
  run.inputs = std::move(inputs);
  open_.emplace(micro_batch, std::move(run));
  return outputs;
}

absl::Status StageRun::recompute(int micro_batch) {
  WEFT_ASSIGN_OR_RETURN(MicroBatch* const run,
                        at(micro_batch, StageWork::kRecompute, State::kStarted));
  const absl::Status done = run_forward(micro_batch, *run, std::exchange(run->inputs, {})).status();
  if (!done.ok()) return failed(micro_batch, StageWork::kRecompute, done);
  run->state = State::kForwardDone;
  return absl::OkStatus();
}

absl::StatusOr<StageTensors> StageRun::run_forward(int micro_batch, MicroBatch& run,
                                                   StageTensors inputs) {
  try {
    std::vector<at::Tensor> received;
    for (const at::Tensor& value : inputs.values) received.push_back(value.detach());
    WEFT_RETURN_IF_ERROR(
        dist_autograd_internal::attach_recv(kInputs, received, inputs.requires_grad));
    std::vector<at::Tensor> outputs;
    {
      const Seeded seeded(seed_of(options_.seed, options_.stage, micro_batch));
      const at::AutoGradMode record(true);
      outputs = options_.forward(std::move(received));
    }
    run.record = dist_autograd_internal::record_send(kOutputs, kNobody, outputs);
    StageTensors sent;
    for (size_t i = 0; i < outputs.size(); ++i) {
      sent.values.push_back(outputs[i].detach());
      sent.requires_grad.push_back(run.record.edges[i].is_valid());
    }
    return sent;
  } catch (...) {
    return absl::UnknownError(dist_autograd_internal::text_of_current_exception());
  }
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
  run->state = State::kInputsDone;
  LocalGraphOptions options;
  options.split = work == StageWork::kInputGradients;
  options.on_answer = [run](RecvAnswer answer) { run->answer = std::move(answer.gradients); };
  run->graph = std::make_unique<LocalGraph>(std::move(options));
  const SendRecord* const sends[] = {&run->record};
  absl::Status status = run->graph->engage({}, sends);
  if (status.ok()) status = run->graph->feed(kOutputs, std::move(gradients));
  if (!status.ok()) return failed(micro_batch, work, status);
  run->answer.resize(run->input_count);
  std::vector<at::Tensor> answer = std::move(run->answer);
  if (work == StageWork::kBackward) WEFT_RETURN_IF_ERROR(finish(micro_batch, *run));
  return answer;
}

absl::Status StageRun::weight_gradients(int micro_batch) {
  WEFT_ASSIGN_OR_RETURN(MicroBatch* const run,
                        at(micro_batch, StageWork::kWeightGradients, State::kInputsDone));
  const absl::Status status = run->graph->run_weights();
  if (!status.ok()) return failed(micro_batch, StageWork::kWeightGradients, status);
  return finish(micro_batch, *run);
}

absl::Status StageRun::finish(int micro_batch, MicroBatch& run) {
  waiting_.emplace(micro_batch, run.graph->take_leaves());
  open_.erase(micro_batch);
  try {
    add_up();
  } catch (...) {
    return failed(micro_batch, StageWork::kWeightGradients,
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

std::vector<LeafGradient> StageRun::take_gradients() { return sums_.take(); }

}  // namespace weft::pipeline_internal
