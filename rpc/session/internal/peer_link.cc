#include "weft/rpc/session/internal/peer_link.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/session/internal/call_errors.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMaxGaps = size_t{1} << 20;  // frames of a peer that may wait beyond a gap
constexpr size_t kMostSaid = 256;             // bytes of a heartbeat's body; else it is ignored

// Without a number, such a frame would be accepted each time that it comes.
bool must_be_numbered(FrameKind kind) {
  return kind == FrameKind::kCall || kind == FrameKind::kReply || kind == FrameKind::kPost ||
         kind == FrameKind::kCancel;
}

TimePoint deadline_of(const FrameHeader& call, TimePoint now) {
  if (call.budget_us == 0) return kNever;
  constexpr uint64_t kMost = uint64_t{1} << 50;
  const auto budget = static_cast<int64_t>(std::min(call.budget_us, kMost));
  return Timeout(absl::Microseconds(budget)).deadline_from(now);
}

}  // namespace

void LinkEnvironment::say_in_heartbeats(std::string body) {
  MutexLock lock(mutex);
  heartbeat_text = std::move(body);
}

std::string LinkEnvironment::heartbeat_body() const {
  MutexLock lock(mutex);
  return heartbeat_text;
}

PeerLink::PeerLink(LinkEnvironment& environment, WorkerInfo info)
    : environment_(environment),
      info_(std::move(info)),
      dialler_(environment, *this),
      core_(environment.self.id, info_.id, environment.credit) {}

TimePoint PeerLink::heard() const {
  return TimePoint(TimePoint::duration(heard_.load(std::memory_order_relaxed)));
}

// ---- To the peer.

absl::Status PeerLink::call(CallId id, Frame frame, PendingCall& pending) {
  frame.header.kind = FrameKind::kCall;
  frame.header.call = id.number;
  const TimePoint now = environment_.clock.now();
  const TimePoint deadline = pending.deadline;
  pending.allowed = deadline == kNever ? Nanoseconds::max() : deadline - now;
  const std::string_view function = pending.function;
  Departure departure;
  bool arm = false;
  {
    MutexLock lock(mutex_);
    if (gone_.load()) return gone_error(info_, fate_, Ran::kNo);
    if (deadline <= now) return late_before_sending(info_, function);
    if (!core_.add_call(id.number, frame, std::move(pending), now)) {
      return queue_full(info_, function, environment_.credit);
    }
    arm = deadline < deadline_armed_;
    departure = depart();
  }
  if (arm) arm_deadline();
  WEFT_FAIL_POINT("agent.call.numbered");
  send(std::move(departure));
  WEFT_FAIL_POINT("agent.call.sent");
  return absl::OkStatus();
}

std::optional<PendingCall> PeerLink::cancel(CallId call) {
  std::optional<PendingCall> pending;
  {
    MutexLock lock(mutex_);
    pending = core_.take_call(call.number);
    if (!pending) return std::nullopt;
    if (pending->sent && !gone_.load()) core_.cancel(call.number);
  }
  WEFT_FAIL_POINT("agent.cancel.numbered");
  flush();
  return pending;
}

bool PeerLink::post(Frame frame) {
  frame.header.kind = FrameKind::kPost;
  Departure departure;
  {
    MutexLock lock(mutex_);
    if (gone_.load()) return false;
    core_.post(std::move(frame));
    departure = depart();
  }
  WEFT_FAIL_POINT("agent.post.numbered");
  send(std::move(departure));
  return true;
}

void PeerLink::post_first(std::vector<Frame> posts) {
  MutexLock lock(mutex_);
  for (Frame& post : posts) core_.post(std::move(post));
}

void PeerLink::answer(uint64_t call, absl::StatusOr<Frame> result) {
  WEFT_FAIL_POINT("agent.reply.finished");
  environment_.activity.fetch_add(1);
  Frame frame;
  if (result.ok()) {
    frame = *std::move(result);
  } else {
    frame.header.flags |= kFlagError;
    frame.meta = encode_status_meta(raised_at(result.status(), environment_.self.name));
  }
  frame.header.kind = FrameKind::kReply;
  frame.header.call = call;
  std::shared_ptr<IncomingCall> released;  // destroyed outside the lock
  {
    MutexLock lock(mutex_);
    auto found = core_.incoming().find(call);
    if (found != core_.incoming().end()) {
      released = std::move(found->second);
      core_.incoming().erase(found);
    }
    if (!gone_.load()) core_.post(std::move(frame));
  }
  WEFT_FAIL_POINT("agent.reply.numbered");
  flush_soon();
}

