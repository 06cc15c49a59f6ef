#include "weft/rpc/session/internal/call_errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

Ran ran(const PendingCall& call) { return call.sent ? Ran::kMaybe : Ran::kNo; }

}  // namespace

absl::Status gone_error(const WorkerInfo& peer, const absl::Status& reason, Ran ran) {
  absl::Status status(reason.code(), absl::StrCat("worker '", peer.name, "' (", peer.id.to_string(),
                                                  ") ", reason.message()));
  return raised_at(with_ran(std::move(status), ran), peer.name);
}

absl::Status gone_error(const WorkerInfo& peer, const absl::Status& reason, uint64_t id,
                        const PendingCall& call) {
  return prepend(absl::StrCat("call ", id, " to '", absl_view(call.function), "': "),
                 gone_error(peer, reason, ran(call)));
}

absl::Status late_before_sending(const WorkerInfo& peer, std::string_view function) {
  return with_ran(absl::DeadlineExceededError(
                      absl::StrCat("call to '", absl_view(function), "' on worker '", peer.name,
                                   "' was not sent: its deadline had passed already")),
                  Ran::kNo);
}

absl::Status queue_full(const WorkerInfo& peer, std::string_view function,
                        const CreditWindow& window) {
  return with_ran(absl::ResourceExhaustedError(absl::StrCat(
                      "call to '", absl_view(function), "' on worker '", peer.name,
                      "': ", window.max_queued_calls, " calls or ", window.max_queued_bytes,
                      " bytes wait for credit, or for the answer to a heartbeat, already")),
                  Ran::kNo);
}

absl::Status late_error(const WorkerInfo& peer, uint64_t id, const PendingCall& call) {
  return with_ran(
      absl::DeadlineExceededError(absl::StrCat(
          "call ", id, " to '", absl_view(call.function), "' on worker '", peer.name,
          "' exceeded its deadline of ", absl::FormatDuration(absl::FromChrono(call.allowed)))),
      ran(call));
}

absl::Status cancelled_error(const WorkerInfo& peer, uint64_t id, const PendingCall& call) {
  return with_ran(absl::CancelledError(absl::StrCat("call ", id, " of '", absl_view(call.function),
                                                    "' on worker '", peer.name,
                                                    "' was cancelled by the caller")),
                  ran(call));
}

}  // namespace weft::rpc_internal
