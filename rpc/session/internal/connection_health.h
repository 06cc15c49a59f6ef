// Tells whether the connection to a peer hangs although the peer is heard.
//
// Heartbeats do not show this, because they may travel on another stream than the one that hangs.
//
// Thread safety: none; the lock of the peer's link guards it.
// Protocol: docs/membership.md, "Streams that hang".
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
  // From now on the link uses another connection, or none.
  void restart() {
    watch_ = StreamWatch();
    refused_since_ = kNever;
    mute_for_ = Nanoseconds(0);
  }
  // The connection has refused frames. It should report soon that it is closed.
  void refused(TimePoint now) {
    if (refused_since_ == kNever) refused_since_ = now;
  }
  // The lease with the peer is valid until `until`. A heartbeat was answered, perhaps too late to
  // make the lease valid.
  void set_valid_until(TimePoint until) {
    valid_until_ = until;
    mute_for_ = Nanoseconds(0);
  }

  // Returns why the connection must be cut, or null. Call it at regular looks. `heard`: when the
  // last frame came.
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
  // The connection is cut if a peer that is heard answers no heartbeat for this time after the
  // lease has become invalid.
  static constexpr Nanoseconds kMuteAfter = std::chrono::seconds(3);
  // A connection that refuses frames must report within this time that it is closed.
  static constexpr Nanoseconds kEndsWithin = std::chrono::seconds(3);
  // One look counts for at most this time, because this process may have stood still.
  static constexpr Nanoseconds kMostOfALook = std::chrono::seconds(1);

  // True: a frame waits for its acknowledgement, and it has not moved for `limit`.
  bool is_stuck(const Connection* connection, const SessionCore& session, TimePoint now,
                Nanoseconds limit) {
    const auto& waiting = session.unacknowledged();
    if (waiting.empty() || connection == nullptr) return watch_.is_stuck(0, {}, now, limit);
    const Frame& oldest = *waiting.front();
    return watch_.is_stuck(oldest.header.sequence, connection->streams_of(oldest), now, limit);
  }

  // True: the peer is heard, but it answers no heartbeat. Calls that wait for an answer would wait
  // as long as the stream hangs. A peer that is not heard may be slow, so its silence does not
  // count. Time in which this worker itself did not look does not count either.
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
