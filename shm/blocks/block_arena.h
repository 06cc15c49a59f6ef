// Gives memory for payloads that peers of the same host can map, and lends its blocks to them.
//
// The memory lies in sealed segments. The first has 4 MiB. Each further segment doubles what there
// is, up to 256 MiB a segment, or is as large as the block needs. All segments together stay below
// a cap. Which block is where, and the bound of fragmentation, is the matter of BlockTable.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: a block may outlive the arena, and then keeps the memory mapped. Blocks that are lent
// at that moment cannot come back any more. A ReturnSource lives until it is removed, and until
// calls on other threads that still use it return.
// Blocking: allocate() may create a segment, at about 0.7 ms for 1 MiB. The lock is not held
// meanwhile, so a thread that finds a free block does not wait. A thread that finds none waits for
// the segment under creation. All other methods are short.
// Errors: no block is not an error: the caller then sends a copy by another way. returned() and
// taken_home() refuse what is not lent: InvalidArgument.
// Protocol: docs/data_plane.md, "Blocks and arenas".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/base/ids.h"
#include "weft/shm/blocks/block_table.h"
#include "weft/shm/sealed_memory.h"

namespace weft {

// Tells the arena what a peer has given back, for example through a ring in shared memory. The
// arena calls it without a lock, from any thread, also from several threads at the same time.
class ReturnSource {
 public:
  virtual ~ReturnSource() = default;
  // Appends what has come since the last call. It must not block.
  virtual void drain(std::vector<Lending>& returned) = 0;
  // The peer gave back what it does not have. It breaks the protocol.
  virtual void on_violation(const absl::Status& why) = 0;
};

class BlockArena {
 public:
  static constexpr uint64_t kFirstSegment = uint64_t{4} << 20;
  static constexpr uint64_t kLargestGrowth = uint64_t{256} << 20;
  // The arena takes what has been given back when it has allocated this many bytes since the last
  // time. Then a stream of tensors uses the same warm pages again.
  static constexpr uint64_t kDrainEvery = uint64_t{1} << 20;

  using CreateMemory = std::function<absl::StatusOr<SealedMemory>(const std::string&, size_t)>;
  struct Options {
    uint64_t cap = uint64_t{4} << 30;            // bytes of all segments
    std::string label = "weft-arena";            // shown in /proc/PID/maps
    CreateMemory create = SealedMemory::create;  // tests make it fail or wait
  };

  struct Block {
    std::byte* data = nullptr;  // aligned to 16 KiB
    size_t size = 0;            // as asked for
    BlockId id;
    // One reference to the block. shared_ptr because tensors and frames share it.
    std::shared_ptr<void> owner;
  };
  struct Resident {
    BlockId id;
    uint64_t offset = 0;  // in the segment
  };
  struct Statistics {
    BlockTable::Gauges blocks;
    uint64_t created = 0;            // segments
    uint64_t retired = 0;            // segments
    uint64_t refused_at_cap = 0;     // allocations without a block
    uint64_t refused_ahead = 0;      // allocations by allocate_ahead() beyond half of the cap
    uint64_t refused_by_system = 0;  // allocations without a block: no memory, no descriptor
    uint64_t returned = 0;           // blocks that came back, or that a dead peer had
    uint64_t violations = 0;         // of drained returns
  };

  explicit BlockArena(Options options);
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  // A block of at least `size` bytes with undefined content. nullopt: the cap is reached, or the
  // system refuses memory.
  std::optional<Block> allocate(size_t size);
  // The same, but it never creates a segment.
  std::optional<Block> allocate_without_growth(size_t size);
  // A block for content that may be sent much later. nullopt also if the blocks that are held would
  // then have more than half of the cap.
  std::optional<Block> allocate_ahead(size_t size);

  // Where [data, data + size) lies, if one block contains all of it. The caller holds the block,
  // for example through a tensor there. Takes less than 0.1 us.
  std::optional<Resident> find(const void* data, size_t size) const;
  // One more reference to a block that the caller holds.
  std::shared_ptr<void> hold(BlockId block);

  // See BlockTable. The transport publishes the descriptor afterwards.
  absl::StatusOr<uint32_t> lend(BlockId block, BorrowerId peer);
  absl::Status returned(BorrowerId peer, const Lending& lending);
  absl::StatusOr<Block> taken_home(BorrowerId peer, const Lending& lending);
  // Call it only if the process of the peer is gone. Removes its sources as well.
  size_t peer_gone(BorrowerId peer);
  std::optional<BlockTable::Borrower> borrower(BorrowerId peer) const;
  std::optional<BlockTable::Borrower> largest_borrower() const;

  // shared_ptr because a drain on another thread may still use a source that was removed.
  void add_source(BorrowerId peer, std::shared_ptr<ReturnSource> source);
  void remove_source(const ReturnSource* source);
  void remove_all_sources();
  void drain();

  // The memory of a segment, for handing it over. Null: there is no such segment any more.
  std::shared_ptr<const SealedMemory> segment(uint32_t number) const;
  // Frees segments of which no block has been in use since `since`. Call it now and then. The owner
  // tells the peers that have mapped a segment when segment() does not find it any more.
  void retire_idle(TimePoint since);

  Statistics statistics() const;

 private:
  class State;
  const std::shared_ptr<State> state_;  // shared with the blocks
};

}  // namespace weft
