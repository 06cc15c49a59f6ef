// Represents one peer of an agent: the session, the calls in both directions, and the connections.
//
// It dials the peer if it has something to send and no connection. It is the driver of PeerCore.
//
// Thread safety: all methods may be called from any thread. No handler is called under the lock.
// Lifetime: the peer table, the calls that have arrived, and timers share it. The LinkEnvironment
// must outlive every link; timers reach it through its gate.
// Protocol: proto/weft.proto, "Sessions"; session.h, peer.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/async/gate.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/session/internal/connection_health.h"
#include "weft/rpc/session/internal/dialler.h"
#include "weft/rpc/session/internal/incoming_call.h"
#include "weft/rpc/session/internal/peer.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

// Shared by all links of one agent.
struct LinkEnvironment {
  std::string group;
  WorkerInfo self;
  CreditWindow credit;
  Nanoseconds connect_timeout;
  Nanoseconds reconnect_timeout;
  Nanoseconds ack_delay;
  Nanoseconds stuck_after;
  Transport& transport;
  Clock& clock;
  // Set before the first link is made; called without a lock.
  std::function<void(WorkerId peer)> opened = nullptr;  // the peer has its first connection
  std::function<void(WorkerId peer, const absl::Status& why)> suspect = nullptr;
  // `activity` is as in Agent::activity. `handling` counts work under way although no call is open.
  std::atomic<uint64_t> activity{0};
  std::atomic<int64_t> handling{0};
  std::atomic<bool> stopping{false};
  // The body of heartbeats and their answers. Its lock is taken while a link's lock is held.
  void say_in_heartbeats(std::string body) ABSL_LOCKS_EXCLUDED(mutex);
  std::string heartbeat_body() const ABSL_LOCKS_EXCLUDED(mutex);
  mutable Mutex mutex{};
  std::string heartbeat_text ABSL_GUARDED_BY(mutex) = {};
  // Shared with timers, which may fire after the agent has stopped.
  const std::shared_ptr<async_internal::Gate<LinkEnvironment>> gate =
      std::make_shared<async_internal::Gate<LinkEnvironment>>(*this);
};

// Keeps the agent from being quiescent while it exists, and counts as activity when it is
// destroyed.
class Handling {
 public:
  explicit Handling(LinkEnvironment& environment) : environment_(environment) {
    environment_.handling.fetch_add(1);
  }
  ~Handling() {
    environment_.activity.fetch_add(1);
    environment_.handling.fetch_sub(1);
  }
  Handling(const Handling&) = delete;
  Handling& operator=(const Handling&) = delete;

 private:
  LinkEnvironment& environment_;
};

class PeerLink : public std::enable_shared_from_this<PeerLink> {
 public:
  PeerLink(LinkEnvironment& environment, WorkerInfo info);

  const WorkerInfo& info() const { return info_; }
  WorkerId id() const { return info_.id; }
  bool gone() const { return gone_.load(); }
  // Returns when its last frame or handshake came; TimePoint::min() if none came.
  TimePoint heard() const;

  // ---- To the peer.

