#include "weft/rpc/session/agent.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/session/internal/call_errors.h"
#include "weft/rpc/session/internal/loopback_connection.h"
#include "weft/rpc/transport/frame_codec.h"

namespace weft::rpc_internal {

Agent::Agent(AgentOptions options, Transport& transport, Clock& clock, Executor& executor)
    : options_(std::move(options)),
      transport_(transport),
      executor_(executor),
      environment_{.group = options_.group,
                   .self = options_.self,
                   .credit = options_.credit,
                   .connect_timeout = options_.connect_timeout,
                   .reconnect_timeout = options_.reconnect_timeout,
                   .ack_delay = options_.ack_delay,
                   .stuck_after = options_.stuck_after,
                   .transport = transport,
                   .clock = clock},
      peers_(environment_) {
  environment_.suspect = [this](WorkerId peer, const absl::Status& why) { suspect(peer, why); };
}

Agent::~Agent() { stop(); }

void Agent::set_post_handler(Topic topic, PostHandler handler) {
  post_handlers_[static_cast<size_t>(topic)] = std::move(handler);
}

void Agent::set_membership(MembershipHooks hooks) {
  membership_ = std::move(hooks);
  environment_.opened = membership_.opened;
}

PeerIdentity Agent::identity() const {
  return {options_.group,    options_.self.name, options_.self.id,  options_.self.address,
          options_.security, options_.role,      options_.protocols};
}

absl::Status Agent::start(std::vector<WorkerInfo> members) {
  peers_.set_members(std::move(members));
  const PeerLinkPtr self = peers_.find(options_.self.id);
  if (self == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker '", options_.self.name, "' is not among the group's members"));
  }
  self->connect_to_self(std::make_shared<LoopbackConnection>(identity(), *this, executor_));
  WEFT_RETURN_IF_ERROR(transport_.start(identity(), this));
  for (const PeerLinkPtr& peer : peers_.all()) {
    if (peer->id() < options_.self.id || options_.dial_all) peer->dial(options_.connect_timeout);
  }
  // The other members dial this worker. If one of them died before it dialled, this worker would
  // never notice. So after `connect_timeout` it dials all members to which it has no connection.
  Clock& clock = environment_.clock;
  clock.call_at(clock.now() + options_.connect_timeout, [gate = environment_.gate, this] {
    gate->enter([this](LinkEnvironment&) {
      for (const PeerLinkPtr& peer : peers_.all()) peer->dial(options_.connect_timeout);
    });
  });
  return absl::OkStatus();
}

void Agent::reach(WorkerId member) {
  if (PeerLinkPtr peer = peers_.find(member)) peer->dial(options_.connect_timeout);
}

// ---- To the peers.

absl::Status Agent::check_size(const Frame& frame) const {
  return check_frame(frame, options_.limits);
}

CallId Agent::call(WorkerId to, Frame frame, std::string_view function, TimePoint deadline,
                   ReplyHandler on_reply, bool waited_for) {
  environment_.activity.fetch_add(1);
  const CallId id{next_call_.fetch_add(1, std::memory_order_relaxed)};
  PendingCall pending{.on_reply = std::move(on_reply),
                      .function = function,
                      .deadline = deadline,
                      .waited_for = waited_for};
  const PeerLinkPtr peer = peers_.find(to);
  absl::Status refused =
      peer != nullptr
          ? peer->call(id, std::move(frame), pending)
          : with_ran(absl::NotFoundError(absl::StrCat("no worker ", to.to_string(), " is known")),
                     Ran::kNo);
  if (!refused.ok()) pending.on_reply(std::move(refused));
  return id;
}

std::optional<Payload> Agent::copy_payload(WorkerId to, const std::byte* data, size_t size) {
  const PeerLinkPtr peer = peers_.find(to);
  const ConnectionPtr connection = peer != nullptr ? peer->connection() : nullptr;
  return connection != nullptr ? connection->copy_payload(data, size) : std::nullopt;
}

void Agent::read_reply(WorkerId to, CallId call, async_internal::FutureCore& result) {
  const PeerLinkPtr peer = peers_.find(to);
  const ConnectionPtr connection = peer != nullptr ? peer->connection() : nullptr;
  if (connection == nullptr) return;
  // The transport may stop meanwhile. Then it waits for read_reply(), but not for what follows.
  environment_.gate->enter([&](LinkEnvironment&) {
    PeerLink::Arrival arrival;
    std::optional<Handling> handling;
    const auto accept = [&](const ConnectionPtr& from, Frame reply) -> Connection::Task {
      if (peer->gone()) return nullptr;  // that has completed the call
      handling.emplace(environment_);
      environment_.activity.fetch_add(1);
      std::vector<Frame> frames;
      frames.push_back(std::move(reply));
      // From now on the call gets its reply, even if the peer leaves before it is handled.
      arrival = peer->receive(from, std::move(frames));
      PeerLink::Arrival rest;
      rest.foreign = arrival.foreign;
      rest.honest = arrival.honest;
      for (FramePtr& frame : arrival.done) {
        const FrameHeader& header = frame->header;
        const bool own = header.kind == FrameKind::kCall && header.call == call.number;
        if (!own) rest.done.push_back(std::move(frame));
      }
      if (rest.done.empty() && !rest.wrong()) return nullptr;
      return [this, peer, from, rest = std::move(rest)] {
        if (rest.wrong() && !peer->gone()) cut(peer, from, rest);
      };
    };
    if (!connection->read_reply(call.number, result, accept) || !handling.has_value()) return;
    for (PeerLink::Arrived& each : arrival.arrived) handle(peer, std::move(each));
    peer->acknowledge(arrival);
  });
}

void Agent::cancel(WorkerId to, CallId call) {
  const PeerLinkPtr peer = peers_.find(to);
  if (peer == nullptr) return;
  const Handling handling(environment_);  // until the caller has its reply
  std::optional<PendingCall> pending = peer->cancel(call);
  if (!pending) return;
  pending->on_reply(cancelled_error(peer->info(), call.number, *pending));
  environment_.activity.fetch_add(1);
}

bool Agent::post(WorkerId to, Topic topic, std::string body, std::vector<Payload> payloads) {
  Frame frame;
  frame.body = std::move(body);
  frame.payloads = std::move(payloads);
  return post(to, topic, std::move(frame));
}

bool Agent::post(WorkerId to, Topic topic, Frame frame) {
  environment_.activity.fetch_add(1);
  const PeerLinkPtr peer = peers_.find(to);
  if (peer != nullptr && peer->gone()) return false;
  if (absl::Status size = check_size(frame); !size.ok()) {
    log_error("a post to '", name_of(to), "' is not sent: ", size.message());
    return false;
  }
  frame.header.kind = FrameKind::kPost;
  frame.header.function = static_cast<uint64_t>(topic);
  return peer != nullptr ? peer->post(std::move(frame)) : post_to_unknown(to, std::move(frame));
}

bool Agent::post_to_unknown(WorkerId to, Frame frame) {
  if (membership_.unknown == nullptr || environment_.stopping.load() || !to.valid()) return false;
  const absl::StatusOr<PeerLinkPtr> peer = peers_.keep(to, frame);
  if (!peer.ok()) {
    membership_.give_up(to, peer.status());
    return false;
  }
  if (*peer != nullptr) return (*peer)->post(std::move(frame));
  membership_.unknown(to);
  return true;
}

void Agent::heartbeat(WorkerId worker, uint64_t number) {
  if (PeerLinkPtr peer = peers_.find(worker)) peer->heartbeat(number);
}

void Agent::set_valid_until(WorkerId worker, TimePoint until) {
  if (PeerLinkPtr peer = peers_.find(worker)) peer->set_valid_until(until);
}

void Agent::answer_no_heartbeats_of(WorkerId worker) {
  if (PeerLinkPtr peer = peers_.find(worker)) peer->answer_no_heartbeats();
}

// ---- From the peers.

absl::Status Agent::on_accept(const PeerIdentity& identity) {
  if (identity.group != options_.group) {
    return absl::FailedPreconditionError(absl::StrCat("worker '", options_.self.name,
                                                      "' belongs to group '", options_.group,
                                                      "', not to '", identity.group, "'"));
  }
  // Not FailedPrecondition: to the dialler that would be a sign of this worker's death.
  if (identity.security != options_.security) {
    const auto named = [](const std::string& mode) { return mode.empty() ? "auto" : mode; };
    return absl::PermissionDeniedError(absl::StrCat("WEFT_SECURITY is ", named(options_.security),
                                                    " here and ", named(identity.security),
                                                    " at the dialler"));
  }
  // This worker reaches itself without a transport. Its own calls have all rights.
  if (identity.id == options_.self.id) {
    return absl::PermissionDeniedError(absl::StrCat("worker '", identity.name, "' says that it is ",
                                                    options_.self.id.to_string(), ", which is '",
                                                    options_.self.name, "' itself"));
  }
  const PeerLinkPtr peer = peers_.find(identity.id);
  const bool stopping = environment_.stopping.load();
  if (peer == nullptr && membership_.admit != nullptr && !stopping) {
    return membership_.admit({identity.id, identity.name, identity.address});
  }
  if (peer == nullptr && stopping) {
    return absl::UnavailableError(absl::StrCat("worker '", options_.self.name, "' leaves"));
  }
  if (peer == nullptr || peer->info().name != identity.name) {
    return absl::PermissionDeniedError(absl::StrCat("worker '", identity.name, "' (",
                                                    identity.id.to_string(),
                                                    ") is not a member of the group"));
  }
  if (peer->gone()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "worker '", identity.name, "' (", identity.id.to_string(), ") was declared dead"));
  }
  return absl::OkStatus();
}

