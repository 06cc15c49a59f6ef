// One peer of an agent: the session with it, its calls in both directions, and the connections that
// carry them. It dials when there is something to send and no connection stands.
//
// Thread safety: all methods may be called from any thread; none calls a handler under the lock.
// Lifetime: shared by the peer table, by calls that have arrived, and by timers. The
// LinkEnvironment outlives every link; timers reach it through its gate. Protocol:
// proto/weft.proto, "Sessions"; session.h, peer.h.
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

// What all links of one agent use.
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
  // Set before the first link; called without a lock.
  std::function<void(WorkerId peer)> opened = nullptr;  // the first connection with it stands
  std::function<void(WorkerId peer, const absl::Status& why)> suspect = nullptr;
  // As Agent::activity. `handling` counts what is not quiescent although no call is open.
  std::atomic<uint64_t> activity{0};
  std::atomic<int64_t> handling{0};
  std::atomic<bool> stopping{false};
  // What heartbeats and their answers say. The lock is taken under a link's.
  void say_in_heartbeats(std::string body) ABSL_LOCKS_EXCLUDED(mutex);
  std::string heartbeat_body() const ABSL_LOCKS_EXCLUDED(mutex);
  mutable Mutex mutex{};
  std::string heartbeat_text ABSL_GUARDED_BY(mutex) = {};
  // Shared with timers, which may fire after the agent's end.
  const std::shared_ptr<async_internal::Gate<LinkEnvironment>> gate =
      std::make_shared<async_internal::Gate<LinkEnvironment>>(*this);
};

