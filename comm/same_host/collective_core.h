// Moves the operations of one rank from phase to phase, one after the other, on the control blocks
// of all ranks.
//
// Pure: it does what can be done now, with no thread, lock or clock. It waits for nothing: goal()
// says what the next phase needs from another rank.
//
// Thread safety: none. The lock of CollectiveGroup guards it. Other ranks read what it publishes.
// Lifetime: the mesh and the arenas must outlive it.
// Errors: after the first one it can do nothing more, and the caller calls give_up().
//   InvalidArgument: ranks called different operations, or name memory that does not exist.
//   Unavailable: another rank has given up, so its data may no longer be its contribution.
//   Internal: a rank has written damaged data.
//   Others: those of Operation::plan and of ArenaDirectory.
// Protocol: docs/same_host_collectives.md, "An operation".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/comm/same_host/control_block.h"
#include "weft/comm/same_host/mesh.h"
#include "weft/comm/same_host/operation.h"

namespace weft::comm_internal {

// Finds memory of ranks that lies outside their control blocks.
class ArenaDirectory {
 public:
  virtual ~ArenaDirectory() = default;
  // The address of [offset, offset + size) of an arena of that rank. InvalidArgument: there is no
  // such memory.
  virtual absl::StatusOr<std::byte*> locate(int rank, uint32_t arena, uint64_t offset,
                                            uint64_t size) = 0;
};

class CollectiveCore {
 public:
  enum class Progress {
    kNone,   // nothing can be done before the goal is reached
    kMoved,  // something was done
    kDone,   // the operation is done; the next call begins the next one
  };
  // The counter of another rank that must reach `number` before the operation can go on.
  struct Goal {
    const Counter* counter = nullptr;  // null: it waits for nothing
    uint32_t number = 0;
    bool reached() const {
      return counter != nullptr && comm_internal::reached(counter->load(), number);
    }
  };
  // Counts what this rank has done so far.
  struct Counts {
    uint64_t in_slots = 0;  // operations, by where the data lay
    uint64_t in_arenas = 0;
    uint64_t in_pieces = 0;
    uint64_t copied_bytes = 0;  // into slots and staging buffers
    uint64_t chunks = 0;        // that this rank added up, in arenas
  };

  // If `arenas` is null, no rank's data may lie in an arena.
  CollectiveCore(Mesh& mesh, ArenaDirectory* arenas);

  // Does what can be done now for the current operation. The caller gives the same operation until
  // it is done. Throws what the operation's functions throw, and std::bad_alloc.
  absl::StatusOr<Progress> advance(Operation& operation);
  // Whether the next call of advance() may take long.
  bool is_long() const;

  const Goal& goal() const { return goal_; }
  // Whether the operation waits for this rank. It may wait for more ranks than the one of goal().
  bool waits_for(int rank) const;
  // Tells the other ranks that this one does nothing more, and why.
  void give_up(absl::string_view reason);

  uint32_t done() const { return done_; }    // number of operations that are done
  uint64_t moves() const { return moves_; }  // grows whenever a counter of this rank moves
  const Counts& counts() const { return counts_; }

 private:
  enum class Phase { kPublish, kMeet, kSlots, kArenas, kLeaveArenas, kPieces };

  static constexpr uint64_t kMostChunkBytes = uint64_t{256} << 10;
  static constexpr uint64_t kPageBytes = 4096;                // chunks are multiples of it
  static constexpr uint64_t kChunksEach = 4;                  // per part, if the part is large
  static constexpr uint64_t kLargeBytes = uint64_t{1} << 20;  // is_long(): more than this
  static constexpr int kAllAddUp = 3;  // with more ranks, each adds up only a part of a piece

  int rank() const { return mesh_.rank(); }
  int size() const { return mesh_.size(); }

  Progress publish(const Operation& operation);
  absl::StatusOr<Progress> meet(Operation& operation);
  Progress take_slots(const Operation& operation);
  absl::StatusOr<Progress> take_arenas(const Operation& operation);
  Progress leave_arenas();
  Progress move_pieces(const Operation& operation);
  Progress finish();

  absl::Status plan_pulls(Operation& operation) const;
  absl::Status place_pulls(Operation& operation) const;
  absl::Status find_contributions();
  absl::Status all_are_well() const;

  absl::Status add_chunks(const Operation& operation);
  absl::Status add_chunks_of(const Operation& operation, int owner);
  void take_whole(const Operation& operation);
  // These two return false if nothing can be done.
  bool stage_piece(const Operation& operation);
  bool take_piece(const Operation& operation);
  bool add_up_piece(const Operation& operation, uint32_t piece);
  void pull_piece(const Operation& operation, uint32_t piece) const;
  void sum(const Operation& operation, uint64_t base, uint64_t first, uint64_t count,
           std::span<std::byte* const> targets);
  void sum_to_parts(const Operation& operation, uint64_t first, uint64_t count);

  std::byte* stage_of(int rank, uint32_t piece) const {
    return mesh_.block(rank).stages[piece % kStages];
  }
  // The index of the first of `count` elements that belongs to the part of a rank.
  uint64_t part_begin(uint64_t count, int rank) const {
    return count * static_cast<uint64_t>(rank) / static_cast<uint64_t>(size());
  }
  // Whether every other rank's counter has reached `number`. If not, this becomes the goal.
  bool all_reached(Counter ControlBlock::*counter, uint32_t number);
  void move(Counter ControlBlock::*counter, uint32_t next);

  Mesh& mesh_;
  ArenaDirectory* const arenas_;

  uint32_t done_ = 0;
  uint32_t pieces_before_ = 0;  // number of pieces of the operations that are done
  uint64_t moves_ = 0;
  Counts counts_;
  Goal goal_;
  // The counter that all ranks must bring to goal_.number; null: none.
  Counter ControlBlock::*awaited_ = nullptr;

  // ---- state of the current operation
  Phase phase_ = Phase::kPublish;
  std::vector<Record> records_;      // by rank, private copies
  std::vector<std::byte*> sources_;  // by rank, where to read its data
  uint64_t largest_ = 0;             // bytes of the largest contribution that is in no slot
  uint64_t pieces_ = 0;              // number of its pieces
  uint64_t pieces_staged_ = 0;
  uint64_t pieces_taken_ = 0;
  bool piece_reduced_ = false;

  // ---- buffers; kept so that their memory is used again
  std::vector<const std::byte*> shifted_;
  std::vector<std::byte*> targets_;
  std::vector<std::byte> scratch_;
};

}  // namespace weft::comm_internal
