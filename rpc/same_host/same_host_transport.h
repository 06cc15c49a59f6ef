// Connects workers of one host through shared memory.
//
// Each connection has a ring of bytes per direction. Each worker has one page of wake bits: a peer
// sets its own bit there after it has written something. A local socket per connection hands the
// memory over and shows when the far end dies. Nothing of it has a name in the file system, and the
// kernel frees all of it with the last process that uses it.
//
// Peers are processes of the same user or of root, in the same network namespace. The transport
// checks all that they write as if it came from a network.
//
// Thread safety: all methods may be called from any thread, but listen() only once before others.
// Lifetime: the clock must outlive the transport. `stop` (or the destructor) ends all connections
// and joins the transport's threads. Frames may outlive it.
// Errors: `listen` returns ResourceExhausted or Internal if the system lacks something: then this
// worker cannot use shared memory. `connect` returns FailedPrecondition if the address is of
// another host or the far end has another layout of memory. Use answered_by_peer() to
// recognise an error that the far end's worker returned.
// Protocol: docs/data_plane.md.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/call_once.h"
#include "weft/async/serving_threads.h"
#include "weft/base/mutex.h"
#include "weft/rpc/same_host/arrivals.h"
#include "weft/rpc/same_host/connection/reading.h"
#include "weft/rpc/same_host/connection/same_host_connection.h"
#include "weft/rpc/same_host/handshake.h"
#include "weft/rpc/transport/buffer_pool.h"
#include "weft/rpc/transport/transport.h"
#include "weft/sockets/local_socket.h"
#include "weft/sockets/watcher.h"

namespace weft {

struct SameHostTransportOptions {
  TransportLimits limits = {};
  // Of each ring of frames: a power of two, at most rpc_internal::kMostFrameRing. A worker with
  // about `full_rings` connections dials further ones with rings of a quarter, because to clear the
  // pages of all rings takes seconds in a group of 64 workers.
  size_t ring_bytes = size_t{128} << 10;
  uint32_t full_rings = 16;
  // At most this much memory holds payloads on their way to peers and in their hands; also at most
  // a quarter of the machine's memory. Beyond it, payloads travel through the rings.
  uint64_t arena_bytes = uint64_t{4} << 30;
  // The number of workers on this host. The limit of a quarter is divided by it.
  uint32_t workers = 1;
  // How often unused memory is looked for, and how long it must have been unused.
  Nanoseconds tidy_every = std::chrono::seconds(10);
  Nanoseconds unused_for = std::chrono::seconds(30);
  // How long the thread that waits for frames spins before it sleeps; 0: never.
  Nanoseconds spin = std::chrono::microseconds(100);
  // So many arrivals may be unanswered: those that wait for `start` and those that have not said
  // HELLO. A further one takes the place of the oldest without HELLO. If there is none, it is
  // refused.
  size_t most_waiting = 256;
  // How long `stop` lets connections close in order before it cuts them.
  Nanoseconds grace = std::chrono::seconds(1);
};

// Whether the error of `connect` is the far end's own answer. Otherwise another way to the same
// worker may work.
bool answered_by_peer(const absl::Status& status);
// Returns the error as the far end's own answer. It must not be OK.
absl::Status answer_of_peer(absl::Status status);

class SameHostTransport final : public Transport {
 public:
  explicit SameHostTransport(Clock& clock, SameHostTransportOptions options = {});
  ~SameHostTransport() override;

  absl::Status listen() override;
  std::string address() const override;
  absl::Status start(PeerIdentity self, TransportSink* sink) override ABSL_LOCKS_EXCLUDED(mutex_);
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override ABSL_LOCKS_EXCLUDED(mutex_);
  void stop() override {
    absl::call_once(stop_once_, [this] { stop_first(); });
  }
  // Of this worker's arena.
  std::optional<Payload> shared_memory(size_t bytes) override;

  // How many of the serving thread's waits for frames began with spinning.
  uint64_t spins() const { return reading_ != nullptr ? reading_->spins() : 0; }
  // Statistics of the memory that is lent to peers.
  BlockArena::Statistics arena_statistics() const { return arena_->statistics(); }

 private:
  using SameHostConnection = rpc_internal::SameHostConnection;
  using ConnectionOfHost = std::shared_ptr<SameHostConnection>;

