#include "weft/tests/sim/rooms/sessions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using rpc_internal::PendingCall;
using rpc_internal::Topic;

namespace {

constexpr Nanoseconds kAckDelay = std::chrono::milliseconds(20);
constexpr int kRedials = 3;
constexpr Nanoseconds kRedialPause = std::chrono::milliseconds(20);
constexpr Nanoseconds kNoAnswer = std::chrono::milliseconds(100);
constexpr Nanoseconds kDialTimeout = std::chrono::seconds(3);

}  // namespace

Sessions::Sessions(Worker& worker) : worker_(worker), world_(worker.world) {}

void Sessions::add_peer(Slot slot, bool must_dial) {
  const WorkerId id = world_.incarnation(slot).id;
  if (find(id) != nullptr) return;
  peers_.push_back(std::make_unique<Peer>(worker_.id, id, slot, world_.window));
  Peer& peer = *peers_.back();
  peer.heard = world_.schedule.now();
  if (slot == worker_.slot) {
    peer.connection = world_.network.connect(slot, slot);
  } else if (must_dial) {
    dial(peer);
  }
}

void Sessions::meet(Slot slot, int connection) {
  add_peer(slot, false);
  at(slot)->connection = connection;
}

Sessions::Peer* Sessions::find(WorkerId worker) const {
  for (const auto& peer : peers_) {
    if (peer->id == worker) return peer.get();
  }
  return nullptr;
}

Sessions::Peer* Sessions::find_or_meet(WorkerId worker) {
  if (Peer* peer = find(worker)) return peer;
  if (worker_.fenced || worker_.known_dead.contains(worker)) return nullptr;
  world_.report.count(Effect::kUnknownMet);
  world_.membership->meet(worker_, worker);
  return find(worker);
}

Sessions::Peer* Sessions::at(Slot slot) const { return find(world_.incarnation(slot).id); }

bool Sessions::is_live(WorkerId worker) const {
  const Peer* peer = find(worker);
  return peer != nullptr && !peer->gone;
}

bool Sessions::is_gone(WorkerId worker) const {
  const Peer* peer = find(worker);
  return peer != nullptr && peer->gone;
}

std::vector<WorkerId> Sessions::live_peers() const {
  std::vector<WorkerId> all;
  for (const auto& peer : peers_) {
    if (!peer->gone && !peer->nameless && peer->slot != worker_.slot) all.push_back(peer->id);
  }
  return all;
}

std::vector<WorkerId> Sessions::all_live() const {
  std::vector<WorkerId> all;
  for (const auto& peer : peers_) {
    if (!peer->gone && peer->slot != worker_.slot) all.push_back(peer->id);
  }
  return all;
}

TimePoint Sessions::heard(WorkerId worker) const { return find(worker)->heard; }
void Sessions::set_heard(WorkerId worker, TimePoint when) { find(worker)->heard = when; }

// ---- out

Sessions::Sent Sessions::call(uint64_t call, WorkerId to, Frame frame, TimePoint deadline,
                              bool waited_for) {
  Peer* peer = find_or_meet(to);
  if (peer == nullptr || peer->gone) return Sent::kGone;
  frame.header.kind = FrameKind::kCall;
  frame.header.call = call;
  PendingCall pending;
  pending.deadline = deadline;
  pending.waited_for = waited_for;
  const size_t queued = peer->core.queued_calls();
  if (!peer->core.add_call(call, frame, std::move(pending), world_.schedule.now())) {
    world_.report.count(Effect::kQueueFull);
    return Sent::kQueueFull;
  }
  if (peer->core.queued_calls() > queued) {
    world_.report.count(world_.schedule.now() < peer->valid_until ? Effect::kCallsQueued
                                                                  : Effect::kCallsHeld);
  }
  if (deadline < peer->deadline_armed) arm_deadline(*peer);
  flush(*peer);
  return Sent::kYes;
}

bool Sessions::cancel(WorkerId to, uint64_t call, bool* sent) {
  Peer* peer = find(to);
  if (peer == nullptr) return false;
  const std::optional<PendingCall> pending = peer->core.take_call(call);
  if (!pending) return false;
  *sent = pending->sent;
  if (pending->sent && !peer->gone) peer->core.cancel(call);
  flush(*peer);
  return true;
}

bool Sessions::post(WorkerId to, Topic topic, std::shared_ptr<void> body, size_t bytes) {
  Peer* peer = find_or_meet(to);
  if (peer == nullptr || peer->gone) return false;
  Frame frame;
  frame.header.kind = FrameKind::kPost;
  frame.header.function = static_cast<uint64_t>(topic);
  frame.payloads.push_back({nullptr, bytes, std::move(body)});
  peer->core.post(std::move(frame));
  flush(*peer);
  return true;
}

