// Tells whether the oldest frame that a peer has not acknowledged still moves.
//
// The frame moves while its stream writes bytes. Once they are written, its acknowledgement must
// come. Only bytes count that were queued when the frame became the oldest. So later traffic, on
// its own stream or on another one, cannot hide that the frame's stream hangs. Long gaps between
// two looks count only in part, because this process may have stood still.
//
// Thread safety: none; the lock of the peer's link (peer_link.h) guards it.
// Protocol: docs/membership.md, "Streams that hang".
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/base/clock.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

class StreamWatch {
 public:
  // `oldest`: the sequence of that frame; 0 if all frames are acknowledged. `streams`: the byte
  // counts of the streams that may carry it, always in the same order; streams may be added.
  // True: nothing has moved for `limit`.
  bool is_stuck(uint64_t oldest, const StreamsBytes& streams, TimePoint now, Nanoseconds limit) {
    const bool next = oldest != oldest_;
    if (next) goals_.clear();
    oldest_ = oldest;
    uint64_t written = 0;
    for (size_t i = 0; i < streams.size(); ++i) {
      if (i == goals_.size()) goals_.push_back(streams[i].taken);
      written += std::min(streams[i].written, goals_[i]);
    }
    // One look counts for at most a quarter of the limit, so a pause of this process cuts nothing.
    still_ += std::min<Nanoseconds>(now - looked_at_, limit / 4);
    looked_at_ = now;
    if (next || written != written_) still_ = Nanoseconds(0);
    written_ = written;
    return oldest != 0 && still_ >= limit;
  }

 private:
  uint64_t oldest_ = 0;
  std::vector<uint64_t> goals_;  // of each stream: bytes taken when `oldest_` became the oldest
  uint64_t written_ = 0;         // bytes of the goals that were written
  TimePoint looked_at_;
  Nanoseconds still_{0};  // the time for which nothing has moved
};

}  // namespace weft::rpc_internal
