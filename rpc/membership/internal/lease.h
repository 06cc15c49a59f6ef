// Measures one peer's silence, and says until when calls to it may be sent.
//
// There is a lease while this worker and the peer have shared state. A frame of the peer ends its
// silence. An answered heartbeat makes the lease valid.
//
// Thread safety: none; MembershipCore owns it. It is pure: the caller passes the time.
// Protocol: docs/membership.md, "Leases" and "A slow worker is not a dead one".
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/rpc/membership/awake_time.h"
#include "weft/rpc/membership/lease_options.h"

namespace weft::rpc_internal {

// The state of a live peer at one look of the driver.
struct PeerLook {
  WorkerId peer;
  bool busy = false;      // the two have shared state
  TimePoint heard;        // when the last frame came; in the past if none has come
  Nanoseconds lag{0};     // how late the peer runs, as its newest heartbeat or answer says
  Nanoseconds waited{0};  // for a processor since the last look, per the kernel (`is_watched`)
  bool met = true;        // a frame of the peer has come, or should have come by now
};

class Lease {
 public:
  explicit Lease(const LeaseOptions& limits) : limits_(limits) {}

  // The two have shared state at `now`, or a reason to treat it so.
  void share(TimePoint now) {
    shared_until_ = std::max<TimePoint>(shared_until_, now + limits_.linger);
  }
  // Begins, continues or closes the lease. Returns how long it is valid if it begins, or kNever if
  // it is closed: calls do not wait then.
  std::optional<TimePoint> look(const PeerLook& look, TimePoint now, const PassedTime& passed);
  // A heartbeat leaves at `now`; `awake` is this worker's awake time.
  void sent(uint64_t number, TimePoint now, Nanoseconds awake);
  // The peer has answered. Returns until when the lease is valid now; nullopt: that is unchanged,
  // or there is no lease.
  std::optional<TimePoint> answered(uint64_t number, Nanoseconds awake);

  // There is a lease.
  bool is_active() const { return active_; }
  // False: the peer may have freed what it holds for this worker. A new lease is not valid until
  // the first answer.
  bool is_valid(TimePoint now) const { return !active_ || now < valid_until_; }
  // True: the next look must say how long the peer waited for a processor.
  bool is_watched() const { return active_ && 2 * unheard_ >= 3 * limits_.heartbeat_interval; }
  // True: the peer was silent for less than half of the limit.
  bool is_heard() const { return silence_ < limits_.suspect_after / 2; }
  // True: the peer was silent for the limit and for `more`. `worst_lag` is that of all peers.
  bool is_silent(Nanoseconds worst_lag, Nanoseconds more = Nanoseconds(0)) const;
  // Returns the silence after which the peer is suspected.
  Nanoseconds silence_limit(Nanoseconds worst_lag) const;
  // Says how long the peer was silent, and what was allowed, for the reason of a suspicion.
  std::string describe(Nanoseconds worst_lag, Nanoseconds more) const;
  // Returns how late the peer runs: its timer, and its answers.
  Nanoseconds lag() const;

 private:
  struct SentHeartbeat {
    uint64_t number;
    TimePoint sent;
    Nanoseconds awake;  // this worker's awake time when it was sent
  };

  const LeaseOptions limits_;
  TimePoint shared_until_;
  bool active_ = false;
  Nanoseconds silence_{0};  // without waits for a processor
  Nanoseconds unheard_{0};  // with them
  Nanoseconds wait_{0};     // the peer's waits for a processor that `silence_` does not exclude yet
  int watched_ = 0;         // looks during this silence that could tell how long it waited
  TimePoint heard_;
  std::deque<SentHeartbeat> unanswered_;  // oldest first
  std::optional<Nanoseconds> late_;       // of its recent answers, beyond an interval
  Nanoseconds timer_lag_{0};              // as its newest heartbeat or answer says
  TimePoint valid_until_;
};

}  // namespace weft::rpc_internal
