// The shared memory of one connection: for each direction a ring of frames, and a ring in which the
// receiver gives lent blocks back.
//
// The dialling end makes it and sends its descriptor with the handshake.
//
// Thread safety: none of its own; see shm/byte_ring.h and shm/return_ring.h.
// Lifetime: a value that can be moved. The memory lives until both ends have dropped it.
// Errors: those of shm/sealed_memory.h.
// Protocol: docs/data_plane.md, "Connections".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "weft/shm/byte_ring.h"
#include "weft/shm/return_ring.h"
#include "weft/shm/sealed_memory.h"

namespace weft::rpc_internal {

class PairMemory {
 public:
  // The end whose frames a ring carries.
  enum End { kDialler = 0, kAcceptor = 1 };

  // `ring_bytes`: the size of each of the two rings of frames (shm/byte_ring.h).
  static absl::StatusOr<PairMemory> create(size_t ring_bytes);
  static absl::StatusOr<PairMemory> adopt(FileDescriptor descriptor, size_t ring_bytes);

  RingHeader& ring(End sender) { return memory_of(sender).ring; }
  std::span<std::byte> ring_data(End sender) {
    return {memory_.data() + kPage * 2 * kEndPages + sender * ring_bytes_, ring_bytes_};
  }
  // Blocks that `owner` has lent, on their way back to it.
  ReturnRing& returns(End owner) { return memory_of(owner).returns; }
  // A number that only a process can know that maps this memory.
  std::atomic<uint64_t>& nonce() { return memory_of(kDialler).nonce; }

  int descriptor() const { return memory_.descriptor(); }
  size_t ring_bytes() const { return ring_bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  struct EndMemory {
    RingHeader ring;
    ReturnRing returns;
    alignas(64) std::atomic<uint64_t> nonce;
  };
  static constexpr size_t kEndPages = (sizeof(EndMemory) + kPage - 1) / kPage;

  PairMemory(SealedMemory memory, size_t ring_bytes)
      : memory_(std::move(memory)), ring_bytes_(ring_bytes) {}
  // In whole pages, as SealedMemory has them.
  static size_t whole(size_t ring_bytes) {
    return kPage * (2 * kEndPages + (2 * ring_bytes + kPage - 1) / kPage);
  }
  EndMemory& memory_of(End end) {
    return *reinterpret_cast<EndMemory*>(memory_.data() + kPage * kEndPages * end);
  }

  SealedMemory memory_;
  size_t ring_bytes_;
};

inline absl::StatusOr<PairMemory> PairMemory::create(size_t ring_bytes) {
  absl::StatusOr<SealedMemory> memory = SealedMemory::create("weft-pair", whole(ring_bytes));
  if (!memory.ok()) return memory.status();
  return PairMemory(*std::move(memory), ring_bytes);
}

inline absl::StatusOr<PairMemory> PairMemory::adopt(FileDescriptor descriptor, size_t ring_bytes) {
  absl::StatusOr<SealedMemory> memory =
      SealedMemory::adopt(std::move(descriptor), whole(ring_bytes));
  if (!memory.ok()) return memory.status();
  return PairMemory(*std::move(memory), ring_bytes);
}

}  // namespace weft::rpc_internal