  // Takes and sends a call. If it is refused, `on_reply` is untouched.
  absl::Status call(CallId id, Frame frame, PendingCall& pending) ABSL_LOCKS_EXCLUDED(mutex_);
  // No caller waits for this call any more. Nullopt: it is not open.
  std::optional<PendingCall> cancel(CallId call) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the peer is gone.
  bool post(Frame frame) ABSL_LOCKS_EXCLUDED(mutex_);
  // For a new link: takes the posts that waited for it. They go before all others.
  void post_first(std::vector<Frame> posts) ABSL_LOCKS_EXCLUDED(mutex_);
  // The connection in use, or null.
  ConnectionPtr connection() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers a call of the peer, and removes it from the incoming ones.
  void answer(uint64_t call, absl::StatusOr<Frame> result) ABSL_LOCKS_EXCLUDED(mutex_);
  // The call with this header and cost has left this worker's queue.
  void call_taken(const FrameHeader& header, size_t cost) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends a heartbeat. No effect without a connection.
  void heartbeat(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls that begin at `until` or later wait, unsent, for the next call of this method.
  void set_valid_until(TimePoint until) ABSL_LOCKS_EXCLUDED(mutex_);
  // This worker suspects the peer. An answer would renew the peer's lease just before its death
  // record.
  void answer_no_heartbeats() { suspected_.store(true); }
  void say_goodbye() ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- From the peer.

  // A frame that has arrived and is no duplicate.
  struct Arrived {
    explicit Arrived(Frame frame_in) : frame(std::move(frame_in)) {}
    Frame frame;
    std::shared_ptr<IncomingCall> call;  // for a call; holds its frame
    bool cancelled = false;              // the call was cancelled before it came
  };
  struct Arrival {
    std::vector<Arrived> arrived;  // to be handled in this order
    bool foreign = false;          // a frame names another sender or receiver
    bool honest = true;            // false: the peer breaks the protocol
    bool wrong() const { return foreign || !honest; }
    bool ack_later = false;
    // Sent frames that the peer has acknowledged. Destroying them may run users' code.
    std::vector<FramePtr> done;
  };
  // Takes the frames that a connection has brought. Answers heartbeats on this connection, because
  // the answer shows that it works. Enters the calls into the table, so that they can be cancelled.
  Arrival receive(const ConnectionPtr& connection, std::vector<Frame> frames)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the acknowledgement of an Arrival, now or after ack_delay. Call it when the whole Arrival
  // is handled.
  void acknowledge(const Arrival& arrival) ABSL_LOCKS_EXCLUDED(mutex_);
  void cancel_incoming(const FrameHeader& cancel) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the call to which a reply has come. Until then its deadline holds, while earlier replies
  // of the same batch are handled. Nullopt: no caller waits for it any more.
  std::optional<PendingCall> take_call(uint64_t call) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Connections.

  void dial(Nanoseconds timeout) ABSL_LOCKS_EXCLUDED(mutex_) { dialler_.dial(timeout); }

  // For the link's dialler. Each method decides under the lock that also guards the connections, so
  // no dial is lost between two decisions.

  // False: a dial is under way, or no connection is wanted.
  bool begin_dial() ABSL_LOCKS_EXCLUDED(mutex_);
  // A dial has ended; `again`: another one shall follow. Returns whether a connection is wanted.
  bool end_dial(bool again, bool lacks_descriptors) ABSL_LOCKS_EXCLUDED(mutex_);
  // The pause before a dial is over. False: no connection is wanted any more.
  bool resume_dial() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sets the only connection of a worker to itself.
  void connect_to_self(ConnectionPtr loopback) ABSL_LOCKS_EXCLUDED(mutex_);
  // Uses a new connection and sends the unacknowledged frames on it. If there is a connection
  // already, the new one is a spare.
  void adopt(const ConnectionPtr& connection) ABSL_LOCKS_EXCLUDED(mutex_);
  // A connection is closed. True: it was the one in use, and the peer has said goodbye. False: if
  // it was the one in use, the link goes on with a spare connection, or dials again.
  bool closed(const ConnectionPtr& connection, const absl::Status& reason)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Puts the frames of the session on the connection. Dials if there is no connection.
  void flush() ABSL_LOCKS_EXCLUDED(mutex_);
  // The same, deferred on a serving thread until it has done its present work. So one flush sends
  // several replies.
  void flush_soon();

  // ---- The peer is gone.

  // Fails the open calls, cancels those that run here, and cuts the connections. False, without
  // effect: an earlier call has done this.
  bool end(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  // ---- Looks.

  struct Look {
    WorkerId peer;
    // A frame of the peer has come. Or the first connection has lasted for `connect_timeout`: if
    // many workers of a host dial each other, one end may learn late that a connection has opened.
    bool met = false;
    bool busy = false;  // calls, frames without acknowledgement, or traffic since the last look
    TimePoint heard;    // as heard(), but now if this process has no file descriptor to dial
    std::string said;   // body of the newest heartbeat or answer; empty if none came
  };
  // Looks at the peer, and cuts a connection that hangs. Only one caller may use it, and regularly,
  // because a look covers the time since the last one.
  Look look() ABSL_LOCKS_EXCLUDED(mutex_);

  struct Counts {
    uint64_t sent = 0;  // frames that count for quiescence
    uint64_t received = 0;
    size_t pending_calls = 0;
    size_t queued_calls = 0;
    size_t running_calls = 0;
    size_t retained_frames = 0;
    size_t retained_bytes = 0;
    size_t connections = 0;
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);
  struct Oldest {
    std::string awaited;  // function of the oldest call to the peer; empty: no call is open
    uint64_t served = 0;  // function of the peer's oldest call here; 0: no call runs
  };
  Oldest oldest() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // The frames to put on a connection once the lock is released.
  struct Departure {
    ConnectionPtr connection;
    FrameBatch frames;
    bool must_dial = false;
  };

  Departure depart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // No connection is there, and one would be of use.
  bool wants_connection() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void send(Departure departure) ABSL_LOCKS_EXCLUDED(mutex_);
  // If the connection refuses the frames, they are sent again on the next one. look() cuts this one
  // if it does not close.
  void put(const ConnectionPtr& connection, FrameBatch frames) ABSL_LOCKS_EXCLUDED(mutex_);
  void accept(Frame& frame, Arrival& arrival, FrameBatch& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void admit(std::vector<Arrived>& arrived, const std::string& role) ABSL_LOCKS_EXCLUDED(mutex_);
  void arm_ack() ABSL_LOCKS_EXCLUDED(mutex_);
  void arm_deadline() ABSL_LOCKS_EXCLUDED(mutex_);
  void expire_calls() ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on this connection is written to, or none.
  void use(ConnectionPtr next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LinkEnvironment& environment_;
  const WorkerInfo info_;
  std::atomic<bool> gone_{false};
  std::atomic<bool> suspected_{false};
  std::atomic<bool> flush_deferred_{false};  // a serving thread will flush
  std::atomic<TimePoint::rep> heard_{TimePoint::min().time_since_epoch().count()};

  Dialler dialler_;
  mutable Mutex mutex_;
  PeerCore core_ ABSL_GUARDED_BY(mutex_);
  ConnectionPtr connection_ ABSL_GUARDED_BY(mutex_);            // the one that is written to
  TimePoint first_connected_ ABSL_GUARDED_BY(mutex_) = kNever;  // when it first had a connection
  bool spoken_ ABSL_GUARDED_BY(mutex_) = false;                 // a frame of the peer has come
  std::vector<ConnectionPtr> others_ ABSL_GUARDED_BY(mutex_);   // spare; both ends had dialled
  absl::Status fate_ ABSL_GUARDED_BY(mutex_);                   // why it is gone
  // The peer has stopped its agent. It never takes that back, so a later or a spare connection does
  // not reset it: the peer is about to close that one too.
  bool said_goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  DialState dial_ ABSL_GUARDED_BY(mutex_);
  TimePoint deadline_armed_ ABSL_GUARDED_BY(mutex_) = kNever;
  bool ack_armed_ ABSL_GUARDED_BY(mutex_) = false;

  // The traffic at the last look().
  uint64_t looked_at_ ABSL_GUARDED_BY(mutex_) = 0;
  ConnectionHealth health_ ABSL_GUARDED_BY(mutex_);
  std::string said_ ABSL_GUARDED_BY(mutex_);  // body of its newest heartbeat or answer
};

using PeerLinkPtr = std::shared_ptr<PeerLink>;

}  // namespace weft::rpc_internal
