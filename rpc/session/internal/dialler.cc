#include "weft/rpc/session/internal/dialler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/rpc/session/internal/peer_link.h"

namespace weft::rpc_internal {
namespace {

// A connection may be cut while it is made. A live peer answers one of the next dials.
constexpr int kRedials = 3;
constexpr Nanoseconds kRedialPause = std::chrono::milliseconds(20);
constexpr int kMostFutile = 6;  // a pause of 160 ms, too short to harm a lease

// PermissionDenied: the peer refuses this worker. Unavailable: no process answers at the address,
// or another one does. DeadlineExceeded: no answer came, or none that can be read.
absl::Status failure(const WorkerInfo& peer, const absl::Status& status) {
  const bool refused = absl::IsPermissionDenied(status);
  const bool nobody = absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
  return absl::Status(refused  ? absl::StatusCode::kPermissionDenied
                      : nobody ? absl::StatusCode::kUnavailable
                               : absl::StatusCode::kDeadlineExceeded,
                      absl::StrCat(refused ? "refuses this worker" : "cannot be reached", " at ",
                                   peer.address, ": ", status.message()));
}

}  // namespace

// If several connections in a row close without getting the same frame across, the next dial waits.
void DialState::resent(uint64_t oldest) {
  futile = oldest != 0 && oldest == resent_from ? std::min(futile + 1, kMostFutile) : 0;
  resent_from = oldest;
  lacks_descriptors = false;
}

Nanoseconds DialState::pause() const {
  return futile <= 3 ? Nanoseconds(0) : kRedialPause * (1 << (futile - 3));
}

void Dialler::dial(Nanoseconds timeout, Nanoseconds pause) {
  if (!link_.begin_dial()) return;
  const auto now = [timeout](Dialler& dialler) {
    dialler.dial_until(dialler.environment_.clock.now() + timeout, kRedials);
  };
  pause > Nanoseconds(0) ? after(pause, now) : now(*this);
}

void Dialler::dial_until(TimePoint deadline, int redials) {
  const WorkerInfo& peer = link_.info();
  // `this` is safe: the callback runs before the transport has stopped, and the transport stops
  // before the environment is destroyed.
  environment_.transport.connect(peer.address, {environment_.group, peer.name, peer.id}, deadline,
                                 [this, link = link_.shared_from_this(), deadline,
                                  redials](const absl::StatusOr<ConnectionPtr>& connection) {
                                   dialled(connection, deadline, redials);
                                 });
}

void Dialler::dialled(const absl::StatusOr<ConnectionPtr>& connection, TimePoint deadline,
                      int redials) {
  const absl::Status& status = connection.status();
  // This process has no file descriptor left. The peer is not the cause, so the dial is repeated
  // without limit.
  const bool exhausted = absl::IsResourceExhausted(status);
  const bool told = absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status);
  // The far end is live, but it does not know yet whether to accept this worker.
  const bool later = absl::IsAborted(status);
  const TimePoint now = environment_.clock.now();
  const bool in_time = (redials > 0 || later) && now < deadline;
  const bool again = !connection.ok() && (exhausted || (in_time && !told));
  // Not wanted any more if, for example, the peer has dialled this worker meanwhile.
  const bool wanted = link_.end_dial(again, exhausted);
  if (connection.ok()) return link_.adopt(*connection);
  if (!wanted) return;
  if (!again) return environment_.suspect(link_.id(), failure(link_.info(), status));
  const TimePoint until = exhausted ? now + environment_.reconnect_timeout : deadline;
  const int more = exhausted || later ? kRedials : redials - 1;
  after(kRedialPause, [until, more](Dialler& dialler) { dialler.dial_until(until, more); });
}

void Dialler::after(Nanoseconds pause, std::function<void(Dialler&)> then) {
  environment_.clock.call_at(
      environment_.clock.now() + pause,
      [this, gate = environment_.gate, link = link_.shared_from_this(), then = std::move(then)] {
        gate->enter([&](LinkEnvironment&) {
          if (link->resume_dial()) then(*this);
        });
      });
}

}  // namespace weft::rpc_internal
