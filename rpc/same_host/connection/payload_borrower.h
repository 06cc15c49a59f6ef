// The receiving side of lent payloads: gets blocks that the peer of one connection lends, and gives
// each back once, when the last user of its payload is done.
//
// Thread safety: borrow(), retire() and end() are called by one thread at a time. decline() may be
// called from any thread.
// Lifetime: shared by the connection and the blocks that came through it. Blocks may outlive the
// connection.
// Blocking: borrow() maps a segment that it sees for the first time.
// Errors: InvalidArgument (the peer breaks the protocol), ResourceExhausted (no memory, or no
// address space). The connection must end then.
// Protocol: docs/data_plane.md, "Lent payloads".
#pragma once

#include <memory>

#include "absl/container/flat_hash_set.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/connection/pair_memory.h"
#include "weft/rpc/same_host/connection/ring_frames.h"
#include "weft/rpc/same_host/connection/wake_page.h"
#include "weft/shm/blocks/borrowed_segments.h"
#include "weft/shm/return_ring.h"
#include "weft/sockets/local_socket.h"

namespace weft::rpc_internal {

class PayloadBorrower final : public LentPayloads {
 public:
  // `owner`: the end of the peer. `there` wakes it. The pool is for payloads that are copied.
  PayloadBorrower(std::shared_ptr<BorrowedSegments> segments, std::shared_ptr<PairMemory> memory,
                  PairMemory::End owner, WakeSlot there, BufferPool& pool, Clock& clock);

  // The socket through which segments come. Call it before the first borrow().
  void use(LocalSocket& socket) { socket_ = &socket; }

  absl::StatusOr<Payload> borrow(const Lending& lending, size_t size) override;
  void decline(const Lending& lending) override { returns_->give_back(lending); }
  absl::Status retire(uint32_t segment) override;
  // Unmaps the segments that have no block in use. Nothing is borrowed after this.
  void end() { segments_ = nullptr; }

 private:
  // Outlives this object, because blocks do.
  class Returns final : public ReturnSink {
   public:
    Returns(std::shared_ptr<PairMemory> memory, PairMemory::End owner, WakeSlot there);
    void give_back(const Lending& lending) override ABSL_LOCKS_EXCLUDED(mutex_);

   private:
    const std::shared_ptr<PairMemory> memory_;
    const WakeSlot there_;
    Mutex mutex_;
    ReturnWriter writer_ ABSL_GUARDED_BY(mutex_);
  };

  // Takes the segments that the peer has handed over since the last call.
  absl::Status receive_segments();

  std::shared_ptr<BorrowedSegments> segments_;  // tests look into it
  const std::shared_ptr<Returns> returns_;
  BufferPool& pool_;
  Clock& clock_;
  LocalSocket* socket_ = nullptr;
  absl::flat_hash_set<uint32_t> known_;  // segments that came through this connection
};

}  // namespace weft::rpc_internal