void Sessions::reply(WorkerId to, Frame frame) {
  Peer* peer = find(to);
  if (peer == nullptr || peer->gone) return;
  frame.header.kind = FrameKind::kReply;
  peer->core.post(std::move(frame));
  flush(*peer);
}

void Sessions::call_taken(WorkerId from, const FrameHeader& header, size_t cost) {
  Peer* peer = find(from);
  if (peer == nullptr || peer->gone) return;
  peer->core.call_taken(header, cost);
  if (peer->core.ack_due()) {
    peer->core.send_ack();
    flush(*peer);
  } else {
    arm_ack(*peer);
  }
}

bool Sessions::admitted(WorkerId from, uint64_t call) {
  Peer* peer = find(from);
  return peer != nullptr && peer->core.admitted(call);
}

void Sessions::flush(Peer& peer) {
  if (peer.gone) return;
  if (peer.connection < 0) {
    if (!peer.dialling) dial(peer);
    return;
  }
  for (FramePtr& frame : peer.core.take_outgoing()) {
    if (frame->header.kind == FrameKind::kCall) world_.membership->call_sent(worker_, peer.id);
    world_.network.send(peer.connection, worker_.slot, std::move(frame));
  }
}

// ---- connections

void Sessions::dial(Peer& peer) {
  if (peer.dialling || peer.gone) return;
  peer.dialling = true;
  peer.redials = kRedials;
  peer.dial_until = world_.schedule.now() + kDialTimeout;
  world_.schedule.in(world_.dice.micros(200, 1500), EventKind::kDialled, worker_.slot, peer.slot);
}

void Sessions::add_unknown(Slot slot) {
  add_peer(slot, false);
  Peer& peer = *at(slot);
  peer.looked_up = peer.dialling = true;
}

void Sessions::reach(WorkerId peer) {
  Peer* found = find(peer);
  if (found == nullptr || found->connection >= 0) return;
  if (std::exchange(found->looked_up, false)) found->dialling = false;
  dial(*found);
}

void Sessions::on_dialled(Peer& peer) {
  if (peer.gone || peer.connection >= 0) {
    peer.dialling = false;
    return;
  }
  const Incarnation& other = world_.incarnation(peer.slot);
  const auto again = [&](Nanoseconds pause) {
    world_.schedule.in(pause, EventKind::kDialled, worker_.slot, peer.slot);
  };
  const auto unanswered = [&] {
    if (world_.schedule.now() < peer.dial_until) return again(kNoAnswer);
    peer.dialling = false;
    world_.membership->unanswered(worker_, peer.id);
  };
  if (world_.network.hits_silence(worker_.id.index, peer.id.index) ||
      world_.network.hits_silence(peer.id.index, worker_.id.index)) {
    return unanswered();
  }
  if (other.worker == nullptr) {
    if (peer.redials-- > 0) return again(kRedialPause);
    peer.dialling = false;
    world_.membership->suspect(worker_, peer.id);
    return;
  }
  if (other.paused) return unanswered();
  Sessions& there = other.worker->sessions;
  const auto door = world_.membership->accepts(*other.worker, worker_.id);
  if (door == Membership::Door::kNotYet) {
    if (world_.schedule.now() < peer.dial_until) return again(kRedialPause);
    peer.dialling = false;
    world_.membership->unanswered(worker_, peer.id);
    return;
  }
  if (door == Membership::Door::kRefused) {
    peer.dialling = false;
    world_.report.count(Effect::kRefusedAsDead);
    world_.membership->refused(worker_, peer.id);
    return;
  }
  Peer& me = *there.find(worker_.id);
  const int connection = world_.network.connect(worker_.slot, peer.slot);
  there.adopt(me, connection);
  peer.dialling = false;
  adopt(peer, connection);
}

void Sessions::adopt(Peer& peer, int connection) {
  peer.connection = connection;
  peer.heard = world_.schedule.now();
  world_.report.count(Effect::kFramesResent, peer.core.session().unacknowledged().size());
  for (FramePtr& frame : peer.core.resend()) {
    world_.network.send(connection, worker_.slot, std::move(frame));
  }
  if (std::exchange(peer.met, true)) return;
  peer.met_at = world_.schedule.now();
  world_.membership->opened(worker_, peer.id);
}

