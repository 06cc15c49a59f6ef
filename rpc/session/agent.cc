#include "weft/rpc/session/agent.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/session/internal/agent_peer.h"
#include "weft/rpc/session/internal/loopback_connection.h"
#include "weft/rpc/transport/frame_codec.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft::rpc_internal {
namespace {

// What the calls to a peer that is gone fail with.
absl::Status gone_status(const WorkerInfo& peer, const absl::Status& reason, Ran ran) {
  absl::Status status(reason.code(), absl::StrCat("worker '", peer.name, "' (", peer.id.to_string(),
                                                  ") ", reason.message()));
  return raised_at(with_ran(std::move(status), ran), peer.name);
}

}  // namespace

void IncomingCall::taken() {
  if (!taken_.exchange(true)) agent_.call_taken(*this, cost_);
}

void IncomingCall::accept() {
  if (!replied_.exchange(true)) agent_.finish_call(*this, Frame());
}

void IncomingCall::reply(absl::StatusOr<Frame> result) {
  if (replied_.exchange(true)) return;
  taken();
  agent_.finish_call(*this, std::move(result));
}

Agent::Agent(AgentOptions options, Transport& transport, Clock& clock, Executor& executor)
    : options_(std::move(options)),
      transport_(transport),
      clock_(clock),
      executor_(executor),
      gate_(std::make_shared<async_internal::Gate<Agent>>(*this)) {}

Agent::~Agent() { stop(); }

void Agent::set_post_handler(Topic topic, PostHandler handler) {
  post_handlers_[static_cast<size_t>(topic)] = std::move(handler);
}

PeerIdentity Agent::identity() const {
  return {options_.group, options_.self.name, options_.self.id, options_.self.address};
}

absl::Status Agent::start(std::vector<WorkerInfo> members) {
  std::sort(members.begin(), members.end(),
            [](const WorkerInfo& a, const WorkerInfo& b) { return a.id < b.id; });
  PeerPtr self;
  {
    MutexLock lock(mutex_);
    members_ = std::move(members);
    for (const WorkerInfo& member : members_) {
      peers_[member.id.bits()] = std::make_shared<Peer>(member, options_.self.id, options_.credit);
    }
    auto found = peers_.find(options_.self.id.bits());
    if (found == peers_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("worker '", options_.self.name, "' is not among the group's members"));
    }
    self = found->second;
  }
  {
    MutexLock lock(self->mutex);
    self->connection = std::make_shared<LoopbackConnection>(identity(), *this, executor_);
  }
  WEFT_RETURN_IF_ERROR(transport_.start(identity(), this));
  for (const PeerPtr& peer : all_peers()) {
    if (peer->info.id < options_.self.id || options_.dial_all) dial(peer, options_.connect_timeout);
  }
  // The others dial this worker. One that died before it came to that would never be missed.
  clock_.call_at(clock_.now() + options_.connect_timeout, [gate = gate_] {
    gate->enter([](Agent& agent) {
      for (const PeerPtr& peer : agent.all_peers()) {
        agent.dial(peer, agent.options_.connect_timeout);
      }
    });
  });
  return absl::OkStatus();
}

absl::Status Agent::check_size(const Frame& frame) const {
  return check_frame(frame, options_.limits);
}