void Agent::on_open(const ConnectionPtr& connection) {
  if (PeerLinkPtr peer = peers_.find(connection->peer().id)) peer->adopt(connection);
}

void Agent::on_closed(const ConnectionPtr& connection, absl::Status reason) {
  const PeerLinkPtr peer = peers_.find(connection->peer().id);
  if (peer == nullptr || !peer->closed(connection, reason)) return;
  end_peer(peer, absl::UnavailableError("has left the group"), true);
}

void Agent::on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) {
  const PeerLinkPtr peer = peers_.find(connection->peer().id);
  if (peer == nullptr || peer->gone()) return;
  const Handling handling(environment_);
  environment_.activity.fetch_add(1);
  PeerLink::Arrival arrival = peer->receive(connection, std::move(frames));
  for (PeerLink::Arrived& each : arrival.arrived) handle(peer, std::move(each));
  if (arrival.wrong()) cut(peer, connection, arrival);
  peer->acknowledge(arrival);
}

void Agent::cut(const PeerLinkPtr& peer, const ConnectionPtr& connection,
                const PeerLink::Arrival& arrival) {
  if (arrival.foreign) {
    log_warning("'", peer->info().name, "' sent a frame that is not from itself to '",
                options_.self.name, "'; cutting its connection");
    connection->abort(absl::UnavailableError("a frame that is not from the peer"));
  } else {
    const absl::Status broke = absl::UnavailableError("broke the session protocol");
    suspect(peer->id(), broke);
    connection->abort(broke);
  }
}

