// The wake bits of a worker, in memory that its peers map.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the connections of a worker. The memory lives until the last process has
// dropped it.
// Errors: those of shm/sealed_memory.h.
// Protocol: docs/data_plane.md, "Looking and sleeping".
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "weft/base/status.h"
#include "weft/shm/sealed_memory.h"
#include "weft/shm/wake_bits.h"

namespace weft::rpc_internal {

class WakePage {
 public:
  static absl::StatusOr<std::shared_ptr<WakePage>> create() {
    WEFT_ASSIGN_OR_RETURN(SealedMemory memory, SealedMemory::create("weft-wake", kBytes));
    return std::shared_ptr<WakePage>(new WakePage(std::move(memory)));
  }
  static absl::StatusOr<std::shared_ptr<WakePage>> adopt(FileDescriptor descriptor) {
    WEFT_ASSIGN_OR_RETURN(SealedMemory memory, SealedMemory::adopt(std::move(descriptor), kBytes));
    return std::shared_ptr<WakePage>(new WakePage(std::move(memory)));
  }

  WakeBits& bits() const { return *reinterpret_cast<WakeBits*>(memory_.data()); }
  int descriptor() const { return memory_.descriptor(); }

 private:
  static constexpr size_t kBytes = 4096;
  explicit WakePage(SealedMemory memory) : memory_(std::move(memory)) {}

  SealedMemory memory_;
};

// A wake bit of one worker.
struct WakeSlot {
  std::shared_ptr<WakePage> page;  // shared by the connections of this worker
  uint32_t slot = 0;

  void signal() const { page->bits().signal(slot); }
};

}  // namespace weft::rpc_internal
