// Keeps an owner's private table of the blocks in its shared segments: which are free, which are
// held, and which are lent to a peer. It is a pure core: it never touches the memory itself.
//
// A block is FREE, HELD (the owner has references to it) or LENT (a peer has it; the owner may have
// references as well). A lending has a generation. It is higher than that of each earlier lending
// from the same segment, so a return of an earlier lending never frees a later one.
//
// Sizes: a block has whole units of 16 KiB. Above 8 units there are eight sizes per doubling, so a
// block is at most size / 8 + 16 KiB larger than what was asked for. A new block is the front of
// the free run with the lowest address that is large enough (first fit), and free neighbours merge.
//
// Fragmentation: allocate() refuses a size only if every free run is smaller than its block. So
//   free bytes <= (number of blocks in use + number of segments) * (size of the block - 16 KiB).
// First fit keeps what is in use together at low addresses. Best fit may need as much memory as the
// blocks in use times the largest size (Knuth, TAOCP 2.5, exercise 42). A stack of free blocks per
// size never gives the memory of one size to another one. Also, first fit uses few pages again and
// again, so they are in the caches, and it leaves the newest segments idle, so they can be freed.
//
// Thread safety: none. The caller guards it with a lock and passes the time in.
// Bounds: kMostSegments, kMostLentToPeer, and one entry per block, so at most one per unit.
// Errors: see each method. A peer's input never aborts. An owner that drops a reference which it
// does not have aborts the process.
// Protocol: docs/data_plane.md, "Blocks and arenas".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/shm/lending.h"

namespace weft {

// A block that is in use. The name is valid until the block is free.
struct BlockId {
  uint32_t segment = 0;
  uint64_t offset = 0;  // of its first byte in the segment

  std::string to_string() const;
  friend constexpr auto operator<=>(const BlockId&, const BlockId&) = default;
};

// Identifies the holder of lent blocks: one connection to one incarnation of a worker. A process
// may claim to be a worker that it is not. So no connection returns the blocks of another one, and
// the death of the process behind one frees nothing that another process has.
struct BorrowerId {
  constexpr BorrowerId() = default;
  constexpr BorrowerId(WorkerId of, uint64_t through = 0) : worker(of), connection(through) {}

  WorkerId worker;
  uint64_t connection = 0;  // a number that the owner gives

  std::string to_string() const;
  friend constexpr auto operator<=>(const BorrowerId&, const BorrowerId&) = default;
};

class BlockTable {
 public:
  static constexpr uint64_t kUnit = uint64_t{16} << 10;
  static constexpr uint64_t kLargestSegment = uint64_t{16} << 30;
  static constexpr size_t kMostSegments = 1024;
  // A return ring has as many slots, so a return never finds it full.
  static constexpr size_t kMostLentToPeer = 1024;

  struct Found {
    BlockId block;
    uint64_t size = 0;  // of the whole block
  };
  struct Borrower {
    BorrowerId peer;
    size_t blocks = 0;
    uint64_t bytes = 0;
    TimePoint oldest_since;  // when the block that it has longest was lent
  };
  struct Gauges {
    size_t segments = 0;
    size_t held_blocks = 0;  // not lent
    size_t lent_blocks = 0;
    uint64_t bytes = 0;  // of all segments: the sum of the three below
    uint64_t free_bytes = 0;
    uint64_t held_bytes = 0;
    uint64_t lent_bytes = 0;
  };

  // After `generations` lendings, blocks of a segment cannot be lent any more, and none is
  // allocated there, so that the owner can drop the segment.
  explicit BlockTable(uint32_t generations = std::numeric_limits<uint32_t>::max())
      : generations_(generations) {}

  // The size of the block for `size` bytes. nullopt: more than kLargestSegment.
  static std::optional<uint64_t> block_size(uint64_t size);

  // Adds a free segment. A number is used once: it must be above all earlier ones. `size` is a
  // multiple of kUnit. InvalidArgument, or ResourceExhausted (kMostSegments).
  absl::Status add_segment(uint32_t number, uint64_t size, TimePoint now);

