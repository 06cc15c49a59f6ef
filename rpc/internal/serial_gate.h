// Lets one method of an object run at a time, in the order in which the calls arrived.
//
// Thread safety: all methods may be called from any thread.
// Errors: a call that would wait for a call that it is nested in is refused instead of deadlocking.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "weft/async/executor.h"
#include "weft/base/ids.h"
#include "weft/base/mutex.h"

namespace weft::rpc_internal {

class SerialGate {
 public:
  enum class Entry { kRun, kQueued, kReentrant };

  // `call` by its maker and number; `held`: the calls above it that are inside serial objects.
  // kRun: the caller runs `work.run` itself and then calls leave(). kQueued: `work` was taken,
  // somebody's leave() will return it. kReentrant: one of `held` is inside; nothing was taken.
  Entry enter(ChainId call, const std::vector<ChainId>& held, Executor::Call& work)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (!inside_) {
      inside_ = true;
      holder_ = call;
      return Entry::kRun;
    }
    if (std::find(held.begin(), held.end(), holder_) != held.end()) return Entry::kReentrant;
    queue_.emplace_back(call, std::move(work));
    return Entry::kQueued;
  }

  // The next call, which now is inside; one without `run` if there is none. A caller that refuses
  // that call instead of running it calls leave() again.
  Executor::Call leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    if (queue_.empty()) {
      inside_ = false;
      holder_ = ChainId();
      return {};
    }
    auto [call, work] = std::move(queue_.front());
    queue_.pop_front();
    holder_ = call;
    return std::move(work);
  }

  // Takes a call out of the queue; one without `run` if it is not there (any more).
  Executor::Call withdraw(ChainId call) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const auto& queued) { return queued.first == call; });
    if (found == queue_.end()) return {};
    Executor::Call work = std::move(found->second);
    queue_.erase(found);
    return work;
  }

 private:
  Mutex mutex_;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;
  ChainId holder_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<ChainId, Executor::Call>> queue_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc_internal
