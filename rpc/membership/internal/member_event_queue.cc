#include "weft/rpc/membership/internal/member_event_queue.h"

#include <algorithm>
#include <utility>

#include "weft/async/executor.h"

namespace weft::rpc_internal {

void MemberEventQueue::push(MemberEvent event) {
  MutexLock lock(mutex_);
  if (event.change != MemberChange::kJoined) {
    // Its other event, if there is one, is its kJoined.
    const auto joined = std::find_if(unread_.begin(), unread_.end(), [&](const MemberEvent& one) {
      return one.worker.id == event.worker.id;
    });
    if (joined != unread_.end()) {
      unread_.erase(joined);
      return;
    }
  }
  unread_.push_back(std::move(event));
  changed_.notify_all();
}

void MemberEventQueue::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void MemberEventQueue::wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

std::optional<MemberEvent> MemberEventQueue::next(TimePoint deadline) {
  {
    MutexLock lock(mutex_);
    if (ready()) return take();
  }
  const BlockingSection blocking;
  MutexLock lock(mutex_);
  while (!ready()) {
    if (!changed_.wait_until(mutex_, deadline)) break;
  }
  return take();
}

std::optional<MemberEvent> MemberEventQueue::take() {
  if (unread_.empty()) {
    woken_ = false;
    return std::nullopt;
  }
  MemberEvent event = std::move(unread_.front());
  unread_.pop_front();
  return event;
}

bool MemberEventQueue::closed() const {
  MutexLock lock(mutex_);
  return closed_ && unread_.empty();
}

}  // namespace weft::rpc_internal