CallId Agent::call(WorkerId to, Frame frame, std::string_view function, TimePoint deadline,
                   ReplyHandler on_reply, bool waited_for) {
  activity_.fetch_add(1);
  const CallId id{next_call_.fetch_add(1, std::memory_order_relaxed)};
  PeerPtr peer = find(to);
  if (peer == nullptr) {
    on_reply(with_ran(absl::NotFoundError(absl::StrCat("no worker ", to.to_string(), " is known")),
                      Ran::kNo));
    return id;
  }
  frame.header.kind = FrameKind::kCall;
  frame.header.call = id.number;
  const TimePoint now = clock_.now();
  absl::Status refused;
  Departure departure;
  bool arm = false;
  {
    MutexLock lock(peer->mutex);
    if (peer->gone.load()) {
      refused = gone_status(peer->info, peer->fate, Ran::kNo);
    } else if (deadline <= now) {
      refused = with_ran(
          absl::DeadlineExceededError(absl::StrCat(
              "call to '", absl::string_view(function.data(), function.size()), "' on worker '",
              peer->info.name, "' was not sent: its deadline had passed already")),
          Ran::kNo);
    } else {
      PendingCall pending{std::move(on_reply),
                          function,
                          deadline,
                          deadline == kNever ? Nanoseconds::max() : deadline - now,
                          false,
                          waited_for};
      if (!peer->core.add_call(id.number, frame, std::move(pending), now)) {
        on_reply = std::move(pending.on_reply);
        refused =
            with_ran(absl::ResourceExhaustedError(absl::StrCat(
                         "call to '", absl::string_view(function.data(), function.size()),
                         "' on worker '", peer->info.name, "': ", options_.credit.max_queued_calls,
                         " calls or ", options_.credit.max_queued_bytes,
                         " bytes wait for credit, or for the answer to a heartbeat, already")),
                     Ran::kNo);
      } else {
        arm = deadline < peer->deadline_armed;
        departure = peer->depart();
      }
    }
  }
  if (!refused.ok()) {
    on_reply(std::move(refused));
    return id;
  }
  if (arm) arm_deadline(peer);
  WEFT_FAIL_POINT("agent.call.numbered");
  send(peer, std::move(departure));
  WEFT_FAIL_POINT("agent.call.sent");
  return id;
}

void Agent::cancel(WorkerId to, CallId call) {
  PeerPtr peer = find(to);
  if (peer == nullptr) return;
  // Not quiet until whoever waits has been told.
  handling_.fetch_add(1);
  const absl::Cleanup handled = [this] {
    activity_.fetch_add(1);
    handling_.fetch_sub(1);
  };
  std::optional<PendingCall> pending;
  {
    MutexLock lock(peer->mutex);
    pending = peer->core.take_call(call.number);
    if (!pending) return;
    if (pending->sent && !peer->gone.load()) peer->core.cancel(call.number);
  }
  WEFT_FAIL_POINT("agent.cancel.numbered");
  flush(peer);
  pending->on_reply(
      with_ran(absl::CancelledError(absl::StrCat(
                   "call ", call.number, " of '",
                   absl::string_view(pending->function.data(), pending->function.size()),
                   "' on worker '", peer->info.name, "' was cancelled by the caller")),
               pending->sent ? Ran::kMaybe : Ran::kNo));
  activity_.fetch_add(1);
}

bool Agent::post(WorkerId to, Topic topic, std::string body, std::vector<Payload> payloads) {
  Frame frame;
  frame.body = std::move(body);
  frame.payloads = std::move(payloads);
  return post(to, topic, std::move(frame));
}

bool Agent::post(WorkerId to, Topic topic, Frame frame) {
  activity_.fetch_add(1);
  PeerPtr peer = find(to);
  if (peer != nullptr && peer->gone.load()) return false;
  if (absl::Status size = check_size(frame); !size.ok()) {
    log_error("a post to '", name_of(to), "' is not sent: ", size.message());
    return false;
  }
  frame.header.kind = FrameKind::kPost;
  frame.header.function = static_cast<uint64_t>(topic);
  if (peer == nullptr) return post_to_unknown(to, std::move(frame));
  Departure departure;
  {
    MutexLock lock(peer->mutex);
    if (peer->gone.load()) return false;
    peer->core.post(std::move(frame));
    departure = peer->depart();
  }
  WEFT_FAIL_POINT("agent.post.numbered");
  send(peer, std::move(departure));
  return true;
}

void Agent::arm_ack(const PeerPtr& peer) {
  {
    MutexLock lock(peer->mutex);
    if (peer->ack_armed) return;
    peer->ack_armed = true;
  }
  clock_.call_at(clock_.now() + options_.ack_delay, [gate = gate_, peer] {
    gate->enter([&](Agent& agent) {
      {
        MutexLock lock(peer->mutex);
        peer->ack_armed = false;
        if (!peer->core.ack_owed()) return;
        peer->core.send_ack();
      }
      agent.flush(peer);
    });
  });
}

