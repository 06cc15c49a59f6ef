#include "weft/rref/internal/ownership_types.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::rref_internal {
namespace {

constexpr char kLostUrl[] = "weft/rref_lost";  // value: WorkerId::bits of `worker`

std::string ids(RRefId rref, ForkId fork) {
  return absl::StrCat(" ", rref.to_string(), " ", fork.to_string());
}

struct Printer {
  std::string operator()(const ForkRequest& m) { return "FORK_REQUEST" + ids(m.rref, m.fork); }
  std::string operator()(const ForkAccept& m) { return "FORK_ACCEPT" + ids(m.rref, m.fork); }
  std::string operator()(const ForkReject& m) {
    const std::string_view reason = to_string(m.reason);
    return absl::StrCat("FORK_REJECT", ids(m.rref, m.fork), " (", absl_view(reason), ")");
  }
  std::string operator()(const ChildAccept& m) { return "CHILD_ACCEPT" + ids(m.rref, m.fork); }
  std::string operator()(const UserDelete& m) {
    return absl::StrCat("USER_DELETE", ids(m.rref, m.fork), m.ack_wanted ? " ack" : "");
  }
  std::string operator()(const DeleteAck& m) { return "DELETE_ACK" + ids(m.rref, m.fork); }
  std::string operator()(const CancelFork& m) {
    return absl::StrCat("CANCEL_FORK", ids(m.rref, m.fork), m.creation ? " creation" : "");
  }
  std::string operator()(const CancelAck& m) {
    return absl::StrCat("CANCEL_ACK", ids(m.rref, m.fork),
                        m.registered ? " registered" : " absent");
  }
  std::string operator()(const Settled&) { return "SETTLED"; }
};

}  // namespace

absl::Status rref_lost_error(RRefId rref, WorkerId worker, std::string_view why) {
  absl::Status status =
      absl::UnavailableError(absl::StrCat(rref.to_string(), " is lost: ", absl_view(why)));
  status.SetPayload(kLostUrl, absl::Cord(absl::StrCat(worker.bits())));
  return with_ran(std::move(status), Ran::kNo);
}

absl::Status wrong_key_error(RRefId rref, WorkerId from) {
  return with_ran(
      absl::PermissionDeniedError(absl::StrCat(from.to_string(), " has no reference to ",
                                               rref.to_string(), ": it sent another key")),
      Ran::kNo);
}

std::optional<WorkerId> rref_lost_to(const absl::Status& status) {
  const auto worker = status.GetPayload(kLostUrl);
  uint64_t bits = 0;
  if (!worker || !absl::SimpleAtoi(std::string(*worker), &bits)) return std::nullopt;
  return WorkerId::from_bits(bits);
}

bool is_rref_lost(const absl::Status& status) { return rref_lost_to(status).has_value(); }

std::string_view to_string(RejectReason reason) {
  switch (reason) {
    case RejectReason::kFreed:
      return "the value is freed";
    case RejectReason::kWithdrawn:
      return "withdrawn before the owner knew it";
    case RejectReason::kCreatorDied:
      return "its sender died before the owner knew it";
    case RejectReason::kOverloaded:
      return "too many references wait for a creation";
    case RejectReason::kNotTheHolder:
      return "another worker holds this fork";
    case RejectReason::kNotCreated:
      return "its creation failed";
    case RejectReason::kWrongKey:
      return "the request has another key than the RRef";
  }
  return "unknown reason";
}

std::string to_string(const Message& message) { return std::visit(Printer(), message); }

std::string Leak::to_string() const {
  const std::string what = absl::StrCat(rref.to_string(), " (", type.name, ")");
  switch (kind) {
    case Kind::kHeldByUser:
      return absl::StrCat(what, " owned here is held by ", worker.to_string(), ": ", count,
                          " fork(s)");
    case Kind::kHeldHere:
      return absl::StrCat(what, " owned here is held here: ", count, " handle(s)");
    case Kind::kUserFork:
      return absl::StrCat(what, " owned by ", worker.to_string(), " is held here: ", count,
                          " fork(s)");
    case Kind::kPendingChild:
      return absl::StrCat(what, " was sent to ", worker.to_string(),
                          " and not acknowledged: ", count, " fork(s)");
    case Kind::kAwaitsCreation:
      return absl::StrCat(what, " never created here: ", count, " request(s) of ",
                          worker.to_string(), " wait for it");
  }
  return what;
}

}  // namespace weft::rref_internal
