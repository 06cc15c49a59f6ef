// Moves calls, replies and posts between this worker and its peers.
//
// It delivers each of them exactly once or not at all, and tells its listeners when a peer is gone.
//
// Thread safety: all methods may be called from any thread. Handlers and listeners run on transport
// threads, or inside the calling method where a comment says so. No lock is held then, and they
// must not block.
// Lifetime: the transport, the clock and the executor must outlive the agent. No callback runs
// after `stop`.
// Errors: docs/errors.md.
// Protocol: proto/weft.proto; session.h for sessions, peer.h for credit.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/session/internal/peer_link.h"
#include "weft/rpc/session/internal/peer_table.h"
#include "weft/rpc/transport/transport.h"

namespace weft::rpc_internal {

struct AgentOptions {
  std::string group;          // the prefix of the group's keys in the rendezvous store
  std::string security = {};  // the mode (docs/security.md), "" for auto; the same on all workers
  WorkerInfo self;
  std::string role = {};  // of this worker; peers decide by it what this worker may call
  ProtocolRange protocols = kProtocols;
  CreditWindow credit;
  TransportLimits limits;  // of the members' transports
  Nanoseconds connect_timeout = std::chrono::seconds(10);
  Nanoseconds reconnect_timeout = std::chrono::seconds(1);
  // `start` dials all members, because they may not know this worker yet. Otherwise it dials only
  // those with a lower id.
  bool dial_all = false;
  Nanoseconds ack_delay = std::chrono::milliseconds(20);
  // A connection is cut if its oldest frame without acknowledgement has not moved for this time.
  // Heartbeats do not show that, because they may travel on another stream than the one that hangs.
  Nanoseconds stuck_after = std::chrono::seconds(30);
};

// The functions with which membership.h decides about members. Without them, the agent declares a
// worker dead that it cannot reach, and no worker may join.
struct MembershipHooks {
  // An unknown process dials this worker. OK: the hook has called `add_member` for it.
  std::function<absl::Status(const WorkerInfo& joiner)> admit;
  // A post is for an incarnation that is not known here. It waits for `add_member` or
  // `declare_dead`.
  std::function<void(WorkerId unknown)> unknown;
  // Too many posts wait for the unknown incarnation, so it is gone here.
  std::function<void(WorkerId unknown, const absl::Status& why)> give_up;
  // This worker has its first connection with the peer.
  std::function<void(WorkerId peer)> opened;
  // The peer cannot be reached, breaks the protocol, or refuses this worker (PermissionDenied).
  std::function<void(WorkerId peer, const absl::Status& why)> suspect;
  std::function<void(WorkerId peer, uint64_t number)> heartbeat_answered;
};

class Agent final : public TransportSink {
 public:
  using CallHandler = std::function<void(const std::shared_ptr<IncomingCall>&)>;
  using FunctionNames = std::function<std::string(uint64_t function)>;
  using PostHandler = std::function<void(WorkerId from, Frame frame)>;
  // `peer` is gone for good. Only replies that arrived at the same time may still be delivered.
  // `reason` says why, without the worker's name. `left`: it has said goodbye.
  using GoneListener = std::function<void(WorkerId peer, const absl::Status& reason, bool left)>;

  Agent(AgentOptions options, Transport& transport, Clock& clock, Executor& executor);
  ~Agent() override;

  // Set all handlers before `start`, and never change them.
  void set_call_handler(CallHandler handler) { call_handler_ = std::move(handler); }
  // Gives the name of a function that peers call by number, for messages of `work`.
  void set_function_names(FunctionNames names) { function_names_ = std::move(names); }
  void set_post_handler(Topic topic, PostHandler handler);
  // Takes replies that no caller waits for any more. The references that they carry must still be
  // released.
  void set_late_reply_handler(PostHandler handler) { late_reply_handler_ = std::move(handler); }
  void add_gone_listener(GoneListener listener) { gone_listeners_.push_back(std::move(listener)); }
  void set_membership(MembershipHooks hooks);

  // From now on `members` (self included) are known. Members with a lower id than this worker's are
  // dialled at once, so that each worker of a pair notices the other's death. The transport listens
  // already. InvalidArgument: this worker is not among the members.
  absl::Status start(std::vector<WorkerInfo> members);
  // Adds a member, which may be a later incarnation of another one. `resolve` does not find its
  // name before `name_member`. It dials this worker, or `reach` dials it.
  void add_member(WorkerInfo member) { peers_.add(std::move(member)); }
  void reach(WorkerId member);
  // False: it has a name already, is gone, or is not known.
  bool name_member(WorkerId member) { return peers_.name(member); }

