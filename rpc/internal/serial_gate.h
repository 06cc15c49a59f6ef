// Runs the methods of a serial object one at a time, in the order in which the calls arrived.
//
// Thread safety: all methods may be called from any thread.
// Blocking: no method waits; a queued call needs no thread.
// Errors: kReentrant for a call nested in the call that is inside: each would wait for the other.
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

  // `call` has its caller and its number. `held` are the calls above it in its call chain that are
  // inside serial objects. Results:
  // kRun: `call` is inside. The caller runs `work.run` itself and then calls leave().
  // kQueued: `work` was taken. A later leave() of another call returns it.
  // kReentrant: one of `held` is inside. `work` was not taken.
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

  // Returns the next call, which is now inside; without `run`: there is none. If the caller refuses
  // that call instead of running it, it calls leave() again.
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

  // Removes a call from the queue and returns it; without `run`: it is not in the queue (any more).
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
