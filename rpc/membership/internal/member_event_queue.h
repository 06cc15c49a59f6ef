// Holds the events of one MemberEvents stream that were not read yet.
//
// Thread safety: all methods may be called from any thread.
// Blocking: only `next`, which announces its wait to the executor.
// Bounds: rpc/membership/member_events.h.
#pragma once

#include <deque>
#include <optional>

#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/membership/member_events.h"

namespace weft::rpc_internal {

class MemberEventQueue {
 public:
  // Adds an event. If the worker is gone and its kJoined was not read, drops both instead.
  void push(MemberEvent event) ABSL_LOCKS_EXCLUDED(mutex_);
  // No event will come any more. The ones that are here can still be read.
  void close() ABSL_LOCKS_EXCLUDED(mutex_);
  void wake() ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<MemberEvent> next(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // True: `next` returns without waiting, with what `take` gives.
  bool ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !unread_.empty() || woken_ || closed_;
  }
  std::optional<MemberEvent> take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<MemberEvent> unread_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // by `wake`, and no `next` has noticed it yet
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::rpc_internal
