// Maps the segments that a peer has handed over, and keeps the blocks that it lends to this
// process.
//
// A block is borrowed as long as its owner object lives. Then it is given back, exactly once. The
// peer is not trusted: each descriptor is checked against what was handed over and what is
// borrowed.
//
// A block that is held for long can be *copied out*: its pages become private memory at the same
// address, and the block goes back to the peer. The tensor there notices nothing. Until it dies,
// its range of the segment is *shadowed*: a new block there is mapped at another address.
//
// One object may serve several connections with a peer. Each block is given back through the sink
// of the connection that it came through.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: blocks may outlive this object, the connection and the peer. Then a segment stays
// mapped until its last block dies, and a segment without blocks is unmapped with this object.
// Blocking: add_segment() fills the page tables of the segment, about 0.5 ms for 1 MiB; borrow()
// does so for a block in a shadowed range. copy_out() copies. All other methods are short. None of
// them makes these system calls with a lock held.
// Bounds: Limits, kMostSegments, and 4 bytes of private memory per unit of a segment.
// Errors: InvalidArgument (the peer breaks the protocol; the text says how), ResourceExhausted (a
// limit, or the system refuses memory).
// Protocol: docs/data_plane.md, "Blocks and arenas".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/shm/blocks/block_table.h"
#include "weft/shm/sealed_memory.h"

namespace weft {

// Takes the blocks that this process gives back to a peer, for example into a ring in shared
// memory.
class ReturnSink {
 public:
  virtual ~ReturnSink() = default;
  // Called once for each lending, from any thread and without a lock of BorrowedSegments. It must
  // not block for long, because it runs where a tensor is destroyed.
  virtual void give_back(const Lending& lending) = 0;
};

class BorrowedSegments {
 public:
  static constexpr size_t kMostSegments = BlockTable::kMostSegments;
  static constexpr uint64_t kAlignment = 64;

  struct Limits {
    uint64_t kept_bytes = uint64_t{2} << 30;    // of blocks that tensors keep
    uint64_t mapped_bytes = uint64_t{8} << 30;  // of all segments that are handed over
  };
  struct Block {
    std::byte* data = nullptr;
    size_t size = 0;
    // Gives the block back when its last copy is destroyed. shared_ptr because tensors share it.
    std::shared_ptr<void> owner;
    // False: kept_bytes is used up. The caller copies the content and drops the block at once.
    bool keep = false;
  };
  struct Gauges {
    size_t segments = 0;
    size_t borrowed_blocks = 0;
    uint64_t mapped_bytes = 0;
    uint64_t borrowed_bytes = 0;
    uint64_t private_bytes = 0;     // of blocks that were copied out and whose tensors live
    uint64_t copied_out_bytes = 0;  // since the start
    uint64_t mapped_apart = 0;      // blocks since the start
  };

  explicit BorrowedSegments(Limits limits);
  ~BorrowedSegments();
  BorrowedSegments(const BorrowedSegments&) = delete;
  BorrowedSegments& operator=(const BorrowedSegments&) = delete;

  // The peer hands a segment over. A later connection hands the same ones over again: then the
  // number has the same memory, and nothing changes. InvalidArgument: it has other memory.
  absl::Status add_segment(uint32_t number, SealedMemory memory);
  // Whether add_segment() would take a segment of this size. Ask before the memory is mapped.
  absl::Status check_room(uint32_t number, uint64_t size) const;
  // The peer retires a segment: it lends no block of it any more. NotFound: it was not handed over,
  // or is retired already. InvalidArgument: a block of it is borrowed.
  absl::Status retire_segment(uint32_t number);

  // The peer lends `size` bytes. They own the units of 16 KiB in which they lie. `sink` is not
  // null, and is kept until the block dies. InvalidArgument if
  // * the segment was not handed over, the offset is no multiple of 64, the range is empty or not
  //   inside the segment;
  // * a unit of the range is borrowed already;
  // * a unit was borrowed before with this generation or a later one.
  // ResourceExhausted: a block in a shadowed range could not be mapped. It is given back.
  absl::StatusOr<Block> borrow(const Lending& lending, uint64_t size,
                               std::shared_ptr<ReturnSink> sink, TimePoint now);

  // Copies out blocks that were borrowed at `borrowed_until` or earlier, the oldest first, until
  // `bytes` are given back. Returns how many are. A block whose pages the system does not remap or
  // copy stays borrowed. Memory that a device has registered must not be copied out.
  uint64_t copy_out(uint64_t bytes, TimePoint borrowed_until);

  Gauges gauges() const;

 private:
  class State;
  class Loan;
  const std::shared_ptr<State> state_;  // shared with the blocks
};

}  // namespace weft