void PeerLink::call_taken(const FrameHeader& header, size_t cost) {
  bool ack_now = false, ack_later = false;
  {
    MutexLock lock(mutex_);
    core_.call_taken(header, cost);
    ack_now = core_.ack_due();
    ack_later = !ack_now && !ack_armed_;
    if (ack_now) core_.send_ack();
  }
  if (ack_later) arm_ack();
  if (ack_now) flush();
}

void PeerLink::heartbeat(uint64_t number) {
  Departure departure;
  {
    MutexLock lock(mutex_);
    if (connection_ == nullptr) return;
    Frame heartbeat;
    heartbeat.header.kind = FrameKind::kHeartbeat;
    heartbeat.header.call = number;
    heartbeat.body = environment_.heartbeat_body();
    core_.send_unnumbered(std::move(heartbeat));
    departure = depart();
  }
  send(std::move(departure));
}

void PeerLink::set_valid_until(TimePoint until) {
  {
    MutexLock lock(mutex_);
    health_.set_valid_until(until);
    core_.set_valid_until(until, environment_.clock.now());
  }
  flush();
}

void PeerLink::say_goodbye() {
  MutexLock lock(mutex_);
  if (connection_ == nullptr) return;
  Frame goodbye;
  goodbye.header.kind = FrameKind::kGoodbye;
  core_.send_unnumbered(std::move(goodbye));
}

void PeerLink::arm_ack() {
  {
    MutexLock lock(mutex_);
    if (ack_armed_) return;
    ack_armed_ = true;
  }
  environment_.clock.call_at(environment_.clock.now() + environment_.ack_delay,
                             [gate = environment_.gate, link = shared_from_this()] {
                               gate->enter([&](LinkEnvironment&) {
                                 {
                                   MutexLock lock(link->mutex_);
                                   link->ack_armed_ = false;
                                   if (!link->core_.ack_owed()) return;
                                   link->core_.send_ack();
                                 }
                                 link->flush();
                               });
                             });
}

void PeerLink::arm_deadline() {
  TimePoint earliest;
  {
    MutexLock lock(mutex_);
    earliest = core_.earliest_deadline();
    if (earliest >= deadline_armed_) return;
    deadline_armed_ = earliest;
  }
  environment_.clock.call_at(earliest,
                             [gate = environment_.gate, link = shared_from_this(), earliest] {
                               gate->enter([&](LinkEnvironment&) {
                                 {
                                   MutexLock lock(link->mutex_);
                                   if (link->deadline_armed_ != earliest)
                                     return;  // another timer, for an earlier deadline, is armed
                                   link->deadline_armed_ = kNever;
                                 }
                                 link->expire_calls();
                                 link->arm_deadline();
                               });
                             });
}

void PeerLink::expire_calls() {
  const Handling handling(environment_);  // until all callers have their replies
  std::vector<std::pair<uint64_t, PendingCall>> late;
  {
    MutexLock lock(mutex_);
    late = core_.take_late(environment_.clock.now());
    for (auto& [call, pending] : late) {
      if (pending.sent && !gone_.load()) core_.cancel(call);
    }
  }
  flush();
  for (auto& [call, pending] : late) {
    environment_.activity.fetch_add(1);
    pending.on_reply(late_error(info_, call, pending));
  }
}

// ---- From the peer.

