// Moves calls, replies and posts between this worker and its peers, each exactly once or not at
// all, and tells its listeners when a peer is gone.
//
// Thread safety: all methods may be called from any thread. Handlers and listeners run on transport
// threads (or inside the calling method, where said) without any lock held; they must not block.
// Lifetime: the transport, clock and executor outlive the agent; `stop` ends all callbacks.
// Errors: docs/errors.md. Protocol: proto/weft.proto; sessions and credit: session.h, peer.h.
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
  std::string group;  // rendezvous prefix
  WorkerInfo self;
  CreditWindow credit;
  TransportLimits limits;  // of the members' transports
  Nanoseconds connect_timeout = std::chrono::seconds(10);
  Nanoseconds reconnect_timeout = std::chrono::seconds(1);
  // All members are dialled at start, not only those that will not dial: they may not know of this
  // worker yet.
  bool dial_all = false;
  Nanoseconds ack_delay = std::chrono::milliseconds(20);
  // A connection is cut if the oldest frame without acknowledgement, and its stream, have not moved
  // for so long: heartbeats may travel where a stream hangs.
  Nanoseconds stuck_after = std::chrono::seconds(30);
};

// The hooks of the membership protocol (membership.h). Without them, a peer that cannot be reached
// is dead, and nobody may join.
struct MembershipHooks {
  // An unknown worker dials this one. OK: it was given to `add_member`.
  std::function<absl::Status(const WorkerInfo& joiner)> admit;
  // A post is meant for an incarnation that is not known here. It waits for `add_member` or
  // `declare_dead`.
  std::function<void(WorkerId unknown)> unknown;
  // More posts are meant for it than are kept: it is gone here.
  std::function<void(WorkerId unknown, const absl::Status& why)> give_up;
  // The first connection with a peer is open.
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
  // `peer` will never be heard of again, but for replies that arrived together with its end;
  // `reason` names it. `left`: it went in good order.
  using GoneListener = std::function<void(WorkerId peer, const absl::Status& reason, bool left)>;

  Agent(AgentOptions options, Transport& transport, Clock& clock, Executor& executor);
  ~Agent() override;

  // Handlers are set before `start` and never changed.
  void set_call_handler(CallHandler handler) { call_handler_ = std::move(handler); }
  // For messages: the name of a function that peers call by this number.
  void set_function_names(FunctionNames names) { function_names_ = std::move(names); }
  void set_post_handler(Topic topic, PostHandler handler);
  // Replies that nobody waits for any more: what they carry must still be let go.
  void set_late_reply_handler(PostHandler handler) { late_reply_handler_ = std::move(handler); }
  void add_gone_listener(GoneListener listener) { gone_listeners_.push_back(std::move(listener)); }
  void set_membership(MembershipHooks hooks);

  // From now on `members` (self included) are known. Those with a lower id than this worker's are
  // dialled at once, so that every pair notices the other's death. The transport listens already.
  absl::Status start(std::vector<WorkerInfo> members);
  // One more, or a later incarnation of one. Its name means nothing before `name_member`. It dials
  // this worker, or `reach` dials it.
  void add_member(WorkerInfo member) { peers_.add(std::move(member)); }
  void reach(WorkerId member);
  // False: it has a name already, or is not known.
  bool name_member(WorkerId member) { return peers_.name(member); }
  bool has_name(WorkerId member) const { return peers_.has_name(member); }

  // `frame` holds flags, function, fingerprint, meta, body and payloads. `function` outlives the
  // call. `on_reply` runs exactly once: inside this method only for refusals. `waited_for`: by a
  // thread, until the reply is there; then a full queue refuses nothing.
  CallId call(WorkerId to, Frame frame, std::string_view function, TimePoint deadline,
              ReplyHandler on_reply, bool waited_for = false);
  // InvalidArgument for a frame that no member's transport would take.
  absl::Status check_size(const Frame& frame) const;
  void cancel(WorkerId to, CallId call);
  // Exactly once, in any order, or the peer is declared gone, also if it is not known yet. False:
  // it is gone already, or the frame is larger than any transport takes.
  bool post(WorkerId to, Topic topic, std::string body, std::vector<Payload> payloads = {});
  // The same for a frame with tensors: body, value_bytes and payloads are the caller's.
  bool post(WorkerId to, Topic topic, Frame frame);

  const WorkerInfo& self() const { return options_.self; }
  absl::StatusOr<WorkerId> resolve(std::string_view name) const { return peers_.resolve(name); }
  std::string name_of(WorkerId worker) const;
  WorkerInfo info_of(WorkerId worker) const;
  // The newest known incarnation of each, dead ones too.
  std::vector<WorkerInfo> members() const { return peers_.members(); }
  bool is_live(WorkerId worker) const;
  // When the last frame of this peer came; the past if none did.
  TimePoint last_heard(WorkerId worker) const;
  // Is, or was, a member here.
  bool knows(WorkerId worker) const { return peers_.find(worker) != nullptr; }
  // Members that are neither dead nor gone, self included, by id.
  std::vector<WorkerId> live() const;

  // The worker is dead, for good. Its pending calls fail, and listeners hear of it, also if it was
  // never a peer here (references or contexts may name it).
  void declare_dead(WorkerId peer, absl::Status reason);
  // Leads to a death record, sooner or later.
  void suspect(WorkerId peer, const absl::Status& reason);
  // The group has declared this worker dead: all other workers are gone here, with this reason.
  void fence(const absl::Status& why);

  // Asks a peer whether it is there; nothing happens without a connection.
  void heartbeat(WorkerId peer, uint64_t number);
  // Calls to this peer that begin at `until` or later wait here for the next call of this method.
  void set_valid_until(WorkerId peer, TimePoint until);
  // The peer is suspected: an answer would renew its lease just before its death record.
  void answer_no_heartbeats_of(WorkerId peer);
  // Body of all heartbeats and answers from now on.
  void say_in_heartbeats(std::string body) { environment_.say_in_heartbeats(std::move(body)); }
  using PeerLook = PeerLink::Look;
  // All live peers but this worker; cuts connections that hang. For one caller, regularly:
  // "since the last look" is its.
  std::vector<PeerLook> look_at_peers();

  // Counted traffic (calls, replies and posts other than membership) with one peer.
  struct Traffic {
    WorkerId peer;
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  std::vector<Traffic> traffic() const;
  // Grows with every frame and call; unchanged between two looks means that nothing happened.
  uint64_t activity() const { return environment_.activity.load(std::memory_order_acquire); }
  // No frame is being handled, no call of either direction is open, no work is held.
  bool quiet() const;
  // In words, what it is not quiet for, with the oldest call of each peer; empty if it is quiet.
  std::string work() const;
  // Work that no open call stands for (an object that is still being created). Counted.
  void hold_work() { held_.fetch_add(1); }
  void release_work() {
    environment_.activity.fetch_add(1);
    held_.fetch_sub(1);
  }
  AgentInfo info() const;

  // Says goodbye, ends all connections, fails what is pending with Cancelled. Idempotent.
  void stop();

  // TransportSink.
  absl::Status on_accept(const PeerIdentity& peer) override;
  void on_open(const ConnectionPtr& connection) override;
  void on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) override;
  void on_closed(const ConnectionPtr& connection, absl::Status reason) override;

 private:
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