  // A dial that is not answered.
  struct Dial {
    LocalSocket socket;
    std::shared_ptr<rpc_internal::PairMemory> memory;  // shared within the coming connection
    rpc_internal::WakeSlot here;
    uint64_t nonce;
    PeerIdentity expected;
    ConnectCallback callback;
    std::optional<TimerId> timer;
  };

  // A connection whose far end is watched.
  struct Watched {
    ConnectionOfHost connection;
    bool over = false;          // visit() has reported the end
    bool far_end_gone = false;  // it has shut its socket down
    bool process_ended = false;
  };

  void stop_first() ABSL_LOCKS_EXCLUDED(mutex_);
  // Does the work of the first listen().
  absl::Status begin_to_listen();

  // ---- on the watcher's thread
  void dial(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
            ConnectCallback callback);
  absl::StatusOr<Dial> begin_dial(const std::string& address, const PeerIdentity& expected);
  void receive_welcome(uint64_t number);
  absl::StatusOr<rpc_internal::WakeSlot> check_welcome(Dial& dial, LocalSocket::Message message);
  void give_up(uint64_t number, absl::Status why);
  void watch_end(const ConnectionOfHost& connection);
  void far_end_gone(SameHostConnection* connection);
  void process_ended(SameHostConnection* connection);
  void over(SameHostConnection* connection);
  void forget_if_done(SameHostConnection* connection);
  void forget_ended();
  void tidy();
  void tidy_later();

  // ---- on the serving thread
  bool serve_one();
  void answer(rpc_internal::Arrival arrival);
  absl::StatusOr<ConnectionOfHost> open(rpc_internal::Arrival& arrival);
  void install(const ConnectionOfHost& connection);
  void visit(size_t slot);
  // Handles frames that were read from this connection.
  void handle(const ConnectionOfHost& connection, std::vector<Frame> frames,
              const SameHostConnection::Found& found);
  // On the thread of a caller that reads.
  void take(size_t slot, rpc_internal::Reading::Awaited& awaited);
  void end(const ConnectionOfHost& connection, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- on any thread
  ConnectionOfHost make_connection(std::shared_ptr<rpc_internal::PairMemory> memory,
                                   rpc_internal::PairMemory::End end, LocalSocket socket,
                                   rpc_internal::WakeSlot here, rpc_internal::WakeSlot there,
                                   const PeerIdentity& peer);
  void fail(ConnectCallback callback, absl::Status why);
  std::optional<rpc_internal::WakeSlot> take_slot() ABSL_LOCKS_EXCLUDED(mutex_);
  void free_slot(uint32_t slot) ABSL_LOCKS_EXCLUDED(mutex_);
  PeerIdentity self() const ABSL_LOCKS_EXCLUDED(mutex_);
  TransportSink* sink() const ABSL_LOCKS_EXCLUDED(mutex_);

  Clock& clock_;
  const SameHostTransportOptions options_;
  rpc_internal::BufferPool pool_;
  const std::shared_ptr<BlockArena> arena_;  // connections may outlive the transport
  std::shared_ptr<rpc_internal::WakePage> page_;
  std::shared_ptr<rpc_internal::Reading> reading_;  // connections may outlive the transport
  std::string address_;
  std::optional<absl::Status> listened_;  // the result of the first listen()
  absl::once_flag stop_once_;

  // Used only by the watcher's thread.
  std::optional<rpc_internal::Arrivals> arrivals_;  // set by listen()
  std::map<uint64_t, Dial> dials_;
  uint64_t next_dial_ = 1;
  std::map<SameHostConnection*, Watched> watched_;

  // Used only by the thread that visits peers or runs tasks (Reading).
  std::vector<ConnectionOfHost> connections_;  // by slot

  mutable Mutex mutex_;
  CondVar changed_;
  PeerIdentity self_ ABSL_GUARDED_BY(mutex_);
  TransportSink* sink_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the serving thread has nothing more to do
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;     // installed connections
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mutex_);
  std::optional<TimerId> tidy_timer_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> forgetting_{false};  // forget_ended() is posted

  // Shared with timers, because one may be running when stop() cancels it.
  const std::shared_ptr<Watcher> watcher_ = std::make_shared<Watcher>();
  std::optional<ServingThreads> serving_;  // last: its threads use all of the above
};

}  // namespace weft
