#include "weft/pipeline/runner/step_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::pipeline_internal {
namespace {

constexpr size_t kMostOnTheirWay = size_t{128} << 20;  // bytes

}  // namespace

absl::Status StepState::arrived(const StageMessage& message, StageTensors tensors) {
  MutexLock lock(mutex_);
  if (!status_.ok()) return absl::CancelledError("the step has failed on this worker");
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
  Inbox freed;  // before the lock
  MutexLock lock(mutex_);
  while (true) {
    if (!status_.ok()) return status_;
    if (const RunPlan::Action* const action = core_.next()) return action;
    if (core_.finished()) return nullptr;
    if (!changed_.wait_until(mutex_, deadline) && status_.ok()) {
      const std::optional<StageMessage> missing = core_.waits_for();
      if (!missing) continue;  // it came at the last moment
      freed = fail_locked(
          absl::DeadlineExceededError(absl::StrCat(missing->to_string(), " did not come in time")));
    }
  }
}

absl::Status StepState::sending(size_t bytes, TimePoint deadline) {
  Inbox freed;  // before the lock
  MutexLock lock(mutex_);
  while (status_.ok() && on_their_way_ > 0 && bytes_on_their_way_ + bytes > kMostOnTheirWay) {
    if (!changed_.wait_until(mutex_, deadline) && status_.ok()) {
      freed = fail_locked(absl::DeadlineExceededError(
          absl::StrCat(on_their_way_, " messages were not taken in time")));
    }
  }
  if (!status_.ok()) return status_;
  ++on_their_way_;
  bytes_on_their_way_ += bytes;
  return absl::OkStatus();
}

void StepState::sent(size_t bytes, const absl::Status& outcome) {
  Inbox freed;  // before the lock
  MutexLock lock(mutex_);
  --on_their_way_;
  bytes_on_their_way_ -= bytes;
  if (!outcome.ok()) freed = fail_locked(outcome);
  changed_.notify_all();
}

absl::Status StepState::wait_sent(TimePoint deadline) {
  Inbox freed;  // before the lock
  MutexLock lock(mutex_);
  while (status_.ok() && on_their_way_ > 0) {
    if (!changed_.wait_until(mutex_, deadline) && status_.ok() && on_their_way_ > 0) {
      freed = fail_locked(absl::DeadlineExceededError(
          absl::StrCat(on_their_way_, " messages were not taken in time")));
    }
  }
  return status_;
}

void StepState::fail(absl::Status why) {
  Inbox freed;  // before the lock
  MutexLock lock(mutex_);
  freed = fail_locked(std::move(why));
}

StepState::Inbox StepState::fail_locked(absl::Status why) {
  if (!status_.ok()) return {};
  status_ = std::move(why);
  changed_.notify_all();
  return std::exchange(inbox_, {});
}

}  // namespace weft::pipeline_internal
