// One end of a connection between two workers of one host.
//
// Threads that send write into the ring of this direction themselves, under the connection's lock.
// The serving thread of this worker does everything else in visit(): it reads the other ring,
// writes what found no room before, and reports the end. A caller that waits may read too
// (reading.h). A connection asks for a visit by setting its own bit in the wake bits of this
// worker. The far end sets the same bit when it has written.
//
// Large payloads are copied into lent blocks, by the thread that sends and without a lock. If there
// is no block, their bytes go through the ring.
//
// Thread safety: all methods of Connection may be called from any thread. One thread at a time
// calls visit() or read(), and only the serving thread calls act_on().
// Lifetime: shared by the transport and its user. It keeps the mappings that it uses.
// Blocking: send() copies large payloads. read_reply() waits for `result`. Nothing else waits for
// the far end.
// Protocol: docs/data_plane.md, "Connections".
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/connection/pair_memory.h"
#include "weft/rpc/same_host/connection/payload_borrower.h"
#include "weft/rpc/same_host/connection/payload_lender.h"
#include "weft/rpc/same_host/connection/reading.h"
#include "weft/rpc/same_host/connection/ring_frames.h"
#include "weft/rpc/same_host/connection/wake_page.h"
#include "weft/rpc/transport/transport.h"
#include "weft/sockets/local_socket.h"

namespace weft::rpc_internal {

class SameHostConnection final : public Connection {
 public:
  struct Parts {
    std::shared_ptr<PairMemory> memory;  // shared with lender and borrower
    PairMemory::End end;                 // of this side
    LocalSocket socket;                  // shows when the far end closes it or dies
    WakeSlot here;
    WakeSlot there;
    PeerIdentity peer;
    std::shared_ptr<PayloadLender> lender;  // shared with the arena
    std::unique_ptr<PayloadBorrower> borrower;
    std::shared_ptr<Reading> reading = {};  // shared by the connections of this worker, or null
  };
  SameHostConnection(Parts parts, BufferPool& pool, const TransportLimits& limits);

  bool send(FrameBatch frames) override ABSL_LOCKS_EXCLUDED(mutex_);
  using Connection::send;
  void close() override ABSL_LOCKS_EXCLUDED(mutex_);
  void abort(absl::Status reason) override ABSL_LOCKS_EXCLUDED(mutex_);
  const PeerIdentity& peer() const override { return parts_.peer; }
  StreamsBytes streams_of(const Frame& frame) const override ABSL_LOCKS_EXCLUDED(mutex_);
  // Into a block of this worker's arena, if the payload does not fit a record of the ring.
  std::optional<Payload> copy_payload(const std::byte* data, size_t size) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool read_reply(uint64_t call, async_internal::FutureCore& result, AcceptReply accept) override;

  const WakeSlot& here() const { return parts_.here; }
  const LocalSocket& socket() const { return parts_.socket; }
  // The far end has shut its socket down or died. Its earlier frames still count, and it reads
  // nothing any more.
  void far_end_gone();
  // Takes the blocks back that the far end has never seen. Call it when visit() has reported the
  // end and far_end_gone() was called.
  void settle() ABSL_LOCKS_EXCLUDED(mutex_);
  PayloadLender& lender() const { return *parts_.lender; }
  // Tells the far end which segments this worker's arena has dropped.
  void tell_dropped() ABSL_LOCKS_EXCLUDED(mutex_);

  // What read() has found beside frames.
  struct Found {
    absl::Status violation;
    bool closed = false;  // the far end sends nothing more
    bool gone = false;    // it is gone, and all that it sent was read
  };
  // Reads frames, and does nothing else. At most about 1 MiB, so that peers take turns.
  Found read(std::vector<Frame>& frames);
  // Whether act_on() has anything to do.
  bool must_act_on(const Found& found) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes what waits. Returns the reason when the connection is closed; then it must not be read
  // again. This side's socket is shut down at that moment and not before, because the far end takes
  // it for the end of reading.
  std::optional<absl::Status> act_on(const Found& found) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads, delivers and acts: what the serving thread does.
  using Deliver = absl::FunctionRef<void(std::vector<Frame>)>;
  std::optional<absl::Status> visit(Deliver deliver) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::optional<absl::Status> write(const Found& found) ABSL_LOCKS_EXCLUDED(mutex_);
  void push_dropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what fits. A violation by the far end ends the connection.
  void pump(std::vector<FramePtr>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_open() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether this side has closed the connection, by abort() or a violation.
  bool is_broken() const ABSL_LOCKS_EXCLUDED(mutex_);
  void break_off(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Parts parts_;
  RingReader ring_reader_;  // of the thread that visits
  RingFrameReader reader_;  // of the thread that visits
  std::atomic<bool> gone_{false};

  mutable Mutex mutex_;
  RingWriter ring_writer_ ABSL_GUARDED_BY(mutex_);
  RingFrameWriter writer_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // CLOSE is queued: nothing more is sent
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);   // not OK: ended at once
};

}  // namespace weft::rpc_internal
