// Tells whether the oldest frame that a peer has not acknowledged still makes its way. It does if
// its stream moves or, once the frame was handed to the wire, if the acknowledgement comes in time.
//
// Only bytes that were queued when the frame became the oldest count. So traffic that follows, on
// its own stream or on another one, cannot hide that the frame's stream hangs. Time in which nobody
// looked does not count: then this process may have stood still.
//
// Thread safety: none; the lock of the peer's link (peer_link.h) guards it.
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
  // `oldest`: the sequence of that frame, 0 if everything is acknowledged. `streams`: of those that
  // may carry it, always in the same order; a stream may be added. True: nothing moved for `limit`.
  bool is_stuck(uint64_t oldest, const StreamsBytes& streams, TimePoint now, Nanoseconds limit) {
    const bool next = oldest != oldest_;
    if (next) goals_.clear();
    oldest_ = oldest;
    uint64_t written = 0;
    for (size_t i = 0; i < streams.size(); ++i) {
      if (i == goals_.size()) goals_.push_back(streams[i].taken);
      written += std::min(streams[i].written, goals_[i]);
    }
    // One look counts for no more than a quarter of the limit.
    still_ += std::min<Nanoseconds>(now - looked_at_, limit / 4);
    looked_at_ = now;
    if (next || written != written_) still_ = Nanoseconds(0);
    written_ = written;
    return oldest != 0 && still_ >= limit;
  }

 private:
  uint64_t oldest_ = 0;
  std::vector<uint64_t> goals_;  // of each stream, what was taken when `oldest_` became it
  uint64_t written_ = 0;         // of the goals
  TimePoint looked_at_;
  Nanoseconds still_{0};  // for how long nothing moved
};

}  // namespace weft::rpc_internal
