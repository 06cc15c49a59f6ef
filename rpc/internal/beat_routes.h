// Decides on which lanes of a connection heartbeats and their answers travel, so that no lane that
// hangs can make a live peer look dead.
//
// A heartbeat has a lane of its own, so that it never waits behind other frames. If the heartbeats
// before it are unanswered there, it is sent on every lane. An answer takes the lanes that brought
// the heartbeat. If other lanes bring what this one should, the lane for heartbeats hangs.
//
// Thread safety: none; the connection's lock guards it.
// Protocol: docs/membership.md, "Lanes".
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>

#include "weft/rpc/frame.h"

namespace weft::internal {

// The lanes of a connection, by their numbers in a Hello.
enum Lane : size_t { kSmallLane, kBulkLane, kBeatsLane, kLanes };
using LaneSet = std::bitset<kLanes>;

inline bool is_beat(const FrameHeader& header) { return header.kind == FrameKind::kBeat; }
inline bool is_answer(const FrameHeader& header) {
  return is_beat(header) && (header.flags & kFlagAnswer) != 0;
}

class BeatRoutes {
 public:
  // So many heartbeats are unanswered, or came elsewhere, before the lane for them counts as hung.
  static constexpr int kMostMissed = 16;

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
  bool on_read(const FrameHeader& beat, Lane lane, LaneSet standing) {
    const bool own = lane == (standing[kBeatsLane] ? kBeatsLane : kSmallLane);
    int& missed = is_answer(beat) ? unanswered_ : elsewhere_;
    if (!is_answer(beat)) {
      if (beat.call > newest_) ++elsewhere_;
      newest_ = std::max(newest_, beat.call);
      read_[lane] = {beat.call, true};
    }
    if (own) missed = 0;
    return standing[kBeatsLane] && missed >= kMostMissed;
  }

  // The lane for heartbeats has come or gone.
  void restart() { unanswered_ = elsewhere_ = 0; }

 private:
  struct Read {
    uint64_t number = 0;
    bool waits = false;  // for the answer
  };
  std::array<Read, kLanes> read_;  // the last heartbeat of each lane
  uint64_t newest_ = 0;            // of all heartbeats; their numbers grow
  int unanswered_ = 0;  // heartbeats sent since an answer came on the lane that is theirs
  int elsewhere_ = 0;   // heartbeats that other lanes brought first since one came on that lane
};

}  // namespace weft::internal
