// Allocates memory that all ranks of the host can map, and maps such memory of the other ranks.
// Tensors that lie there are reduced in place, without a copy.
//
// A rank makes arenas as it needs them and sends each to all other ranks. It keeps them, and uses
// their blocks again and again. So each page is touched for the first time only once.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: a block may outlive this object. Its arena lives as long as any of its blocks.
// Blocking: allocate(), if it makes an arena: it writes the pages and sends a message to each rank.
// Errors: ResourceExhausted (kMostArenas, or no memory), InvalidArgument (a rank names memory that
// it never sent), and those of shm/. allocate() names the other rank. The caller of locate() adds
// the rank; there Unavailable means that this rank is gone.
// Protocol: docs/same_host_collectives.md, "Arenas".
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/comm/same_host/collective_core.h"
#include "weft/comm/same_host/mesh.h"
#include "weft/comm/same_host/operation.h"
#include "weft/shm/sealed_memory.h"

namespace weft::comm_internal {

class Arenas : public ArenaDirectory {
 public:
  static constexpr size_t kArenaBytes = size_t{64} << 20;  // least size of an arena
  static constexpr uint32_t kMostArenas = 256;             // of one rank
  static constexpr size_t kAlignment = 64;

  // A piece of an arena. It goes back to the arena when the last copy of `memory` is destroyed.
  struct Block {
    std::byte* data = nullptr;
    std::shared_ptr<void> memory;
  };

  explicit Arenas(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)), theirs_(mesh_->size()) {}

  absl::StatusOr<Block> allocate(size_t size, std::chrono::steady_clock::time_point deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Where [data, data + size) lies, if all of it is in one arena of this rank.
  std::optional<Operation::Resident> find(const std::byte* data, size_t size) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::byte*> locate(int rank, uint32_t arena, uint64_t offset,
                                    uint64_t size) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One arena of this rank. It joins neighbouring free pieces when a block comes back.
  class Arena {
   public:
    explicit Arena(SealedMemory memory) : memory_(std::move(memory)) { free_[0] = memory_.size(); }
    const SealedMemory& memory() const { return memory_; }
    std::optional<size_t> take(size_t size) ABSL_LOCKS_EXCLUDED(mutex_);
    void give_back(size_t offset, size_t size) ABSL_LOCKS_EXCLUDED(mutex_);

   private:
    const SealedMemory memory_;
    Mutex mutex_;
    std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);  // size of each free piece by offset
  };

  absl::Status receive_from(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status about(int rank, const absl::Status& status) const;
  static Block block_of(const std::shared_ptr<Arena>& arena, size_t offset, size_t size);

  const std::shared_ptr<Mesh> mesh_;  // shared with the group

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<Arena>> mine_ ABSL_GUARDED_BY(mutex_);       // shared with blocks
  std::vector<std::vector<SealedMemory>> theirs_ ABSL_GUARDED_BY(mutex_);  // by rank
};

}  // namespace weft::comm_internal
