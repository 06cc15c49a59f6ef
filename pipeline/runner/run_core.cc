#include "weft/pipeline/runner/run_core.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/price.h"

namespace weft::pipeline_internal {
namespace {

bool gives_input_gradients(StageWork work) {
  return work == StageWork::kInputGradients || work == StageWork::kBackward;
}

// How the backward of each micro-batch of each stage is called: I or B.
class Backwards {
 public:
  explicit Backwards(const PipelineSchedule& schedule) {
    for (const auto& row : schedule.workers) {
      for (const StageAction& action : row) {
        if (gives_input_gradients(action.work)) {
          works_.emplace(std::pair(action.stage, action.micro_batch), action.work);
        }
      }
    }
  }
  StageAction of(int stage, int micro_batch) const {
    return {stage, works_.at({stage, micro_batch}), micro_batch};
  }

 private:
  absl::flat_hash_map<std::pair<int, int>, StageWork> works_;
};

std::vector<int> rows_of_stages(const PipelineSchedule& schedule, int stages) {
  std::vector<int> rows(static_cast<size_t>(stages));
  for (size_t row = 0; row < schedule.workers.size(); ++row) {
    for (const StageAction& action : schedule.workers[row]) {
      rows[static_cast<size_t>(action.stage)] = static_cast<int>(row);
    }
  }
  return rows;
}

}  // namespace

std::string StageMessage::to_string() const {
  return absl::StrCat(from.to_string(), " for stage ", to_stage);
}

absl::StatusOr<std::shared_ptr<const RunPlan>> RunPlan::make(const PipelineSchedule& schedule,
                                                             const StageGraph& graph, int worker) {
  WEFT_RETURN_IF_ERROR(check_schedule(schedule, graph));
  if (worker < 0 || worker >= static_cast<int>(schedule.workers.size())) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " is none of the ",
                                                   schedule.workers.size(), " of the schedule"));
  }
  const Backwards backwards(schedule);
  const std::vector<std::vector<int>> users = graph.users();
  auto plan = std::make_shared<RunPlan>();
  plan->row_of = rows_of_stages(schedule, graph.stages());
  plan->micro_batches = schedule.micro_batches();
  for (const StageAction& action : schedule.workers[static_cast<size_t>(worker)]) {
    const std::vector<int>& inputs = graph.inputs[static_cast<size_t>(action.stage)];
    const std::vector<int>& outputs = users[static_cast<size_t>(action.stage)];
    Action& added = plan->actions.emplace_back(Action{action});
    if (action.work == StageWork::kForward) {
      for (const int input : inputs) {
        added.takes.push_back({{input, StageWork::kForward, action.micro_batch}, action.stage});
      }
      for (const int user : outputs) added.makes.push_back({action, user});
    } else if (gives_input_gradients(action.work)) {
      for (const int user : outputs) {
        added.takes.push_back({backwards.of(user, action.micro_batch), action.stage});
      }
      for (const int input : inputs) added.makes.push_back({action, input});
    }
    for (const StageMessage& message : added.takes) {
      if (plan->row_of[static_cast<size_t>(message.from.stage)] == worker) continue;
      plan->from_others.emplace(message, plan->actions.size() - 1);
    }
  }
  return plan;
}

RunCore::RunCore(std::shared_ptr<const RunPlan> plan)
    : plan_(std::move(plan)), progress_(plan_->actions.size()) {
  absl::flat_hash_map<std::pair<int, int>, size_t> inputs;  // by stage and micro-batch: place of I
  for (size_t place = 0; place < progress_.size(); ++place) {
    const StageAction& action = plan_->actions[place].action;
    const std::pair key(action.stage, action.micro_batch);
    if (action.work == StageWork::kInputGradients) inputs.emplace(key, place);
    if (action.work != StageWork::kWeightGradients) continue;
    weights_.push_back(place);
    inputs_of_.push_back(inputs.at(key));  // the checker has seen it before its W
  }
  for (const auto& [message, place] : plan_->from_others) ++progress_[place].missing;
}

absl::Status RunCore::arrived(const StageMessage& message) {
  const auto taker = plan_->from_others.find(message);
  if (taker == plan_->from_others.end()) {
    return absl::InvalidArgumentError(absl::StrCat("this worker takes no ", message.to_string()));
  }
  if (!came_.emplace(message, true).second) {
    return absl::InvalidArgumentError(absl::StrCat(message.to_string(), " came twice"));
  }
  --progress_[taker->second].missing;
  return absl::OkStatus();
}

const RunPlan::Action* RunCore::next() {
  const auto take = [this](size_t place) {
    progress_[place].done = true;
    ++done_count_;
    return &plan_->actions[place];
  };
  while (head_ < progress_.size() && progress_[head_].done) ++head_;
  if (head_ == progress_.size()) return nullptr;
  if (progress_[head_].missing == 0) return take(head_);
  while (next_weights_ < weights_.size() && progress_[weights_[next_weights_]].done) {
    ++next_weights_;
  }
  if (next_weights_ == weights_.size()) return nullptr;
  if (!progress_[inputs_of_[next_weights_]].done) return nullptr;
  return take(weights_[next_weights_]);
}

std::optional<StageMessage> RunCore::waits_for() const {
  size_t head = head_;
  while (head < progress_.size() && progress_[head].done) ++head;
  if (head == progress_.size()) return std::nullopt;
  for (const StageMessage& message : plan_->actions[head].takes) {
    if (plan_->from_others.contains(message) && !came_.contains(message)) return message;
  }
  return std::nullopt;
}

}  // namespace weft::pipeline_internal
