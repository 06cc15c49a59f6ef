// Makes the errors that a caller gets if its call fails without an answer of the peer.
//
// Each error says whether the function ran (`ran_of`).
//
// Thread safety: these are free functions without state.
// Errors: docs/errors.md describes them.
#pragma once

#include "absl/status/status.h"
#include "weft/base/status.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/session/internal/peer.h"

namespace weft::rpc_internal {

// The peer is gone, for `reason`.
absl::Status gone_error(const WorkerInfo& peer, const absl::Status& reason, Ran ran);
// The same for a call that was open. Only a call that was not sent has certainly not run.
absl::Status gone_error(const WorkerInfo& peer, const absl::Status& reason, uint64_t id,
                        const PendingCall& call);
absl::Status late_before_sending(const WorkerInfo& peer, std::string_view function);
absl::Status queue_full(const WorkerInfo& peer, std::string_view function,
                        const CreditWindow& window);
absl::Status late_error(const WorkerInfo& peer, uint64_t id, const PendingCall& call);
absl::Status cancelled_error(const WorkerInfo& peer, uint64_t id, const PendingCall& call);

}  // namespace weft::rpc_internal
