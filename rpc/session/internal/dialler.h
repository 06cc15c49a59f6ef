// Makes a connection to one peer, and dials again while that can help.
//
// If it gets no connection, it reports its reason as a suspicion.
//
// Thread safety: all methods may be called from any thread. The caller may hold the lock of the
// peer's link only where a comment says so. The dialler calls the link without its own lock.
// Lifetime: it is a part of its PeerLink. A dial under way keeps the link alive.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

class PeerLink;
struct LinkEnvironment;

class Dialler {
 public:
  Dialler(LinkEnvironment& environment, PeerLink& link) : environment_(environment), link_(link) {}

  // Begins to dial, unless a dial is under way or the link wants no connection.
  void dial(Nanoseconds timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // Dials after a lost connection. It pauses first if the last connections did not get the same
  // frame across.
  void dial_again() ABSL_LOCKS_EXCLUDED(mutex_);
  // A new connection begins by sending this frame again; 0: there is none. The caller may hold the
  // link's lock.
  void resent(uint64_t oldest) ABSL_LOCKS_EXCLUDED(mutex_);
  // True: this process has no file descriptor left for the dial. The caller may hold the link's
  // lock.
  bool lacks_descriptors() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void dial_until(TimePoint deadline, int redials);
  void dialled(const absl::StatusOr<ConnectionPtr>& connection, TimePoint deadline, int redials);
  void dial_if_lost();
  // `deadline` kNever: the reconnect timeout, from when the pause is over.
  void redial_after(Nanoseconds pause, TimePoint deadline, int redials);
  bool begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void finish(bool again, bool exhausted) ABSL_LOCKS_EXCLUDED(mutex_);

  LinkEnvironment& environment_;
  PeerLink& link_;
  mutable Mutex mutex_;
  bool dialling_ ABSL_GUARDED_BY(mutex_) = false;
  bool lacks_descriptors_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t resent_from_ ABSL_GUARDED_BY(mutex_) = 0;
  int futile_ ABSL_GUARDED_BY(mutex_) = 0;  // later connections that began with the same frame
};

}  // namespace weft::rpc_internal