void Agent::handle(const PeerLinkPtr& peer, PeerLink::Arrived arrived) {
  Frame& frame = arrived.frame;
  switch (frame.header.kind) {
    case FrameKind::kCall:
      if (arrived.cancelled) arrived.call->context()->cancel();
      handle_call(arrived.call);
      break;
    case FrameKind::kReply:
      if (std::optional<PendingCall> pending = peer->take_call(frame.header.call)) {
        pending->on_reply(std::move(frame));
      } else if (late_reply_handler_) {
        late_reply_handler_(peer->id(), std::move(frame));
      }
      break;
    case FrameKind::kPost:
      // A room that was told that the peer is gone must get no more posts of it.
      if (frame.header.function < kTopics && !peer->gone()) {
        const auto& handler = post_handlers_[frame.header.function];
        if (handler) handler(peer->id(), std::move(frame));
      }
      break;
    case FrameKind::kCancel:
      peer->cancel_incoming(frame.header);
      break;
    case FrameKind::kHeartbeat:
      if (membership_.heartbeat_answered != nullptr) {
        membership_.heartbeat_answered(peer->id(), frame.header.call);
      }
      break;
    case FrameKind::kDial:
    case FrameKind::kAck:
    case FrameKind::kGoodbye:
      break;
  }
}

void Agent::handle_call(const std::shared_ptr<IncomingCall>& call) {
  if (environment_.stopping.load() || !call_handler_) {
    call->reply(with_ran(
        absl::CancelledError(absl::StrCat("worker '", options_.self.name, "' is shutting down")),
        Ran::kNo));
    return;
  }
  call_handler_(call);
}

// ---- Peers that are gone.

void Agent::declare_dead(WorkerId worker, absl::Status reason) {
  if (worker == options_.self.id) return;
  const PeerLinkPtr peer = peers_.find(worker);
  if (peer == nullptr) {
    peers_.drop_posts_to(worker);
    if (environment_.stopping.load()) return;
    for (const GoneListener& listener : gone_listeners_) listener(worker, reason, false);
    return;
  }
  log_warning("worker '", options_.self.name, "' lost worker '", peer->info().name,
              "': ", reason.message());
  end_peer(peer, std::move(reason), false);
}

void Agent::suspect(WorkerId worker, const absl::Status& reason) {
  if (environment_.stopping.load() || worker == options_.self.id) return;
  if (membership_.suspect != nullptr) {
    membership_.suspect(worker, reason);
  } else {
    declare_dead(worker, reason);
  }
}

void Agent::fence(const absl::Status& why) {
  log_warning("fenced: ", why.message());
  const absl::Status reason(why.code(), absl::StrCat("is out of reach: ", why.message()));
  std::vector<PeerLinkPtr> peers = peers_.all();
  std::erase_if(peers, [&](const PeerLinkPtr& peer) { return peer->id() == options_.self.id; });
  // Stop all calls first. A callback of one peer that is gone may call another peer.
  for (const PeerLinkPtr& peer : peers) peer->set_valid_until(TimePoint::min());
  for (const PeerLinkPtr& peer : peers) end_peer(peer, reason, false);
}

