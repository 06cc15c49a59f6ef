#include "weft/rpc/session/internal/incoming_call.h"

#include "weft/rpc/session/internal/peer_link.h"

namespace weft::rpc_internal {

void IncomingCall::taken() {
  if (!taken_.exchange(true)) link_->call_taken(header_, cost_);
}

void IncomingCall::accept() {
  if (!replied_.exchange(true)) link_->answer(header_.call, Frame());
}

void IncomingCall::reply(absl::StatusOr<Frame> result) {
  if (replied_.exchange(true)) return;
  taken();
  link_->answer(header_.call, std::move(result));
}

}  // namespace weft::rpc_internal
