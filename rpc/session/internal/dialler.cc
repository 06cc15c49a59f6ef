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

bool Dialler::begin() {
  if (!link_.wants_connection()) return false;
  MutexLock lock(mutex_);
  return !std::exchange(dialling_, true);
}

void Dialler::finish(bool again, bool exhausted) {
  MutexLock lock(mutex_);
  dialling_ = again;
  lacks_descriptors_ = again && exhausted;
}

void Dialler::dial(Nanoseconds timeout) {
  if (begin()) dial_until(environment_.clock.now() + timeout, kRedials);
}

void Dialler::dial_again() {
  Nanoseconds pause{0};
  {
    MutexLock lock(mutex_);
    if (futile_ > 3) pause = kRedialPause * (1 << (futile_ - 3));
  }
  if (pause == Nanoseconds(0)) return dial(environment_.reconnect_timeout);
  if (!begin()) return;
  redial_after(pause, kNever, kRedials);
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
  // False if the peer has dialled this worker meanwhile.
  const bool wanted = link_.wants_connection();
  const bool again = !connection.ok() && wanted && (exhausted || (in_time && !told));
  finish(again, exhausted);
  if (connection.ok()) return link_.adopt(*connection);
  if (again) {
    const TimePoint until = exhausted ? now + environment_.reconnect_timeout : deadline;
    return redial_after(kRedialPause, until, exhausted || later ? kRedials : redials - 1);
  }
  if (wanted) return environment_.suspect(link_.id(), failure(link_.info(), status));
  dial_if_lost();
}

// The link had a connection when this dial gave up. If that was lost before finish(), dial_again()
// has found the dial still under way and done nothing.
void Dialler::dial_if_lost() {
  if (link_.wants_connection()) dial(environment_.reconnect_timeout);
}

void Dialler::redial_after(Nanoseconds pause, TimePoint deadline, int redials) {
  environment_.clock.call_at(
      environment_.clock.now() + pause,
      [this, gate = environment_.gate, link = link_.shared_from_this(), deadline, redials] {
        gate->enter([&](LinkEnvironment& environment) {
          if (!link_.wants_connection()) {
            finish(false, false);
            return dial_if_lost();
          }
          dial_until(deadline != kNever ? deadline
                                        : environment.clock.now() + environment.reconnect_timeout,
                     redials);
        });
      });
}

// If several connections in a row close without getting the same frame across, the next dial waits.
void Dialler::resent(uint64_t oldest) {
  MutexLock lock(mutex_);
  futile_ = oldest != 0 && oldest == resent_from_ ? std::min(futile_ + 1, kMostFutile) : 0;
  resent_from_ = oldest;
  lacks_descriptors_ = false;
}

bool Dialler::lacks_descriptors() const {
  MutexLock lock(mutex_);
  return lacks_descriptors_;
}

}  // namespace weft::rpc_internal