  // `frame` holds flags, function, fingerprint, meta, body and payloads. `function` must outlive
  // the call. `on_reply` runs exactly once; inside this method only if the call is refused.
  // `waited_for`: a thread waits for the reply, so the call is not refused if the queue is full.
  CallId call(WorkerId to, Frame frame, std::string_view function, TimePoint deadline,
              ReplyHandler on_reply, bool waited_for = false);
  // Connection::copy_payload of the connection to this peer.
  std::optional<Payload> copy_payload(WorkerId to, const std::byte* data, size_t size);
  // For a thread that waits for `result`, which the reply to `call` completes: this thread may read
  // the reply itself (Connection::read_reply), and run the call's `on_reply`. It may also return
  // without it.
  void read_reply(WorkerId to, CallId call, async_internal::FutureCore& result);
  std::optional<Payload> shared_memory(size_t bytes) { return transport_.shared_memory(bytes); }
  // InvalidArgument: the frame is larger than any member's transport takes.
  absl::Status check_size(const Frame& frame) const;
  void cancel(WorkerId to, CallId call);
  // Sends a post, also to an incarnation that is not known yet. It is delivered exactly once, or
  // the peer is gone. The order of posts is not kept. False: the peer is gone already, or the frame
  // is larger than any transport takes.
  bool post(WorkerId to, Topic topic, std::string body, std::vector<Payload> payloads = {});
  // The same for a frame with tensors. The caller sets its body, value_bytes and payloads.
  bool post(WorkerId to, Topic topic, Frame frame);

  const WorkerInfo& self() const { return options_.self; }
  absl::StatusOr<WorkerId> resolve(std::string_view name) const { return peers_.resolve(name); }
  std::string name_of(WorkerId worker) const;
  WorkerInfo info_of(WorkerId worker) const;
  // Returns the newest known incarnation of each member, dead ones too.
  std::vector<WorkerInfo> members() const { return peers_.members(); }
  bool is_live(WorkerId worker) const;
  // Returns when the last frame or handshake of this peer came; TimePoint::min() if none came.
  TimePoint last_heard(WorkerId worker) const;
  // True: this incarnation is, or was, a member here.
  bool knows(WorkerId worker) const { return peers_.find(worker) != nullptr; }
  // Returns the members that are neither dead nor have left, self included, in order of their ids.
  std::vector<WorkerId> live() const;

  // The peer is gone here, and this is never revised. Pending calls fail, and the gone listeners
  // run inside this method. They also run for an incarnation that was never a peer here; references
  // or contexts may name it.
  void declare_dead(WorkerId peer, absl::Status reason);
  // Passes the suspicion to membership, which decides. Without membership hooks, the peer is
  // declared dead.
  void suspect(WorkerId peer, const absl::Status& reason);
  // The others have declared this worker dead: all of them are gone here, for this reason.
  void fence(const absl::Status& why);

  // Sends a heartbeat. No effect without a connection.
  void heartbeat(WorkerId peer, uint64_t number);
  // Calls to this peer that begin at `until` or later wait here for the next call of this method.
  void set_valid_until(WorkerId peer, TimePoint until);
  // This worker suspects the peer. An answer would renew the peer's lease just before its death
  // record.
  void answer_no_heartbeats_of(WorkerId peer);
  // Sets the body of all heartbeats and answers from now on.
  void say_in_heartbeats(std::string body) { environment_.say_in_heartbeats(std::move(body)); }
  using PeerLook = PeerLink::Look;
  // Looks at all live peers except this worker, and cuts connections that hang. Only one caller may
  // use it, and regularly, because a look covers the time since the last one.
  std::vector<PeerLook> look_at_peers();

  // Counted traffic (calls, replies and posts other than membership) with one peer.
  struct Traffic {
    WorkerId peer;
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  std::vector<Traffic> traffic() const;
  // Grows with every frame and call. If it is unchanged between two looks, nothing has happened.
  uint64_t activity() const { return environment_.activity.load(std::memory_order_acquire); }
  // True: no frame is being handled, no call in either direction is open, no work is held, and no
  // post waits for an unknown incarnation.
  bool quiescent() const;
  // Describes why `quiescent` is false, with the oldest call of each peer. Empty: no reason was
  // found.
  std::string work() const;
  // Holds work that belongs to no open call, such as an object that is still being created. Each
  // hold needs one release.
  void hold_work() { held_.fetch_add(1); }
  void release_work() {
    environment_.activity.fetch_add(1);
    held_.fetch_sub(1);
  }
  AgentInfo info() const;

  // Says goodbye, closes all connections, and fails pending calls with Cancelled. Idempotent.
  void stop();

  // TransportSink.
  absl::Status on_accept(const PeerIdentity& peer) override;
  void on_open(const ConnectionPtr& connection) override;
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override;
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override;

 private:
  // Cuts a connection whose peer has sent what it may not send.
  void cut(const PeerLinkPtr& peer, const ConnectionPtr& connection,
           const PeerLink::Arrival& arrival);
  void handle(const PeerLinkPtr& peer, PeerLink::Arrived arrived);
  void handle_call(const std::shared_ptr<IncomingCall>& call);
  void end_peer(const PeerLinkPtr& peer, absl::Status reason, bool left);
  bool post_to_unknown(WorkerId to, Frame frame);
  PeerIdentity identity() const;

  const AgentOptions options_;
  Transport& transport_;
  Executor& executor_;
  CallHandler call_handler_;
  FunctionNames function_names_;
  std::array<PostHandler, kTopics> post_handlers_;
  PostHandler late_reply_handler_;
  std::vector<GoneListener> gone_listeners_;
  MembershipHooks membership_;
  std::atomic<uint64_t> next_call_{1};
  std::atomic<int64_t> held_{0};
  LinkEnvironment environment_;
  PeerTable peers_;
};

}  // namespace weft::rpc_internal
