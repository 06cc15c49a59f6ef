// Makes a connection to one peer: dials, dials again while that can help, and says why it cannot.
//
// Thread safety: all methods may be called from any thread. The lock of the peer's link may be held
// where said; the dialler calls the link without its own lock.
// Lifetime: a part of its PeerLink, which dials under way keep.
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
  // The connection was lost: the same, after a pause if the last connections were of no use.
  void dial_again() ABSL_LOCKS_EXCLUDED(mutex_);
  // A new connection begins by sending this frame again; 0: none. The link's lock may be held.
  void resent(uint64_t oldest) ABSL_LOCKS_EXCLUDED(mutex_);
  // This worker has nothing left to make a connection with. The link's lock may be held.
  bool lacks_descriptors() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void dial_until(TimePoint deadline, int redials);
  void dialled(const absl::StatusOr<ConnectionPtr>& connection, TimePoint deadline, int redials);
  void redial_after(Nanoseconds pause, TimePoint deadline, int redials);
  bool begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void finish(bool again, bool exhausted) ABSL_LOCKS_EXCLUDED(mutex_);

  LinkEnvironment& environment_;
  PeerLink& link_;
  mutable Mutex mutex_;
  bool dialling_ ABSL_GUARDED_BY(mutex_) = false;
  bool lacks_descriptors_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t resent_from_ ABSL_GUARDED_BY(mutex_) = 0;
  int futile_ ABSL_GUARDED_BY(mutex_) = 0;  // connections that began there and got no further
};

}  // namespace weft::rpc_internal
