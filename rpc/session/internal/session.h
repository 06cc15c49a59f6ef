// The conversation between two worker incarnations, as one of them sees it. It numbers what is
// sent, keeps it until the peer has it, and lets each arriving message through exactly once.
//
// A pure state machine: no lock, clock or connection. Its driver (PeerLink) sends frames on the
// connection that there is, and sends `unacknowledged()` again on a new one.
//
// Invariants. (1) Sequences are dense from 1. (2) `accept` is true once per sequence. (3) A frame
// is retained until the peer's acknowledgement covers it. Results beyond a bound are dropped, and
// only the fact is kept: if they must be sent again, they are DataLoss (the function ran).
//
// Thread safety: none; the driver's lock guards it.
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

  // Gives the frame its number and keeps it. Returns the shared frame to send.
  FramePtr number(Frame frame);

  // False: seen before (drop it).
  bool accept(uint64_t sequence);
  // Everything up to this number has arrived here; goes out on every frame.
  uint64_t acknowledged() const { return watermark_; }
  // Frames that arrived out of order and wait for a gap to close.
  size_t gaps() const { return beyond_.size(); }

  // The peer has everything up to `sequence`. False: it claims what was never sent.
  bool on_acknowledged(uint64_t sequence);
  const std::deque<FramePtr>& unacknowledged() const { return retained_; }
  // The frames that need not be retained any more. The caller destroys them, outside its lock.
  std::vector<FramePtr> take_released() { return std::exchange(released_, {}); }
  size_t retained_bytes() const { return retained_bytes_; }
  size_t retained_call_bytes() const { return call_bytes_; }
  uint64_t last_sequence() const { return next_ - 1; }

 private:
  // Replaces the oldest retained results by what became of them, down to the bound.
  void forget_results();
  FramePtr& retained(uint64_t sequence) {
    return retained_[sequence - retained_.front()->header.sequence];
  }

  const size_t max_result_bytes_;
  uint64_t next_ = 1;
  std::deque<FramePtr> retained_;
  std::vector<FramePtr> released_;
  size_t retained_bytes_ = 0;
  std::deque<uint64_t> results_;  // retained replies whose loss would save memory
  size_t result_bytes_ = 0;       // of them
  size_t call_bytes_ = 0;         // of the retained calls
  uint64_t watermark_ = 0;
  std::set<uint64_t> beyond_;  // arrived, above the watermark + 1
};

}  // namespace weft::rpc_internal