  // A block that is HELD with one reference. nullopt: no free run is large enough.
  std::optional<Found> allocate(uint64_t size);
  void add_reference(BlockId block);
  void drop_reference(BlockId block, TimePoint now);

  // The block in use (HELD, or LENT with references) that contains a byte of a segment.
  std::optional<Found> find(uint32_t segment, uint64_t offset) const;

  // Lends a block that the owner holds, and returns the generation. FailedPrecondition: it is lent
  // already, or nobody holds it. ResourceExhausted: the peer has kMostLentToPeer blocks, or the
  // segment has no generation left. If the descriptor cannot be published, the owner undoes the
  // lending with returned().
  absl::StatusOr<uint32_t> lend(BlockId block, BorrowerId peer, TimePoint now);

  // A peer gave a block back. InvalidArgument says why it cannot have this block: it was given back
  // already, another peer has it, or it was never lent. Nothing changes then.
  absl::Status returned(BorrowerId peer, const Lending& lending, TimePoint now);
  // The same, but the caller gets a reference: the peer sent the block home with new content.
  absl::StatusOr<Found> taken_home(BorrowerId peer, const Lending& lending);
  // The process of the peer is gone, and nothing of it can come any more. Takes all its blocks back
  // and returns how many.
  size_t peer_gone(BorrowerId peer, TimePoint now);

  // The blocks that a peer has. nullopt: it has none.
  std::optional<Borrower> borrower(BorrowerId peer) const;
  // The peer that has most bytes.
  std::optional<Borrower> largest_borrower() const;

  // Segments that have had no block in use since `since` or before, and those that are idle and
  // have no generation left.
  std::vector<uint32_t> idle_segments(TimePoint since) const;
  bool segment_is_idle(uint32_t number) const;
  // NotFound, or FailedPrecondition: a block of it is in use.
  absl::Status drop_segment(uint32_t number);

  Gauges gauges() const { return gauges_; }

 private:
  // Neighbouring pieces tile a segment. No two neighbours are free.
  struct Piece {
    uint32_t units = 0;
    bool free = true;
    uint32_t references = 0;
    uint32_t generation = 0;  // 0: not lent
    BorrowerId borrower{};    // if it is lent
    uint64_t serial = 0;      // of the lending
  };
  using Pieces = std::map<uint32_t, Piece>;  // by the first unit
  struct Segment {
    uint32_t units = 0;
    uint32_t used = 0;  // units in use
    uint32_t generation = 0;
    TimePoint idle_since;
    Pieces pieces;
  };
  using Segments = std::map<uint32_t, Segment>;
  using Run = std::pair<uint32_t, uint32_t>;  // segment, first unit: in the order of addresses
  struct Lent {
    BlockId block;
    TimePoint since;
  };
  struct Loans {
    uint64_t bytes = 0;
    std::map<uint64_t, Lent> by_serial;  // the oldest first
  };
  struct Spot {
    Segments::iterator segment;
    Pieces::iterator piece;
  };

  // 7 sizes below 8 units, and 8 for each doubling up to kLargestSegment.
  static constexpr size_t kClasses = 144;

  static size_t class_of(uint64_t units);
  std::optional<Spot> spot_of(uint32_t segment, uint64_t offset);
  Spot block_at(BlockId block);  // aborts if there is none
  absl::StatusOr<Spot> lent_at(BorrowerId peer, const Lending& lending);
  void end_lending(const Spot& spot, TimePoint now);
  void set_free(Spot spot, TimePoint now);
  void list_run(uint32_t segment, uint32_t first, uint32_t units);
  void unlist_run(uint32_t segment, uint32_t first, uint32_t units);
  bool spent(const Segment& segment) const { return segment.generation == generations_; }
  static Borrower report(BorrowerId peer, const Loans& loans);

  const uint32_t generations_;
  Segments segments_;
  uint32_t last_number_ = 0;
  // Free runs by the class of their size, rounded down. Blocks have sizes of classes, so a run fits
  // exactly if its class is not below that of the block.
  std::array<std::set<Run>, kClasses> runs_;
  std::map<BorrowerId, Loans> loans_;  // only peers that have a block
  uint64_t last_serial_ = 0;
  Gauges gauges_;
};

}  // namespace weft
