// Makes a connection to one peer, and dials again while that can help.
//
// If it gets no connection, it reports its reason as a suspicion.
//
// Thread safety: all methods of Dialler may be called from any thread, without the link's lock. It
// has no state of its own: the link decides under its lock whether a dial is under way and whether
// it wants a connection (DialState).
// Lifetime: it is a part of its PeerLink. A dial under way keeps the link alive.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

class PeerLink;
struct LinkEnvironment;

// The dials of a link. The link's lock guards this.
struct DialState {
  bool dialling = false;           // a dial, or the pause before one, is under way
  bool lacks_descriptors = false;  // and this process has no file descriptor left for it
  uint64_t resent_from = 0;        // the frame that the newest connection began with; 0: none
  int futile = 0;                  // later connections that began with the same frame

  // A new connection begins by sending this frame again; 0: there is none.
  void resent(uint64_t oldest);
  // Before the next dial: the last connections did not get the same frame across.
  Nanoseconds pause() const;
};

class Dialler {
 public:
  Dialler(LinkEnvironment& environment, PeerLink& link) : environment_(environment), link_(link) {}

  // Begins to dial after the pause, unless a dial is under way or the link wants no connection.
  // `timeout` is that of the dial, from when the pause is over.
  void dial(Nanoseconds timeout, Nanoseconds pause = Nanoseconds(0));

 private:
  void dial_until(TimePoint deadline, int redials);
  void dialled(const absl::StatusOr<ConnectionPtr>& connection, TimePoint deadline, int redials);
  // Calls `then` after the pause if the link still wants a connection.
  void after(Nanoseconds pause, std::function<void(Dialler&)> then);

  LinkEnvironment& environment_;
  PeerLink& link_;
};

}  // namespace weft::rpc_internal