void Sessions::on_closed(int connection) {
  for (const auto& peer : peers_) {
    if (peer->connection != connection) continue;
    peer->connection = -1;
    if (!peer->core.session().unacknowledged().empty()) world_.network.felt_cut(connection);
    dial(*peer);
    return;
  }
}

// ---- timers

void Sessions::arm_ack(Peer& peer) {
  if (peer.ack_armed) return;
  peer.ack_armed = true;
  world_.schedule.in(kAckDelay, EventKind::kAck, worker_.slot, peer.slot);
}

void Sessions::arm_deadline(Peer& peer) {
  const TimePoint earliest = peer.core.earliest_deadline();
  if (earliest >= peer.deadline_armed) return;
  peer.deadline_armed = earliest;
  world_.schedule.at(earliest, EventKind::kDeadlines, worker_.slot, peer.slot);
}

void Sessions::expire_calls(Peer& peer) {
  auto late = peer.core.take_late(world_.schedule.now());
  for (auto& [call, pending] : late) {
    if (pending.sent) peer.core.cancel(call);
  }
  flush(peer);
  for (auto& [call, pending] : late) {
    worker_.calls.on_failed(call, pending.sent ? Ran::kMaybe : Ran::kNo, Calls::Where::kHere);
  }
}

void Sessions::on_event(const Event& event) {
  if (event.kind == EventKind::kClosed) return on_closed(static_cast<int>(event.a));
  Peer* peer = at(static_cast<Slot>(event.a));
  if (peer == nullptr) return;
  switch (event.kind) {
    case EventKind::kDialled:
      return on_dialled(*peer);
    case EventKind::kAck:
      peer->ack_armed = false;
      if (peer->gone || !peer->core.ack_owed()) return;
      peer->core.send_ack();
      return flush(*peer);
    case EventKind::kDeadlines:
      if (peer->deadline_armed != event.when) return;
      peer->deadline_armed = kNever;
      expire_calls(*peer);
      return arm_deadline(*peer);
    default:
      return;
  }
}

// ---- in

void Sessions::on_frame(uint64_t flight) {
  const Network::Arrived arrived = world_.network.arrive(flight);
  const FramePtr& frame = arrived.frame;
  if (arrived.heartbeat.number != 0) return on_heartbeat(arrived);
  if (frame == nullptr) return;
  const FrameHeader& header = frame->header;
  if (world_.trace.on()) world_.trace.add(describe(*frame));
  Peer* peer = find(header.source);
  if (arrived.lost && (peer == nullptr || !peer->gone)) return;
  if (peer == nullptr || peer->gone) {
    // The agent drops it. Offer it to the rooms, because they must not depend on that.
    if (peer != nullptr && header.kind == FrameKind::kPost) {
      world_.report.count(Effect::kStaleMessages);
      worker_.on_stale_post(header.source, header.function, frame->payloads.front().owner);
    }
    return;
  }
  peer->heard = peer->read = world_.schedule.now();
  if (header.destination != worker_.id) {
    return world_.violate("S7", "a frame of another incarnation arrived");
  }
  if (!peer->core.on_header(header, world_.schedule.now())) {
    return world_.violate("session", "an honest header was called a lie");
  }
  bool fresh = true;
  if (header.sequence != 0) {
    if (header.sequence > peer->core.session().acknowledged() + 1) {
      world_.report.count(Effect::kArrivedAhead);
    } else if (arrived.overtaken && peer->core.session().gaps() > 0) {
      world_.report.effect(Fault::kOvertake);
    }
    fresh = peer->core.accept(*frame);
    if (!fresh) {
      world_.report.count(Effect::kDuplicatesDropped);
      if (arrived.repeated) world_.report.effect(Fault::kDuplicate);
    }
  }
  (void)peer->core.take_released();
  if (fresh) handle(*peer, frame);
  if (peer->gone) return;
  if (peer->core.ack_due()) {
    peer->core.send_ack();
  } else if (peer->core.ack_owed()) {
    arm_ack(*peer);
  }
  flush(*peer);
}

// The worker answers a heartbeat at once, where it was read.
void Sessions::on_heartbeat(const Network::Arrived& arrived) {
  const Network::Heartbeat& heartbeat = arrived.heartbeat;
  Peer* peer = at(arrived.from);
  if (arrived.lost || peer == nullptr || peer->gone) return;
  peer->read = world_.schedule.now();
  peer->lag = heartbeat.lag;
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("heartbeat ", heartbeat.number,
                                  heartbeat.answer ? " answered by " : " of ",
                                  peer->id.to_string()));
  }
  if (heartbeat.answer)
    return world_.membership->on_heartbeat_answer(worker_, peer->id, heartbeat.number);
  if (peer->suspected) return;
  world_.network.send_heartbeat(arrived.connection, worker_.slot, {heartbeat.number, true, lag_});
}

