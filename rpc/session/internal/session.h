// Makes delivery between two incarnations exactly once.
//
// It numbers the frames that this worker sends, and retains them until the peer has them. It lets
// each arriving frame through exactly once. It is a pure core without lock, clock or connection.
// Its driver sends frames on the connection that there is. On a new connection the driver sends
// `unacknowledged()` again.
//
// Three invariants hold.
//
// * Sequences are dense and begin with 1.
// * The method `accept` returns true once per sequence.
// * A retained frame is dropped only when the peer's acknowledgement covers it, or the peer is gone
//   (`retain_nothing`). Of large results,
//   only a bounded number of bytes is retained. Above that, an error replaces the oldest result. If
//   it must be sent again, the caller gets this error: DataLoss, and the function ran.
//
// Thread safety: none; the driver's lock guards it.
// Protocol: proto/weft.proto, "Sessions".
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "weft/rpc/transport/frame.h"

namespace weft::rpc_internal {

class SessionCore {
 public:
  explicit SessionCore(size_t max_result_bytes = size_t{64} << 20)
      : max_result_bytes_(max_result_bytes) {}

  // Gives the frame its number and retains it. Returns the shared frame to send.
  FramePtr number(Frame frame);

  // False: a frame with this number came before, so drop this one.
  bool accept(uint64_t sequence);
  // All frames up to this number have arrived here. Every outgoing frame carries it.
  uint64_t acknowledged() const { return watermark_; }
  // The number of frames that arrived out of order, beyond a gap.
  size_t gaps() const { return beyond_.size(); }

  // The peer has all frames up to `sequence`. False: it acknowledges a frame that was never sent.
  bool on_acknowledged(uint64_t sequence);
  const std::deque<FramePtr>& unacknowledged() const { return retained_; }
  // The peer is gone, and no frame will be sent again. take_released() returns all of them.
  void retain_nothing();
  // Returns the frames that are not retained any more. So the caller can destroy them outside its
  // lock.
  std::vector<FramePtr> take_released() { return std::exchange(released_, {}); }
  size_t retained_bytes() const { return retained_bytes_; }
  size_t retained_call_bytes() const { return call_bytes_; }
  uint64_t last_sequence() const { return next_ - 1; }

 private:
  // Replaces the oldest retained results by errors that say so, until the rest is within the bound.
  void forget_results();
  FramePtr& retained(uint64_t sequence) {
    return retained_[sequence - retained_.front()->header.sequence];
  }

  const size_t max_result_bytes_;
  uint64_t next_ = 1;
  std::deque<FramePtr> retained_;
  std::vector<FramePtr> released_;
  size_t retained_bytes_ = 0;
  std::deque<uint64_t> results_;  // sequences of the retained large results
  size_t result_bytes_ = 0;       // cost of these results
  size_t call_bytes_ = 0;         // of the retained calls
  uint64_t watermark_ = 0;
  std::set<uint64_t> beyond_;  // sequences that arrived beyond a gap, so above watermark_ + 1
};

}  // namespace weft::rpc_internal