void Agent::arm_deadline(const PeerPtr& peer) {
  TimePoint earliest;
  {
    MutexLock lock(peer->mutex);
    earliest = peer->core.earliest_deadline();
    if (earliest >= peer->deadline_armed) return;
    peer->deadline_armed = earliest;
  }
  clock_.call_at(earliest, [gate = gate_, peer, earliest] {
    gate->enter([&](Agent& agent) {
      {
        MutexLock lock(peer->mutex);
        if (peer->deadline_armed != earliest) return;  // an earlier one was armed since
        peer->deadline_armed = kNever;
      }
      agent.expire_calls(peer);
      agent.arm_deadline(peer);
    });
  });
}

void Agent::expire_calls(const PeerPtr& peer) {
  // Not quiet until whoever waits has been told.
  handling_.fetch_add(1);
  const absl::Cleanup handled = [this] {
    activity_.fetch_add(1);
    handling_.fetch_sub(1);
  };
  std::vector<std::pair<uint64_t, PendingCall>> late;
  {
    MutexLock lock(peer->mutex);
    late = peer->core.take_late(clock_.now());
    for (auto& [call, pending] : late) {
      if (pending.sent) peer->core.cancel(call);
    }
  }
  flush(peer);
  for (auto& [call, pending] : late) {
    activity_.fetch_add(1);
    pending.on_reply(
        with_ran(absl::DeadlineExceededError(absl::StrCat(
                     "call ", call, " to '",
                     absl::string_view(pending.function.data(), pending.function.size()),
                     "' on worker '", peer->info.name, "' exceeded its deadline of ",
                     absl::FormatDuration(absl::FromChrono(pending.allowed)))),
                 pending.sent ? Ran::kMaybe : Ran::kNo));
  }
}

void Agent::handle_call(const std::shared_ptr<IncomingCall>& call) {
  if (stopping_.load() || !call_handler_) {
    call->reply(with_ran(
        absl::CancelledError(absl::StrCat("worker '", options_.self.name, "' is shutting down")),
        Ran::kNo));
    return;
  }
  call_handler_(call);
}

void Agent::handle_cancel(const PeerPtr& peer, const FrameHeader& cancel) {
  std::shared_ptr<IncomingCall> incoming;
  {
    MutexLock lock(peer->mutex);
    auto found = peer->core.incoming().find(cancel.call);
    if (found == peer->core.incoming().end()) {
      peer->core.note_cancel(cancel);
      return;
    }
    incoming = found->second;
  }
  incoming->context()->cancel();
}

void Agent::call_taken(const IncomingCall& call, size_t cost) {
  PeerPtr peer = find(call.from());
  if (peer == nullptr) return;
  bool ack_now = false, ack_later = false;
  {
    MutexLock lock(peer->mutex);
    peer->core.call_taken(call.header(), cost);
    ack_now = peer->core.ack_due();
    ack_later = !ack_now && !peer->ack_armed;
    if (ack_now) peer->core.send_ack();
  }
  if (ack_later) arm_ack(peer);
  if (ack_now) flush(peer);
}

void Agent::finish_call(IncomingCall& call, absl::StatusOr<Frame> result) {
  WEFT_FAIL_POINT("agent.reply.finished");
  activity_.fetch_add(1);
  PeerPtr peer = find(call.from());
  if (peer == nullptr) return;
  Frame frame;
  if (result.ok()) {
    frame = *std::move(result);
  } else {
    frame.header.flags |= kFlagError;
    frame.meta = encode_status_meta(raised_at(result.status(), options_.self.name));
  }
  frame.header.kind = FrameKind::kReply;
  frame.header.call = call.header().call;
  std::shared_ptr<IncomingCall> released;  // dies outside the lock
  {
    MutexLock lock(peer->mutex);
    auto found = peer->core.incoming().find(call.header().call);
    if (found != peer->core.incoming().end()) {
      released = std::move(found->second);
      peer->core.incoming().erase(found);
    }
    if (!peer->gone.load()) peer->core.post(std::move(frame));
  }
  WEFT_FAIL_POINT("agent.reply.numbered");
  flush_soon(peer);
}

