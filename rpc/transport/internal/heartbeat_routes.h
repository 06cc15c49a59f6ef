// HeartbeatRoutes decides on which streams of a connection heartbeats and their answers travel, so
// that a stream that hangs cannot make a live peer look dead.
//
// Heartbeats have a stream of their own, so that they never wait behind other frames. If an earlier
// heartbeat has no answer on that stream, the next one is sent on every stream. An answer takes the
// streams that brought its heartbeat.
//
// If other streams bring heartbeats or answers first for a while, the heartbeat stream hangs. It
// must last a while, because a process that stood still reads what it missed stream by stream.
//
// Thread safety: none; the connection's lock guards it.
// Protocol: docs/membership.md, "Streams that hang".
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "weft/base/clock.h"
#include "weft/rpc/transport/frame.h"

namespace weft::rpc_internal {

// The streams of a connection. Their numbers are those in Hello.stream.
enum StreamKind : size_t { kControlStream, kBulkStream, kHeartbeatStream, kStreams };
using StreamSet = std::bitset<kStreams>;

inline bool is_heartbeat(const FrameHeader& header) { return header.kind == FrameKind::kHeartbeat; }
inline bool is_answer(const FrameHeader& header) {
  return is_heartbeat(header) && (header.flags & kFlagAnswer) != 0;
}

class HeartbeatRoutes {
 public:
  // The heartbeat stream counts as hung if other streams have brought so many heartbeats (or so
  // many answers) before it did, for so long.
  static constexpr int kMostMissed = 16;
  static constexpr Nanoseconds kLongestMissed = std::chrono::seconds(1);

  // Chooses the streams for a heartbeat or an answer that is to be sent. `standing` names the open
  // streams; the control stream must be one of them.
  StreamSet route(const FrameHeader& heartbeat, StreamSet standing) {
    StreamSet streams;
    if (is_answer(heartbeat)) {
      for (size_t kind = 0; kind < kStreams; ++kind) {
        streams[kind] = standing[kind] && read_[kind].waits && read_[kind].number == heartbeat.call;
        if (streams[kind]) read_[kind].waits = false;
      }
    } else if (unanswered_++ > 0) {
      streams = standing;
    }
    if (streams.none()) streams.set(standing[kHeartbeatStream] ? kHeartbeatStream : kControlStream);
    return streams;
  }

  // A heartbeat or an answer was read on stream `kind`. Returns true if the heartbeat stream is
  // open and hangs.
  bool on_read(const FrameHeader& heartbeat, StreamKind kind, StreamSet standing, TimePoint now) {
    const bool own = kind == (standing[kHeartbeatStream] ? kHeartbeatStream : kControlStream);
    if (!is_answer(heartbeat)) {
      read_[kind] = {heartbeat.call, true};
    } else if (own) {
      unanswered_ = 0;
    }
    Missed& missed = is_answer(heartbeat) ? answers_ : heartbeats_;
    const bool hangs = missed.on_read(heartbeat.call, own, now);
    return hangs && standing[kHeartbeatStream];
  }

  // The heartbeat stream was opened or has closed.
  void restart() {
    unanswered_ = 0;
    answers_.forget();
    heartbeats_.forget();
  }

 private:
  // Counts the heartbeats (or the answers) that other streams brought first, since the last one on
  // the heartbeat stream. Without that stream, the control stream takes its part.
  class Missed {
   public:
    // Returns true if there were too many, for too long.
    bool on_read(uint64_t number, bool own, TimePoint now) {
      const bool first = number > newest_;
      newest_ = std::max(newest_, number);
      if (own) {
        count_ = 0;
      } else if (first && count_++ == 0) {
        since_ = now;
      }
      return count_ >= kMostMissed && now - since_ >= kLongestMissed;
    }
    void forget() { count_ = 0; }

   private:
    uint64_t newest_ = 0;  // of all streams; numbers grow
    int count_ = 0;
    TimePoint since_;  // when the first of the counted ones came
  };
  struct Read {
    uint64_t number = 0;
    bool waits = false;  // for its answer
  };
  std::array<Read, kStreams> read_;  // the last heartbeat that each stream brought
  int unanswered_ = 0;               // heartbeats sent since the last answer on their own stream
  Missed heartbeats_, answers_;
};

}  // namespace weft::rpc_internal
