// One step of a pipeline on one worker: what has come, what can run, and whether the step failed.
//
// Thread safety: all methods may be called from any thread; one thread calls wait_next().
// Lifetime: shared by the worker's thread, the calls that bring messages, and those on their way.
// Blocking: wait_next(), sending() and wait_sent(), until the deadline.
// Errors: the first failure of the step is final, and every method returns it.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/pipeline/runner/run_core.h"
#include "weft/pipeline/stage/stage_run.h"

namespace weft::pipeline_internal {

class StepState {
 public:
  explicit StepState(std::shared_ptr<const RunPlan> plan) : core_(std::move(plan)) {}

  // A message from another worker. InvalidArgument: the step takes no such message, or had it.
  absl::Status arrived(const StageMessage& message, StageTensors tensors)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A message from a stage of this worker.
  void keep(const StageMessage& message, StageTensors tensors) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes a message that the running action needs. Internal: it is not there.
  absl::StatusOr<StageTensors> take(const StageMessage& message) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for the next action that can run. Null: the worker has done all of them.
  // DeadlineExceeded names the message that did not come.
  absl::StatusOr<const RunPlan::Action*> wait_next(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // A message of so many bytes is about to leave. Waits while many bytes are on their way, so that
  // a slow connection delays the step instead of failing it.
  absl::Status sending(size_t bytes, TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  void sent(size_t bytes, const absl::Status& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status wait_sent(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the step, unless it has failed before. Frees all messages. Messages that come later are
  // refused with Cancelled.
  void fail(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Inbox = absl::flat_hash_map<StageMessage, StageTensors>;
  // Returns the messages, to be freed without the lock.
  Inbox fail_locked(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  RunCore core_ ABSL_GUARDED_BY(mutex_);
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);
  size_t on_their_way_ ABSL_GUARDED_BY(mutex_) = 0;  // messages
  size_t bytes_on_their_way_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::pipeline_internal
