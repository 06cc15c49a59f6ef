// Decides on which lanes of a connection heartbeats and their answers travel, so that no lane that
// hangs can make a live peer look dead.
//
// A heartbeat has a lane of its own, so that it never waits behind other frames. If the heartbeats
// before it are unanswered there, it is sent on every lane. An answer takes the lanes that brought
// the heartbeat. If other lanes bring for a while what this one should, the lane for heartbeats
// hangs: a while, for a process that stood still reads what it missed lane by lane.
//
// Thread safety: none; the connection's lock guards it.
// Protocol: docs/membership.md, "Lanes".
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

// The lanes of a connection, by their numbers in a Hello.
enum Lane : size_t { kSmallLane, kBulkLane, kBeatsLane, kLanes };
using LaneSet = std::bitset<kLanes>;

inline bool is_beat(const FrameHeader& header) { return header.kind == FrameKind::kBeat; }
inline bool is_answer(const FrameHeader& header) {
  return is_beat(header) && (header.flags & kFlagAnswer) != 0;
}

class BeatRoutes {
 public:
  // So many came elsewhere, and for so long, before the lane for them counts as hung.
  static constexpr int kMostMissed = 16;
  static constexpr Nanoseconds kLongestMissed = std::chrono::seconds(1);

  // The lanes for a heartbeat or an answer; `standing` holds the small one.
  LaneSet route(const FrameHeader& beat, LaneSet standing) {
    LaneSet lanes;
    if (is_answer(beat)) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = standing[lane] && read_[lane].waits && read_[lane].number == beat.call;
        if (lanes[lane]) read_[lane].waits = false;
      }
    } else if (unanswered_++ > 0) {
      lanes = standing;
    }
    if (lanes.none()) lanes.set(standing[kBeatsLane] ? kBeatsLane : kSmallLane);
    return lanes;
  }

  // One was read on `lane`. True: the lane for heartbeats stands and hangs.
  bool on_read(const FrameHeader& beat, Lane lane, LaneSet standing, TimePoint now) {
    const bool own = lane == (standing[kBeatsLane] ? kBeatsLane : kSmallLane);
    if (!is_answer(beat)) {
      read_[lane] = {beat.call, true};
    } else if (own) {
      unanswered_ = 0;
    }
    Missed& missed = is_answer(beat) ? answers_ : heartbeats_;
    const bool hangs = missed.on_read(beat.call, own, now);
    return hangs && standing[kBeatsLane];
  }

  // The lane for heartbeats has come or gone.
  void restart() {
    unanswered_ = 0;
    answers_.forget();
    heartbeats_.forget();
  }

 private:
  // Counts what other lanes brought first since something came on the lane for it.
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
    uint64_t newest_ = 0;  // that any lane brought; numbers grow
    int count_ = 0;
    TimePoint since_;  // when the first of them came
  };
  struct Read {
    uint64_t number = 0;
    bool waits = false;  // for the answer
  };
  std::array<Read, kLanes> read_;  // the last heartbeat of each lane
  int unanswered_ = 0;  // heartbeats sent since an answer came on the lane that is theirs
  Missed heartbeats_, answers_;
};

}  // namespace weft::rpc_internal
