// Gives lent blocks back to the process that owns them.
//
// The owner of an arena (a worker) lends blocks to a borrower (another worker of the host). There
// is one ring per pair and direction. The borrower pushes each block once when it is done with it.
// The owner takes what has come when it needs memory, so a return usually wakes nobody. The ring
// has as many slots as blocks may be lent to one borrower at a time, so an honest borrower always
// finds a free slot.
//
// Neither side believes the other: positions are kept in private memory, and a word of the other
// side is loaded once and checked. Whether the block of a return is lent, and with that generation,
// is checked by the owner's table of blocks. A peer that breaks the protocol ends the use of the
// ring: that call and all later ones return the same error.
//
// Thread safety: none. One thread at a time uses a writer, and one thread at a time uses a reader.
// Lifetime: the shared memory must outlive writer and reader. It is zeroed before they are made and
// is never constructed or destroyed. All zeros is an empty ring.
// Errors: InvalidArgument (the peer broke the protocol; the text names the word and its values).
// Protocol: docs/data_plane.md, "Rings and waking".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/shm/lending.h"

namespace weft {

struct ReturnRing {
  static constexpr uint64_t kSlots = 1024;  // the most blocks that are lent to one borrower

  // In memory: u32 segment, u32 generation, u64 offset. The words are atomic because an untrusted
  // borrower may write them while the owner reads them.
  struct Slot {
    std::atomic<uint64_t> segment_and_generation;
    std::atomic<uint64_t> offset;
  };

  // Positions count returns since the ring was made and are never reset.
  alignas(64) std::atomic<uint64_t> tail;          // the borrower's: returns that are published
  alignas(64) std::atomic<uint64_t> head;          // the owner's: returns that it has taken
  alignas(64) std::atomic<uint32_t> wants_memory;  // 1: wake the owner. The borrower sets 0
  alignas(64) Slot slots[kSlots];
};
static_assert(sizeof(ReturnRing) == 3 * 64 + ReturnRing::kSlots * 16,
              "the layout is shared between processes");

// The borrower's side.
class ReturnWriter {
 public:
  explicit ReturnWriter(ReturnRing& ring) : ring_(ring) {}
  ReturnWriter(const ReturnWriter&) = delete;
  ReturnWriter& operator=(const ReturnWriter&) = delete;

  // True: the caller must signal the owner, because it waits for memory. InvalidArgument: the
  // owner's position is impossible, or the owner has lent more blocks than there are slots.
  absl::StatusOr<bool> push(const Lending& block);

 private:
  ReturnRing& ring_;
  uint64_t tail_ = 0;
  uint64_t head_ = 0;     // what the owner had taken at the last look
  absl::Status failure_;  // the owner's violation, if there was one
};

// The owner's side.
class ReturnReader {
 public:
  explicit ReturnReader(ReturnRing& ring) : ring_(ring) {}
  ReturnReader(const ReturnReader&) = delete;
  ReturnReader& operator=(const ReturnReader&) = delete;

  // Takes the oldest returns, as many as there are and fit. Returns how many it took.
  absl::StatusOr<size_t> take(std::span<Lending> returns);

  // Asks the borrower to wake the owner at its next return. True: returns have come already, so
  // call take(). False: the next push() says that the owner must be signalled.
  absl::StatusOr<bool> request_wake();

 private:
  // Loads and checks the borrower's position.
  absl::Status look();

  ReturnRing& ring_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;     // what the borrower had published at the last look
  absl::Status failure_;  // the borrower's violation, if there was one
};

}  // namespace weft
