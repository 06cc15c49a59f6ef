// Says whether the connection to a peer that is heard hangs: heartbeats may travel where one of its
// streams does not move.
//
// Thread safety: none; the lock of the peer's link guards it.
#pragma once

#include <algorithm>
#include <utility>

#include "weft/base/clock.h"
#include "weft/rpc/session/internal/session.h"
#include "weft/rpc/session/internal/stream_watch.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

class ConnectionHealth {
 public:
  // Another connection is used from now on, or none.
  void restart() {
    watch_ = StreamWatch();
    refused_since_ = kNever;
    mute_for_ = Nanoseconds(0);
  }
  // The connection has not taken frames; it should report its end soon.
  void refused(TimePoint now) {
    if (refused_since_ == kNever) refused_since_ = now;
  }
  // The lease with the peer is valid until then: a heartbeat was answered, perhaps too late.
  void set_valid_until(TimePoint until) {
    valid_until_ = until;
    mute_for_ = Nanoseconds(0);
  }

  // For regular looks. Why the connection must be cut, or null. `heard`: when the last frame came.
  const char* hangs(const Connection* connection, const SessionCore& session, TimePoint heard,
                    TimePoint now, Nanoseconds stuck_after) {
    const bool stuck = is_stuck(connection, session, now, stuck_after);
    const bool mute = is_mute(connection != nullptr, heard, now);
    if (stuck) return "what was sent is not acknowledged";
    if (mute) return "heartbeats are not answered";
    if (refused_since_ != kNever && now - refused_since_ >= kEndsWithin) {
      return "it takes no frames and does not end";
    }
    return nullptr;
  }

 private:
  // Without an answer for so long, beyond the validity of the lease, from a peer that is heard.
  static constexpr Nanoseconds kMuteAfter = std::chrono::seconds(3);
  // A connection that takes no frames has this long to report its end.
  static constexpr Nanoseconds kEndsWithin = std::chrono::seconds(3);
  static constexpr Nanoseconds kMostOfALook = std::chrono::seconds(1);

  // Something waits to be acknowledged, and nothing has moved on its stream for `limit`.
  bool is_stuck(const Connection* connection, const SessionCore& session, TimePoint now,
                Nanoseconds limit) {
    const auto& waiting = session.unacknowledged();
    if (waiting.empty() || connection == nullptr) return watch_.is_stuck(0, {}, now, limit);
    const Frame& oldest = *waiting.front();
    return watch_.is_stuck(oldest.header.sequence, connection->streams_of(oldest), now, limit);
  }

  // Heartbeats are not answered, and the peer is heard. What keeps waiting for an answer would wait
  // as long as the stream hangs. A peer that is not heard may be slow: its silence does not count,
  // nor does the time in which this worker itself did not look.
  bool is_mute(bool connected, TimePoint heard, TimePoint now) {
    const Nanoseconds passed =
        std::min<Nanoseconds>(now - std::exchange(last_look_, now), kMostOfALook);
    const bool was_heard = std::exchange(last_heard_, heard) != heard;
    if (now < valid_until_ || !connected) {
      mute_for_ = Nanoseconds(0);
    } else if (was_heard) {
      mute_for_ += std::min<Nanoseconds>(passed, now - valid_until_);
    }
    return mute_for_ >= kMuteAfter;
  }

  StreamWatch watch_;
  TimePoint refused_since_ = kNever;
  TimePoint valid_until_ = kNever;
  Nanoseconds mute_for_{0};
  TimePoint last_look_;
  TimePoint last_heard_;
};

}  // namespace weft::rpc_internal