PeerLink::Arrival PeerLink::receive(const ConnectionPtr& connection, std::vector<Frame> frames) {
  WEFT_FAIL_POINT("agent.frames.arrived");
  Arrival arrival;
  arrival.arrived.reserve(frames.size());
  FrameBatch answers;  // to heartbeats
  heard_.store(environment_.clock.now().time_since_epoch().count(), std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    spoken_ = true;
    for (Frame& frame : frames) {
      accept(frame, arrival, answers);
      if (arrival.foreign || !arrival.honest) break;
    }
    arrival.done = core_.take_released();
    const bool ack_now = core_.ack_due();
    arrival.ack_later = !ack_now && core_.ack_owed() && !ack_armed_;
    if (ack_now) core_.send_ack();
  }
  WEFT_FAIL_POINT("agent.frames.accepted");
  if (!answers.empty()) (void)connection->send(std::move(answers));
  admit(arrival.arrived, connection->peer().role);
  WEFT_FAIL_POINT("agent.frames.admitted");
  return arrival;
}

void PeerLink::accept(Frame& frame, Arrival& arrival, FrameBatch& answers) {
  const FrameHeader& header = frame.header;
  arrival.foreign = header.source != info_.id || header.destination != environment_.self.id;
  if (arrival.foreign) return;
  arrival.honest = (header.sequence != 0 || !must_be_numbered(header.kind)) &&
                   core_.on_header(header, environment_.clock.now());
  bool fresh = true;
  if (arrival.honest && header.sequence != 0) {
    fresh = core_.accept(frame);
    arrival.honest = core_.session().gaps() <= kMaxGaps;
  }
  if (!arrival.honest) return;
  if (header.kind == FrameKind::kGoodbye) said_goodbye_ = true;
  if (!fresh) return;
  if (header.kind == FrameKind::kHeartbeat && frame.body.size() <= kMostSaid) {
    said_ = std::move(frame.body);
  }
  if (header.kind == FrameKind::kHeartbeat && (header.flags & kFlagAnswer) == 0) {
    if (!suspected_.load()) answers.push_back(core_.answer(header, environment_.heartbeat_body()));
    return;
  }
  if (header.kind == FrameKind::kReply) core_.note_reply(header.call);
  arrival.arrived.emplace_back(std::move(frame));
}

std::optional<PendingCall> PeerLink::take_call(uint64_t call) {
  MutexLock lock(mutex_);
  return core_.take_call(call);
}

void PeerLink::admit(std::vector<Arrived>& arrived, const std::string& role) {
  bool any = false;
  for (Arrived& each : arrived) {
    if (each.frame.header.kind != FrameKind::kCall) continue;
    any = true;
    auto context = std::make_shared<CallContext>(
        environment_.clock, info_.id, info_.name,
        deadline_of(each.frame.header, environment_.clock.now()), role);
    each.call = std::make_shared<IncomingCall>(shared_from_this(), info_.id, std::move(each.frame),
                                               std::move(context));
  }
  if (!any) return;
  MutexLock lock(mutex_);
  for (Arrived& each : arrived) {
    if (each.call == nullptr) continue;
    const uint64_t id = each.call->header().call;
    // end() has emptied the table of a peer that is gone: nobody would take this call out again.
    each.cancelled = core_.admitted(id) || gone_.load();
    if (!gone_.load()) core_.incoming().emplace(id, each.call);
  }
}

void PeerLink::acknowledge(const Arrival& arrival) {
  if (arrival.ack_later) arm_ack();
  flush();
}

void PeerLink::cancel_incoming(const FrameHeader& cancel) {
  std::shared_ptr<IncomingCall> incoming;
  {
    MutexLock lock(mutex_);
    auto found = core_.incoming().find(cancel.call);
    if (found == core_.incoming().end()) {
      core_.note_cancel(cancel);
      return;
    }
    incoming = found->second;
  }
  incoming->context()->cancel();
}

// ---- Connections.

PeerLink::Departure PeerLink::depart() {
  if (gone_.load()) return {};
  // Without a connection, all frames wait until adopt() sends them.
  if (connection_ == nullptr) return {nullptr, {}, !dial_.dialling};
  return {connection_, core_.take_outgoing(), false};
}

void PeerLink::send(Departure departure) {
  if (!departure.frames.empty()) {
    put(departure.connection, std::move(departure.frames));
  } else if (departure.must_dial) {
    dialler_.dial(environment_.connect_timeout);
  }
}

ConnectionPtr PeerLink::connection() const {
  MutexLock lock(mutex_);
  return connection_;
}

