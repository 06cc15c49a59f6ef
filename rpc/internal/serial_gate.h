// Lets one method of an object run at a time, in the order in which the calls arrived.
//
// Thread safety: all methods may be called from any thread.
// Errors: a call that would wait for a call that it is nested in is refused instead of deadlocking.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "weft/base/executor.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"

namespace weft::internal {

class SerialGate {
 public:
  enum class Entry { kRun, kQueued, kReentrant };

  // `call` by its maker and number; `held`: the calls above it that are inside serial objects.
  // kRun: the caller runs `task` itself and then calls leave(). kQueued: `task` was taken,
  // somebody's leave() will return it. kReentrant: one of `held` is inside; nothing was taken.
  Entry enter(ChainId call, const std::vector<ChainId>& held, Executor::Task& task)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (!inside_) {
      inside_ = true;
      holder_ = call;
      return Entry::kRun;
    }
    if (std::find(held.begin(), held.end(), holder_) != held.end()) return Entry::kReentrant;
    queue_.emplace_back(call, std::move(task));
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
    auto [call, task] = std::move(queue_.front());
    queue_.pop_front();
    holder_ = call;
    return std::move(task);
  }

  // Takes a call out of the queue; null if it is not there (any more).
  Executor::Task withdraw(ChainId call) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const auto& queued) { return queued.first == call; });
    if (found == queue_.end()) return nullptr;
    Executor::Task task = std::move(found->second);
    queue_.erase(found);
    return task;
  }

 private:
  Mutex mutex_;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;
  ChainId holder_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<ChainId, Executor::Task>> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::internal