void Agent::declare_dead(WorkerId worker, absl::Status reason) {
  if (worker == options_.self.id) return;
  PeerPtr peer = find(worker);
  if (peer == nullptr) {
    {
      MutexLock lock(mutex_);
      unknown_.erase(worker.bits());
    }
    if (stopping_.load()) return;
    for (const GoneListener& listener : gone_listeners_) listener(worker, reason, false);
    return;
  }
  log_warning("worker '", options_.self.name, "' lost worker '", peer->info.name,
              "': ", reason.message());
  end_peer(peer, std::move(reason), false);
}

void Agent::suspect(WorkerId worker, const absl::Status& reason) {
  if (stopping_.load() || worker == options_.self.id) return;
  if (membership_.suspect != nullptr) {
    membership_.suspect(worker, reason);
  } else {
    declare_dead(worker, reason);
  }
}

void Agent::fence(const absl::Status& why) {
  log_warning("fenced: ", why.message());
  const absl::Status reason(why.code(), absl::StrCat("is out of reach: ", why.message()));
  std::vector<PeerPtr> peers = all_peers();
  std::erase_if(peers, [&](const PeerPtr& peer) { return peer->info.id == options_.self.id; });
  // First of all no call leaves any more: what ends with one peer may call another.
  for (const PeerPtr& peer : peers) set_valid_until(peer->info.id, TimePoint::min());
  for (const PeerPtr& peer : peers) end_peer(peer, reason, false);
}

void Agent::heartbeat(WorkerId worker, uint64_t number) {
  PeerPtr peer = find(worker);
  if (peer == nullptr) return;
  Departure departure;
  {
    MutexLock lock(peer->mutex);
    if (peer->connection == nullptr) return;
    Frame heartbeat;
    heartbeat.header.kind = FrameKind::kHeartbeat;
    heartbeat.header.call = number;
    heartbeat.body = heartbeat_body();
    peer->core.send_unnumbered(std::move(heartbeat));
    departure = peer->depart();
  }
  send(peer, std::move(departure));
}

void Agent::say_in_heartbeats(std::string body) {
  MutexLock lock(heartbeat_mutex_);
  heartbeat_body_ = std::move(body);
}

std::string Agent::heartbeat_body() const {
  MutexLock lock(heartbeat_mutex_);
  return heartbeat_body_;
}

void Agent::set_valid_until(WorkerId worker, TimePoint until) {
  PeerPtr peer = find(worker);
  if (peer == nullptr) return;
  {
    MutexLock lock(peer->mutex);
    peer->valid_until = until;
    peer->mute_for =
        Nanoseconds(0);  // an answer that came too late for trust still shows the stream
    peer->core.set_valid_until(until, clock_.now());
  }
  flush(peer);
}

void Agent::answer_no_heartbeats_of(WorkerId worker) {
  if (PeerPtr peer = find(worker)) peer->suspected.store(true);
}

void Agent::end_peer(const PeerPtr& peer, absl::Status reason, bool left) {
  // Not quiet until whoever waits has been told.
  handling_.fetch_add(1);
  const absl::Cleanup handled = [this] {
    activity_.fetch_add(1);
    handling_.fetch_sub(1);
  };
  std::vector<std::pair<uint64_t, PendingCall>> pending;
  std::vector<std::pair<uint64_t, std::shared_ptr<IncomingCall>>> incoming;
  std::vector<ConnectionPtr> connections;
  FrameBatch last;  // of a worker that leaves: what it has said is still sent
  {
    MutexLock lock(peer->mutex);
    if (peer->gone.exchange(true)) return;
    if (stopping_.load()) last = peer->core.take_outgoing();
    peer->fate = reason;
    pending = peer->core.take_all_calls();
    incoming.assign(peer->core.incoming().begin(), peer->core.incoming().end());
    peer->core.incoming().clear();
    connections.swap(peer->others);
    if (peer->connection != nullptr) connections.push_back(std::move(peer->connection));
    peer->connection = nullptr;
  }
  WEFT_FAIL_POINT("agent.peer.ended");
  activity_.fetch_add(1);
  if (!connections.empty() && !last.empty()) (void)connections.back()->send(std::move(last));
  for (const ConnectionPtr& connection : connections) {
    // The far end of a worker that leaves gets what is queued. A peer that is gone may not answer.
    stopping_.load() ? connection->close() : connection->abort(reason);
  }
  // Its own calls first: whoever learns below that the peer is gone finds them given up. In an
  // order that does not depend on the table's.
  std::sort(incoming.begin(), incoming.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [id, call] : incoming) call->context()->cancel();
  for (auto& [id, call] : pending) {
    absl::Status status = gone_status(peer->info, reason, call.sent ? Ran::kMaybe : Ran::kNo);
    call.on_reply(
        prepend(absl::StrCat("call ", id, " to '",
                             absl::string_view(call.function.data(), call.function.size()), "': "),
                status));
  }
  if (stopping_.load()) return;
  forget_incarnations(peer->info.id);
  for (const GoneListener& listener : gone_listeners_) listener(peer->info.id, reason, left);
}