void PeerLink::put(const ConnectionPtr& connection, FrameBatch frames) {
  if (connection->send(std::move(frames))) return;
  MutexLock lock(mutex_);
  if (connection_ == connection) health_.refused(environment_.clock.now());
}

void PeerLink::flush() {
  Departure departure;
  {
    MutexLock lock(mutex_);
    departure = depart();
  }
  send(std::move(departure));
}

void PeerLink::flush_soon() {
  if (ServingThreads::may_defer()) {
    if (flush_deferred_.exchange(true)) return;
    if (ServingThreads::defer([gate = environment_.gate, link = shared_from_this()] {
          link->flush_deferred_.store(false);
          gate->enter([&](LinkEnvironment&) { link->flush(); });
        })) {
      return;
    }
    flush_deferred_.store(false);
  }
  flush();
}

bool PeerLink::wants_connection() const {
  return connection_ == nullptr && !gone_.load() && !environment_.stopping.load();
}

bool PeerLink::begin_dial() {
  MutexLock lock(mutex_);
  if (dial_.dialling || !wants_connection()) return false;
  return dial_.dialling = true;
}

bool PeerLink::end_dial(bool again, bool lacks_descriptors) {
  MutexLock lock(mutex_);
  const bool wanted = wants_connection();
  dial_.dialling = wanted && again;
  dial_.lacks_descriptors = dial_.dialling && lacks_descriptors;
  return wanted;
}

bool PeerLink::resume_dial() {
  MutexLock lock(mutex_);
  return dial_.dialling = wants_connection();
}

void PeerLink::use(ConnectionPtr next) {
  connection_ = std::move(next);
  if (connection_ != nullptr && first_connected_ == kNever) {
    first_connected_ = environment_.clock.now();
  }
  health_.restart();
}

void PeerLink::connect_to_self(ConnectionPtr loopback) {
  MutexLock lock(mutex_);
  use(std::move(loopback));
}

void PeerLink::adopt(const ConnectionPtr& connection) {
  // The peer has taken part in the handshake.
  heard_.store(environment_.clock.now().time_since_epoch().count(), std::memory_order_relaxed);
  FrameBatch frames;
  bool first = false;
  {
    MutexLock lock(mutex_);
    if (!gone_.load()) {
      if (connection_ != nullptr) {
        others_.push_back(connection);
        return;
      }
      first = first_connected_ == kNever;
      use(connection);
      frames = core_.resend();
      const auto& waiting = core_.session().unacknowledged();
      dial_.resent(waiting.empty() ? 0 : waiting.front()->header.sequence);
    }
  }
  if (gone_.load()) {
    connection->abort(absl::UnavailableError("the peer is gone"));
    return;
  }
  WEFT_FAIL_POINT("agent.resend");
  put(connection, std::move(frames));
  if (first && environment_.opened != nullptr) environment_.opened(info_.id);
}

bool PeerLink::closed(const ConnectionPtr& connection, const absl::Status& reason) {
  bool lost = false, left = false;
  Nanoseconds pause{0};
  ConnectionPtr spare;
  FrameBatch frames;
  {
    MutexLock lock(mutex_);
    std::erase(others_, connection);
    if (connection_ == connection) {
      use(nullptr);
      lost = true;
      left = said_goodbye_;
      pause = dial_.pause();
      if (!others_.empty()) {
        // In the same critical section, so that `closed` for the spare finds it in use.
        spare = others_.back();
        others_.pop_back();
        use(spare);
        frames = core_.resend();
      }
    }
  }
  if (!lost || environment_.stopping.load() || gone_.load()) return false;
  if (left) return true;
  if (spare != nullptr) {
    put(spare, std::move(frames));
  } else {
    // If the peer's process is dead, the dial is refused at once. A live one gets its frames again.
    log_info("connection to '", info_.name, "' ended (", reason.ToString(), "), dialling again");
    dialler_.dial(environment_.reconnect_timeout, pause);
  }
  return false;
}

// ---- The peer is gone.

