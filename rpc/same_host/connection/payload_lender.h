// The sending side of lent payloads: copies large payloads into blocks of this worker's arena, and
// lends the blocks to the peer of one connection. A payload that the frame gives away may be in a
// block already: Connection::copy_payload has copied it there, or Transport::shared_memory has made
// it. Such a block is lent as it is.
//
// The peer gives blocks back through the return ring of the connection's memory. It may do so long
// after the connection is closed, because its tensors live in the blocks. So the arena keeps this
// object until all its blocks are back or the peer's process is gone.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared by the connection and the arena. forget() or peer_gone() ends the arena's part.
// Blocking: lend() copies, and hands a new segment over to the peer. It lets other threads run
// after each MiB. All other methods are short.
// Errors: lend() lends all or nothing. Nothing is not an error: the bytes then travel in the ring.
// Protocol: docs/data_plane.md, "Lent payloads".
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/connection/pair_memory.h"
#include "weft/rpc/same_host/connection/ring_frames.h"
#include "weft/rpc/same_host/connection/wake_page.h"
#include "weft/shm/blocks/block_arena.h"
#include "weft/shm/return_ring.h"
#include "weft/sockets/local_socket.h"

namespace weft::rpc_internal {

class PayloadLender final : public ReturnSource,
                            public std::enable_shared_from_this<PayloadLender> {
 public:
  // Smaller payloads travel in the ring.
  static constexpr size_t kLeast = BlockTable::kUnit;

  // `peer`: the worker; this object gives the connection its number. `end`: of this side. `here` is
  // signalled when the peer breaks the protocol.
  PayloadLender(std::shared_ptr<BlockArena> arena, WorkerId peer,
                std::shared_ptr<PairMemory> memory, PairMemory::End end, WakeSlot here);

  // Call it before the first lend(), and only once.
  void begin() { arena_->add_source(peer_, shared_from_this()); }

  // Whether lend() can help: the frame is too large for a record, and is not if its large payloads
  // are lent.
  static bool worth_while(const Frame& frame, size_t ring_bytes) {
    return !RingFrameWriter::is_small(frame, ring_bytes) &&
           RingFrameWriter::lent_fits(frame, kLeast, ring_bytes);
  }
  // Copies the content of a payload that is sent later, so that lend() need not copy it. nullopt:
  // there is no block for it.
  std::optional<Payload> copy(const std::byte* data, size_t size);
  // The caller publishes the result or takes it back. Empty: nothing is lent.
  Lendings lend(const Frame& frame, LocalSocket& socket);
  // Ends lendings that the peer has not seen and never will.
  void take_back(std::span<const Lending> lendings);
  // Looks for segments that the arena has dropped since they were handed over. lend() does it when
  // it hands a new one over, so that the peer does not map more than the arena has.
  void find_dropped() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns what was found since the last call. The peer must be told of these segments.
  std::vector<uint32_t> take_dropped() ABSL_LOCKS_EXCLUDED(mutex_);

  // The connection is closed at both ends. `unread`: see RingFrameWriter::take_unread.
  void settle(std::span<const Lending> unread);
  // After settle(): the next block that comes back signals `here`.
  void ask_for_returns() ABSL_LOCKS_EXCLUDED(mutex_);
  // The process of the peer is gone.
  void peer_gone();
  // Whether the peer has no block of this connection any more. The arena's table says so, because a
  // peer can put any number of returns into its ring.
  bool all_returned() const { return !arena_->borrower(peer_).has_value(); }
  // All blocks are back, and the arena needs this object no more.
  void forget() { arena_->remove_source(this); }

  // OK, or how the peer has broken the protocol.
  absl::Status violation() const ABSL_LOCKS_EXCLUDED(mutex_);

  // ReturnSource
  void drain(std::vector<Lending>& returned) override ABSL_LOCKS_EXCLUDED(mutex_);
  void on_violation(const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Lends one payload. Copies it into a block first, unless it is given and is
  // the front of a block that is not lent.
  // Generation 0: there is no block.
  Lending lend_one(const Payload& payload, LocalSocket& socket);
  absl::StatusOr<Lending> lend_block(BlockId block, LocalSocket& socket);
  bool hand_over(uint32_t segment, LocalSocket& socket) ABSL_LOCKS_EXCLUDED(mutex_);
  void collect_dropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<BlockArena> arena_;  // blocks and connections may outlive the transport
  const BorrowerId peer_;
  const std::shared_ptr<PairMemory> memory_;  // the returns lie in it
  const WakeSlot here_;
  std::atomic<bool> gone_{false};  // the process of the peer: the arena takes no returns any more

  mutable Mutex mutex_;
  ReturnReader returns_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint32_t> handed_over_ ABSL_GUARDED_BY(mutex_);  // segments
  std::vector<uint32_t> dropped_ ABSL_GUARDED_BY(mutex_);
  absl::Status violation_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc_internal