void Sessions::handle(Peer& peer, const FramePtr& frame) {
  switch (frame->header.kind) {
    case FrameKind::kCall:
      return worker_.calls.on_call(peer.id, *frame);
    case FrameKind::kReply: {
      const std::optional<PendingCall> pending = peer.core.take_call(frame->header.call);
      return worker_.calls.on_reply(peer.id, *frame, pending.has_value());
    }
    case FrameKind::kPost:
      return worker_.on_post(peer.id, frame->header.function, frame->payloads.front().owner);
    case FrameKind::kCancel:
      if (!worker_.calls.on_cancel(peer.id, frame->header.call)) {
        peer.core.note_cancel(frame->header);
      }
      return;
    default:
      return;
  }
}

// ---- for the library's membership

void Sessions::admit(WorkerId joiner) {
  if (find(joiner) != nullptr) return;  // it has dialled twice
  add_peer(world_.slot_of(joiner), false);
  find(joiner)->nameless = true;
}

bool Sessions::name(WorkerId joiner) {
  Peer* peer = find(joiner);
  return peer != nullptr && std::exchange(peer->nameless, false);
}

void Sessions::heartbeat(WorkerId to, uint64_t number) {
  const Peer* peer = find(to);
  if (peer == nullptr || peer->connection < 0) return;
  world_.report.count(Effect::kHeartbeats);
  world_.network.send_heartbeat(peer->connection, worker_.slot, {number, false, lag_});
}

void Sessions::set_valid_until(WorkerId id, TimePoint until) {
  Peer* peer = find(id);
  if (peer == nullptr || peer->gone) return;
  peer->valid_until = until;
  peer->core.set_valid_until(until, world_.schedule.now());
  flush(*peer);
}

void Sessions::answer_no_heartbeats_of(WorkerId peer) {
  if (Peer* found = find(peer)) found->suspected = true;
}

// Does what Agent::look_at_peers does, with the shared state of Membership::tick.
void Sessions::append_looks(const std::vector<WorkerId>& tied,
                            std::vector<rpc_internal::MembershipCore::Look>& looks,
                            const LocalClock& clock) {
  for (const auto& peer : peers_) {
    if (peer->gone || peer->slot == worker_.slot) continue;
    const uint64_t traffic = peer->core.counted_sent() + peer->core.counted_received();
    const bool busy = traffic != std::exchange(peer->looked_at, traffic) ||
                      peer->core.pending_calls() > 0 ||
                      !peer->core.session().unacknowledged().empty() ||
                      std::binary_search(tied.begin(), tied.end(), peer->id);
    const bool met = peer->read != TimePoint() ||
                     (peer->met && world_.schedule.now() - peer->met_at >= kDialTimeout);
    looks.push_back({peer->id, busy, clock.at(peer->read), peer->lag, Nanoseconds(0), met});
  }
}

void Sessions::end_peer(WorkerId id) {
  Peer* peer = find(id);
  if (peer == nullptr || peer->gone) return;
  peer->gone = true;
  (void)peer->core.take_all_frames();
  const auto pending = peer->core.take_all_calls();
  if (peer->connection >= 0) world_.network.cut(peer->connection, false);
  peer->connection = -1;
  for (const auto& [call, what] : pending) {
    worker_.calls.on_failed(call, what.sent ? Ran::kMaybe : Ran::kNo, Calls::Where::kPeerGone);
  }
  worker_.calls.cancel_all_from(id);
}

// ---- views

Sessions::Left Sessions::left() const {
  Left left;
  for (const auto& peer : peers_) {
    if (peer->gone) continue;
    left.calls += peer->core.pending_calls();
    left.queued += peer->core.queued_calls();
    const size_t frames = peer->core.session().unacknowledged().size();
    left.frames += frames;
    left.most_frames = std::max(left.most_frames, frames);
    left.gaps += peer->core.session().gaps();
  }
  return left;
}

std::string Sessions::leftovers() const {
  const Left left = this->left();
  if (left.calls + left.queued + left.frames + left.gaps == 0) return {};
  return absl::StrCat(left.calls, " calls, ", left.queued, " queued, ", left.frames,
                      " frames not acknowledged, ", left.gaps, " gaps");
}

}  // namespace weft::sim