bool PeerLink::end(const absl::Status& reason) {
  std::vector<std::pair<uint64_t, PendingCall>> pending;
  std::vector<std::pair<uint64_t, std::shared_ptr<IncomingCall>>> incoming;
  std::vector<ConnectionPtr> connections;
  FrameBatch last;  // frames that are still sent if this worker leaves
  // Destroyed outside the lock, and last, because destructors of tensors may run.
  std::vector<FramePtr> dropped;
  const bool stopping = environment_.stopping.load();
  {
    MutexLock lock(mutex_);
    if (gone_.exchange(true)) return false;
    if (stopping) last = core_.take_outgoing();
    fate_ = reason;
    dropped = core_.take_all_frames();
    pending = core_.take_all_calls();
    if (first_connected_ == kNever) {
      for (auto& [call, open] : pending) open.sent = false;  // its frame never left this worker
    }
    incoming.assign(core_.incoming().begin(), core_.incoming().end());
    core_.incoming().clear();
    connections.swap(others_);
    if (connection_ != nullptr) connections.push_back(std::move(connection_));
    connection_ = nullptr;
  }
  WEFT_FAIL_POINT("agent.peer.ended");
  environment_.activity.fetch_add(1);
  if (!connections.empty() && !last.empty()) (void)connections.back()->send(std::move(last));
  for (const ConnectionPtr& connection : connections) {
    // If this worker leaves, an orderly close delivers the queued frames. A peer that is gone may
    // not answer an orderly close, so its connections are aborted.
    stopping ? connection->close() : connection->abort(reason);
  }
  // The peer's calls are cancelled first, so they are cancelled when a callback below learns that
  // the peer is gone. The order is sorted so that it does not depend on the hash table.
  std::sort(incoming.begin(), incoming.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [id, call] : incoming) call->context()->cancel();
  for (auto& [id, call] : pending) {
    call.on_reply(gone_error(info_, reason, id, call));
  }
  return true;
}

// ---- Looks.

PeerLink::Look PeerLink::look() {
  const TimePoint now = environment_.clock.now();
  Look look;
  look.peer = info_.id;
  look.heard = heard();
  ConnectionPtr hung;
  const char* how = nullptr;
  {
    MutexLock lock(mutex_);
    how = health_.hangs(connection_.get(), core_.session(), look.heard, now,
                        environment_.stuck_after);
    if (how != nullptr) {
      hung = connection_;
      health_.restart();
    }
  }
  if (hung != nullptr) {
    log_warning("the connection to '", info_.name, "', which is heard, hangs: ", how,
                "; making a new one");
    // An orderly close would wait for an answer on the stream that hangs. closed() dials the next
    // connection.
    hung->abort(absl::UnavailableError(absl::StrCat("the connection hung: ", how)));
  }
  MutexLock lock(mutex_);
  // Without file descriptors this worker causes the silence itself.
  if (dial_.lacks_descriptors) look.heard = now;
  look.said = said_;
  look.met = spoken_ ||
             (first_connected_ != kNever && now - first_connected_ >= environment_.connect_timeout);
  const uint64_t traffic = core_.counted_sent() + core_.counted_received();
  look.busy = traffic != std::exchange(looked_at_, traffic) || core_.pending_calls() > 0 ||
              core_.running_calls() > 0 || !core_.session().unacknowledged().empty();
  return look;
}

PeerLink::Counts PeerLink::counts() const {
  MutexLock lock(mutex_);
  return {.sent = core_.counted_sent(),
          .received = core_.counted_received(),
          .pending_calls = core_.pending_calls(),
          .queued_calls = core_.queued_calls(),
          .running_calls = core_.running_calls(),
          .retained_frames = core_.session().unacknowledged().size(),
          .retained_bytes = core_.session().retained_bytes(),
          .connections = (connection_ != nullptr ? 1 : 0) + others_.size()};
}

PeerLink::Oldest PeerLink::oldest() const {
  Oldest oldest;
  MutexLock lock(mutex_);
  if (const PendingCall* call = core_.oldest_call()) oldest.awaited = std::string(call->function);
  if (const IncomingCall* call = core_.oldest_incoming()) oldest.served = call->header().function;
  return oldest;
}

}  // namespace weft::rpc_internal
