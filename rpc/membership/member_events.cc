#include "weft/rpc/membership/member_events.h"

#include <chrono>

#include "weft/rpc/membership/internal/member_event_queue.h"

namespace weft {

std::optional<MemberEvent> MemberEvents::next(Timeout timeout) const {
  return queue_->next(timeout.deadline_from(std::chrono::steady_clock::now()));
}

void MemberEvents::wake() const { queue_->wake(); }

bool MemberEvents::closed() const { return queue_->closed(); }

}  // namespace weft