// Counts as activity that is under way, from its construction to its end.
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
  // Its last frame or handshake; the past if there was none.
  TimePoint heard() const;

  // ---- To the peer.

  // Takes and sends a call. If it is refused, `on_reply` is untouched.
  absl::Status call(CallId id, Frame frame, PendingCall& pending);
  // Nobody waits for this call any more. Nullopt: it is not open.
  std::optional<PendingCall> cancel(CallId call);
  // False: the peer is gone.
  bool post(Frame frame);
  // For a new link: posts that waited for it. They go before all others.
  void post_first(std::vector<Frame> posts);
  // Answers a call of the peer, which is no longer among the incoming ones then.
  void answer(uint64_t call, absl::StatusOr<Frame> result);
  // The call of this header and cost has left this worker's queue.
  void call_taken(const FrameHeader& header, size_t cost);
  // Asks whether the peer lives; nothing happens without a connection.
  void heartbeat(uint64_t number);
  // Calls that begin at `until` or later wait, unsent, for the next call of this method.
  void set_valid_until(TimePoint until);
  // The peer is suspected here: an answer would renew its lease just before its death record.
  void answer_no_heartbeats() { suspected_.store(true); }
  void say_goodbye();

  // ---- From the peer.

  // A frame that has arrived and is no duplicate.
  struct Arrived {
    explicit Arrived(Frame frame_in) : frame(std::move(frame_in)) {}
    Frame frame;
    std::optional<PendingCall> pending;  // a reply's, unless nobody waits for it any more
    std::shared_ptr<IncomingCall> call;  // a call's; holds the frame
    bool cancelled = false;              // before it came
  };
  struct Arrival {
    std::vector<Arrived> arrived;  // to be handled in this order
    bool foreign = false;          // a frame is not of this pair
    bool honest = true;            // else the peer breaks the protocol
    bool ack_later = false;
  };
  // Takes in what a connection has brought. Answers heartbeats on this connection: that shows that
  // it works. Makes known the calls that have arrived, so that they can be cancelled.
  Arrival receive(const ConnectionPtr& connection, std::vector<Frame> frames);
  // Once all of an Arrival was handled: acknowledges it, in time.
  void acknowledge(const Arrival& arrival);
  void cancel_incoming(const FrameHeader& cancel);

  // ---- Connections.

  void dial(Nanoseconds timeout) { dialler_.dial(timeout); }
  // No connection stands, and one is of use.
  bool wants_connection() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a worker to itself: the only connection.
  void connect_to_self(ConnectionPtr loopback);
  void adopt(const ConnectionPtr& connection);
  // True: the peer said goodbye on it. Otherwise it is dialled again, if there is no other.
  bool closed(const ConnectionPtr& connection, const absl::Status& reason);
  // Puts what the session has to say on the connection; dials if there is none.
  void flush();
  // The same, once this thread has done what it is at: other replies may follow.
  void flush_soon();

  // ---- The end.

  // The first call takes everything: fails the open calls, cancels those that run, cuts the
  // connections. False: the link had ended before.
  bool end(const absl::Status& reason);

  // ---- Looks.

  struct Look {
    WorkerId peer;
    bool busy = false;  // calls, frames without acknowledgement, or traffic since the last look
    TimePoint heard;   // as heard(); now, if this worker has nothing left to make a connection with
    std::string said;  // body of the newest heartbeat or answer; empty if none came
  };
  // Cuts a connection that hangs. For one caller, regularly: "since the last look" is its.
  Look look();

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
  Counts counts() const;
  struct Oldest {
    std::string awaited;  // function of the oldest call to the peer; empty if there is none
    uint64_t served = 0;  // function of the oldest call of the peer
  };
  Oldest oldest() const;

 private:
  // Frames to put on a connection once the lock is released, or the need of a connection.
  struct Departure {
    ConnectionPtr connection;
    FrameBatch frames;
    bool must_dial = false;
  };

  Departure depart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void send(Departure departure) ABSL_LOCKS_EXCLUDED(mutex_);
  // If the connection refuses, the frames are sent again once it has ended: look() sees to that.
  void put(const ConnectionPtr& connection, FrameBatch frames) ABSL_LOCKS_EXCLUDED(mutex_);
  void accept(Frame frame, Arrival& arrival, FrameBatch& answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void admit(std::vector<Arrived>& arrived) ABSL_LOCKS_EXCLUDED(mutex_);
  void arm_ack() ABSL_LOCKS_EXCLUDED(mutex_);
  void arm_deadline() ABSL_LOCKS_EXCLUDED(mutex_);
  void expire_calls() ABSL_LOCKS_EXCLUDED(mutex_);

  // The connection that is written to from now on, or none.
  void use(ConnectionPtr next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LinkEnvironment& environment_;
  const WorkerInfo info_;
  std::atomic<bool> gone_{false};
  std::atomic<bool> suspected_{false};
  std::atomic<bool> met_{false};             // there was a connection
  std::atomic<bool> flush_deferred_{false};  // a serving thread will flush
  std::atomic<TimePoint::rep> heard_{TimePoint::min().time_since_epoch().count()};

  Dialler dialler_;  // its lock is taken under this one's
  mutable Mutex mutex_;
  PeerCore core_ ABSL_GUARDED_BY(mutex_);
  ConnectionPtr connection_ ABSL_GUARDED_BY(mutex_);           // the one that is written to
  std::vector<ConnectionPtr> others_ ABSL_GUARDED_BY(mutex_);  // if both ends dialled at once
  absl::Status fate_ ABSL_GUARDED_BY(mutex_);                  // why it is gone
  bool said_goodbye_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint deadline_armed_ ABSL_GUARDED_BY(mutex_) = kNever;
  bool ack_armed_ ABSL_GUARDED_BY(mutex_) = false;

  // Of look(): the traffic at the last one.
  uint64_t looked_at_ ABSL_GUARDED_BY(mutex_) = 0;
  ConnectionHealth health_ ABSL_GUARDED_BY(mutex_);
  std::string said_ ABSL_GUARDED_BY(mutex_);  // body of its newest heartbeat or answer
};

using PeerLinkPtr = std::shared_ptr<PeerLink>;

}  // namespace weft::rpc_internal
