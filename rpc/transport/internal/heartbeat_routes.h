// Decides on which streams of a connection heartbeats and their answers travel, so that no stream
// that hangs can make a live peer look dead.
//
// A heartbeat has a stream of its own, so that it never waits behind other frames. If the
// heartbeats before it are unanswered there, it is sent on every stream. An answer takes the
// streams that brought the heartbeat. If heartbeats and answers come only on the other streams for
// a while, the heartbeat stream hangs. One heartbeat says nothing: a process that stood still reads
// what it missed stream by stream.
//
// Thread safety: none; the connection's lock guards it.
// Protocol: docs/membership.md, "Streams".
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

// The streams of a connection, by their numbers in a Hello.
enum StreamKind : size_t { kControlStream, kBulkStream, kHeartbeatStream, kStreams };
using StreamSet = std::bitset<kStreams>;

inline bool is_heartbeat(const FrameHeader& header) { return header.kind == FrameKind::kHeartbeat; }
inline bool is_answer(const FrameHeader& header) {
  return is_heartbeat(header) && (header.flags & kFlagAnswer) != 0;
}

class HeartbeatRoutes {
 public:
  // So many came elsewhere, and for so long, before the stream for them counts as hung.
  static constexpr int kMostMissed = 16;
  static constexpr Nanoseconds kLongestMissed = std::chrono::seconds(1);

  // The streams for a heartbeat or an answer; `standing` holds the small one.
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

  // One was read on `stream`. True: the stream for heartbeats stands and hangs.
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

  // The stream for heartbeats has come or gone.
  void restart() {
    unanswered_ = 0;
    answers_.forget();
    heartbeats_.forget();
  }

 private:
  // Counts what other streams brought first since something came on the stream for it.
  class Missed {
   public:
    // True: too much, for too long.
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
    uint64_t newest_ = 0;  // that any stream brought; numbers grow
    int count_ = 0;
    TimePoint since_;  // when the first of them came
  };
  struct Read {
    uint64_t number = 0;
    bool waits = false;  // for the answer
  };
  std::array<Read, kStreams> read_;  // the last heartbeat of each stream
  int unanswered_ = 0;  // heartbeats sent since an answer came on the stream that is theirs
  Missed heartbeats_, answers_;
};

}  // namespace weft::rpc_internal