void Agent::end_peer(const PeerLinkPtr& peer, absl::Status reason, bool left) {
  const Handling handling(environment_);  // until all callers have their replies
  if (!peer->end(reason) || environment_.stopping.load()) return;
  peers_.ended(peer->id());
  for (const GoneListener& listener : gone_listeners_) listener(peer->id(), reason, left);
}

void Agent::stop() {
  if (environment_.stopping.exchange(true)) return;
  for (const PeerLinkPtr& peer : peers_.all()) {
    if (peer->id() != options_.self.id) peer->say_goodbye();
    end_peer(peer, absl::CancelledError("is not called any more: this worker has shut down"), true);
  }
  transport_.stop();
  environment_.gate->close();
}

// ---- Looks.

std::string Agent::name_of(WorkerId worker) const {
  const PeerLinkPtr peer = peers_.find(worker);
  return peer == nullptr ? worker.to_string() : peer->info().name;
}

WorkerInfo Agent::info_of(WorkerId worker) const {
  const PeerLinkPtr peer = peers_.find(worker);
  return peer == nullptr ? WorkerInfo{worker, worker.to_string(), ""} : peer->info();
}

bool Agent::is_live(WorkerId worker) const {
  const PeerLinkPtr peer = peers_.find(worker);
  return peer != nullptr && !peer->gone();
}

TimePoint Agent::last_heard(WorkerId worker) const {
  const PeerLinkPtr peer = peers_.find(worker);
  return peer == nullptr ? TimePoint::min() : peer->heard();
}

std::vector<WorkerId> Agent::live() const {
  std::vector<WorkerId> live;
  for (const PeerLinkPtr& peer : peers_.all()) {
    if (!peer->gone()) live.push_back(peer->id());
  }
  return live;
}

std::vector<Agent::PeerLook> Agent::look_at_peers() {
  std::vector<PeerLook> looks;
  for (const PeerLinkPtr& peer : peers_.all()) {
    if (!peer->gone() && peer->id() != options_.self.id) looks.push_back(peer->look());
  }
  return looks;
}

std::vector<Agent::Traffic> Agent::traffic() const {
  std::vector<Traffic> traffic;
  for (const PeerLinkPtr& peer : peers_.all()) {
    const PeerLink::Counts counts = peer->counts();
    traffic.push_back({peer->id(), counts.sent, counts.received});
  }
  return traffic;
}

bool Agent::quiescent() const {
  if (held_.load() != 0 || peers_.has_unknown()) return false;
  for (const PeerLinkPtr& peer : peers_.all()) {
    const PeerLink::Counts counts = peer->counts();
    if (counts.pending_calls != 0 || counts.running_calls != 0) return false;
  }
  // This check is last, because a call that is no longer pending may still deliver its reply.
  return environment_.handling.load() == 0;
}

std::string Agent::work() const {
  std::vector<std::string> work;
  const auto add = [&](std::string what, size_t calls) {
    if (calls > 1) absl::StrAppend(&what, " and ", calls - 1, " more");
    work.push_back(std::move(what));
  };
  for (const PeerLinkPtr& peer : peers_.all()) {
    const PeerLink::Counts counts = peer->counts();
    const PeerLink::Oldest oldest = peer->oldest();
    const std::string& name = peer->info().name;
    if (counts.pending_calls > 0) {
      add(absl::StrCat("waits for '", name, "' to answer '", oldest.awaited, "'"),
          counts.pending_calls);
    }
    if (counts.running_calls > 0) {
      const std::string function =
          function_names_ ? function_names_(oldest.served) : absl::StrCat(absl::Hex(oldest.served));
      add(absl::StrCat("serves '", function, "' to '", name, "'"), counts.running_calls);
    }
  }
  if (held_.load() != 0) work.push_back("makes an object");
  if (peers_.has_unknown()) work.push_back("looks for workers that it does not know");
  return absl::StrJoin(work, ", ");
}

AgentInfo Agent::info() const {
  AgentInfo info;
  for (const PeerLinkPtr& peer : peers_.all()) {
    const PeerLink::Counts counts = peer->counts();
    info.pending_calls += counts.pending_calls;
    info.queued_calls += counts.queued_calls;
    info.running_calls += counts.running_calls;
    info.retained_frames += counts.retained_frames;
    info.retained_bytes += counts.retained_bytes;
    info.live_peers += peer->gone() ? 0 : 1;
    info.connections += counts.connections;
  }
  return info;
}

}  // namespace weft::rpc_internal
