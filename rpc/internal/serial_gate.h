// Lets one method of an object run at a time, in the order in which the calls arrived.
//
// Thread safety: all methods may be called from any thread.
// Errors: a call that would wait for the call it is nested in is refused instead of deadlocking.
#pragma once

#include <deque>
#include <utility>

#include "weft/base/executor.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"

namespace weft::internal {

class SerialGate {
 public:
  enum class Entry { kRun, kQueued, kReentrant };

  // kRun: the caller runs `task` itself and then calls leave(). kQueued: `task` was taken,
  // somebody's leave() will return it. kReentrant: the same chain of calls is inside already;
  // nothing was taken.
  Entry enter(ChainId chain, Executor::Task& task) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (!inside_) {
      inside_ = true;
      holder_ = chain;
      return Entry::kRun;
    }
    if (holder_ == chain) return Entry::kReentrant;
    queue_.emplace_back(chain, std::move(task));
    return Entry::kQueued;
  }

  // The next task, which now is inside; null if there is none.
  Executor::Task leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (queue_.empty()) {
      inside_ = false;
      holder_ = ChainId();
      return nullptr;
    }
    auto [chain, task] = std::move(queue_.front());
    queue_.pop_front();
    holder_ = chain;
    return std::move(task);
  }

 private:
  Mutex mutex_;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;
  ChainId holder_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<ChainId, Executor::Task>> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::internal
