#include "weft/pipeline/runner/step_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::pipeline_internal {

absl::Status StepState::arrived(const StageMessage& message, StageTensors tensors) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return status_;
  WEFT_RETURN_IF_ERROR(core_.arrived(message));
  inbox_.emplace(message, std::move(tensors));
  changed_.notify_all();
  return absl::OkStatus();
}

void StepState::keep(const StageMessage& message, StageTensors tensors) {
  MutexLock lock(mutex_);
  if (status_.ok()) inbox_.emplace(message, std::move(tensors));
}

absl::StatusOr<StageTensors> StepState::take(const StageMessage& message) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return status_;
  const auto found = inbox_.find(message);
  if (found == inbox_.end()) {
    return absl::InternalError(absl::StrCat(message.to_string(), " is not there"));
  }
  StageTensors tensors = std::move(found->second);
  inbox_.erase(found);
  return tensors;
}

absl::StatusOr<const RunPlan::Action*> StepState::wait_next(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (true) {
    if (!status_.ok()) return status_;
    if (const RunPlan::Action* const action = core_.next()) return action;
    if (core_.finished()) return nullptr;
    if (!changed_.wait_until(mutex_, deadline) && status_.ok()) {
      const std::optional<StageMessage> missing = core_.waits_for();
      if (!missing) continue;  // it came at the last moment
      fail_locked(
          absl::DeadlineExceededError(absl::StrCat(missing->to_string(), " did not come in time")));
    }
  }
}

void StepState::sending() {
  MutexLock lock(mutex_);
  ++on_their_way_;
}

void StepState::sent(const absl::Status& outcome) {
  MutexLock lock(mutex_);
  --on_their_way_;
  if (!outcome.ok()) fail_locked(outcome);
  changed_.notify_all();
}

absl::Status StepState::wait_sent(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (status_.ok() && on_their_way_ > 0) {
    if (!changed_.wait_until(mutex_, deadline) && on_their_way_ > 0) {
      fail_locked(absl::DeadlineExceededError(
          absl::StrCat(on_their_way_, " messages were not taken in time")));
    }
  }
  return status_;
}

void StepState::fail(absl::Status why) {
  MutexLock lock(mutex_);
  fail_locked(std::move(why));
}

void StepState::fail_locked(absl::Status why) {
  if (!status_.ok()) return;
  status_ = std::move(why);
  inbox_.clear();
  changed_.notify_all();
}

}  // namespace weft::pipeline_internal