std::vector<Agent::Traffic> Agent::traffic() const {
  std::vector<Traffic> traffic;
  for (const PeerPtr& peer : all_peers()) {
    MutexLock lock(peer->mutex);
    traffic.push_back({peer->info.id, peer->core.counted_sent(), peer->core.counted_received()});
  }
  return traffic;
}

bool Agent::quiet() const {
  if (held_.load() != 0) return false;
  {
    MutexLock lock(mutex_);
    if (!unknown_.empty()) return false;
  }
  for (const PeerPtr& peer : all_peers()) {
    MutexLock lock(peer->mutex);
    if (peer->core.pending_calls() != 0 || !peer->core.incoming().empty()) return false;
  }
  // Last: a call that is no longer pending may still be about to tell its caller.
  return handling_.load() == 0;
}

std::string Agent::work() const {
  std::vector<std::string> work;
  const auto add = [&](std::string what, size_t calls) {
    if (calls > 1) absl::StrAppend(&what, " and ", calls - 1, " more");
    work.push_back(std::move(what));
  };
  for (const PeerPtr& peer : all_peers()) {
    size_t pending = 0, running = 0;
    std::string awaited;
    uint64_t served = 0;
    {
      MutexLock lock(peer->mutex);
      const PendingCall* call = peer->core.oldest_call();
      if (call != nullptr) awaited = std::string(call->function);
      pending = peer->core.pending_calls();
      const auto& incoming = peer->core.incoming();
      const auto oldest =
          std::min_element(incoming.begin(), incoming.end(),
                           [](const auto& a, const auto& b) { return a.first < b.first; });
      if (oldest != incoming.end()) served = oldest->second->header().function;
      running = incoming.size();
    }
    const std::string& name = peer->info.name;
    if (pending > 0) add(absl::StrCat("waits for '", name, "' to answer '", awaited, "'"), pending);
    if (running > 0) {
      const std::string function =
          function_names_ ? function_names_(served) : absl::StrCat(absl::Hex(served));
      add(absl::StrCat("serves '", function, "' to '", name, "'"), running);
    }
  }
  if (held_.load() != 0) work.push_back("makes an object");
  MutexLock lock(mutex_);
  if (!unknown_.empty()) work.push_back("looks for workers that it does not know");
  return absl::StrJoin(work, ", ");
}

AgentInfo Agent::info() const {
  AgentInfo info;
  for (const PeerPtr& peer : all_peers()) {
    MutexLock lock(peer->mutex);
    info.pending_calls += peer->core.pending_calls();
    info.queued_calls += peer->core.queued_calls();
    info.running_calls += peer->core.incoming().size();
    info.retained_frames += peer->core.session().unacknowledged().size();
    info.retained_bytes += peer->core.session().retained_bytes();
    info.live_peers += peer->gone.load() ? 0 : 1;
    info.connections += (peer->connection != nullptr ? 1 : 0) + peer->others.size();
  }
  return info;
}

void Agent::stop() {
  if (stopping_.exchange(true)) return;
  for (const PeerPtr& peer : all_peers()) {
    {
      MutexLock lock(peer->mutex);
      if (peer->connection != nullptr && peer->info.id != options_.self.id) {
        Frame goodbye;
        goodbye.header.kind = FrameKind::kGoodbye;
        peer->core.send_unnumbered(std::move(goodbye));
      }
    }
    end_peer(peer, absl::CancelledError("is not called any more: this worker has shut down"), true);
  }
  transport_.stop();
  gate_->close();
}

}  // namespace weft::rpc_internal
