// The agent's side towards connections: dialling, accepting, frames in and out, their ends.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/session/internal/agent_peer.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMaxGaps = size_t{1} << 20;  // out-of-order frames a peer may leave open
constexpr size_t kMostSaid = 256;             // bytes of a heartbeat's body

// A connection may be cut while it is made; one that lives answers one of the next.
constexpr int kRedials = 3;
constexpr Nanoseconds kRedialPause = std::chrono::milliseconds(20);

// Without its number such a frame would be taken as often as it comes.
bool must_be_numbered(FrameKind kind) {
  return kind == FrameKind::kCall || kind == FrameKind::kReply || kind == FrameKind::kPost ||
         kind == FrameKind::kCancel;
}

}  // namespace

// What has arrived and is no duplicate, on its way to whom it is for.
struct Agent::Arrived {
  explicit Arrived(Frame frame_in) : frame(std::move(frame_in)) {}
  Frame frame;
  std::optional<PendingCall> pending;  // a reply's, unless nobody waits for it any more
  std::shared_ptr<IncomingCall> call;  // a call's; holds the frame
  bool cancelled = false;              // before it came
};

void Agent::send(const PeerPtr& peer, Departure departure) {
  if (!departure.frames.empty()) {
    put(peer, departure.connection, std::move(departure.frames));
  } else if (departure.must_dial) {
    dial(peer, options_.connect_timeout);
  }
}

void Agent::put(const PeerPtr& peer, const ConnectionPtr& connection, FrameBatch frames) {
  if (connection->send(std::move(frames))) return;
  MutexLock lock(peer->mutex);
  if (peer->connection != connection || peer->refused_since != kNever) return;
  peer->refused_since = clock_.now();
}

void Agent::flush(const PeerPtr& peer) {
  Departure departure;
  {
    MutexLock lock(peer->mutex);
    departure = peer->depart();
  }
  send(peer, std::move(departure));
}

void Agent::flush_soon(const PeerPtr& peer) {
  if (ServingThreads::may_defer()) {
    if (peer->flush_put_off.exchange(true)) return;
    if (ServingThreads::defer([gate = gate_, peer] {
          peer->flush_put_off.store(false);
          gate->enter([&](Agent& agent) { agent.flush(peer); });
        })) {
      return;
    }
    peer->flush_put_off.store(false);
  }
  flush(peer);
}

void Agent::dial(const PeerPtr& peer, Nanoseconds timeout) {
  {
    MutexLock lock(peer->mutex);
    if (peer->dialling || peer->connection != nullptr || peer->gone.load() || stopping_.load()) {
      return;
    }
    peer->dialling = true;
  }
  dial_until(peer, clock_.now() + timeout, kRedials);
}

void Agent::dial_until(const PeerPtr& peer, TimePoint deadline, int redials) {
  // The callback runs before the transport has stopped, and that before this agent ends.
  transport_.connect(
      peer->info.address, {options_.group, peer->info.name, peer->info.id}, deadline,
      [=, this](const absl::StatusOr<ConnectionPtr>& connection) {
        const absl::Status& status = connection.status();
        // Nobody but this worker is to blame for that: it goes on trying.
        const bool exhausted = absl::IsResourceExhausted(status);
        const bool told = absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status);
        // The far end does not know yet whether to accept this worker, and it lives.
        const bool later = absl::IsAborted(status);
        const bool in_time = (redials > 0 || later) && clock_.now() < deadline;
        bool again = false;
        {
          MutexLock lock(peer->mutex);
          // A connection is there if it dialled this worker meanwhile.
          again = !connection.ok() && (exhausted || (in_time && !told)) &&
                  peer->connection == nullptr && !peer->gone.load() && !stopping_.load();
          peer->dialling = again;
          peer->cannot_dial = exhausted && again;
          if (!connection.ok() && peer->connection != nullptr) return;
        }
        if (connection.ok()) {
          adopt(peer, *connection);
        } else if (stopping_.load()) {
          return;
        } else if (again) {
          const TimePoint until = exhausted ? clock_.now() + options_.reconnect_timeout : deadline;
          clock_.call_at(clock_.now() + kRedialPause, [=, gate = gate_] {
            gate->enter([&](Agent& agent) {
              agent.redial(peer, until, exhausted || later ? kRedials : redials - 1);
            });
          });
        } else {
          suspect(peer->info.id, dial_failure(*peer, status));
        }
      });
}

// PermissionDenied: it refuses this worker. Unavailable: nobody, or somebody else, is there.
// DeadlineExceeded: nothing was heard that could be understood.
absl::Status Agent::dial_failure(const Peer& peer, const absl::Status& status) {
  const bool refused = absl::IsPermissionDenied(status);
  const bool nobody = absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
  return absl::Status(refused  ? absl::StatusCode::kPermissionDenied
                      : nobody ? absl::StatusCode::kUnavailable
                               : absl::StatusCode::kDeadlineExceeded,
                      absl::StrCat(refused ? "refuses this worker" : "cannot be reached", " at ",
                                   peer.info.address, ": ", status.message()));
}

void Agent::dial_after(const PeerPtr& peer, Nanoseconds pause) {
  if (pause <= Nanoseconds(0)) return dial(peer, options_.reconnect_timeout);
  {
    MutexLock lock(peer->mutex);
    if (peer->dialling || peer->connection != nullptr) return;
    peer->dialling = true;
  }
  clock_.call_at(clock_.now() + pause, [gate = gate_, peer] {
    gate->enter([&](Agent& agent) {
      agent.redial(peer, agent.clock_.now() + agent.options_.reconnect_timeout, kRedials);
    });
  });
}

void Agent::redial(const PeerPtr& peer, TimePoint deadline, int redials) {
  {
    MutexLock lock(peer->mutex);
    peer->dialling = peer->connection == nullptr && !peer->gone.load() && !stopping_.load();
    if (!peer->dialling) return;
  }
  dial_until(peer, deadline, redials);
}

void Agent::adopt(const PeerPtr& peer, const ConnectionPtr& connection) {
  // The handshake was a sign of life.
  peer->heard.store(clock_.now().time_since_epoch().count(), std::memory_order_relaxed);
  FrameBatch frames;
  {
    MutexLock lock(peer->mutex);
    if (!peer->gone.load()) {
      if (peer->connection != nullptr) {
        peer->others.push_back(connection);
        return;
      }
      peer->use(connection);
      peer->cannot_dial = false;
      frames = peer->core.resend();
      peer->note_resent();
    }
  }
  if (peer->gone.load()) {
    connection->abort(absl::UnavailableError("the peer is gone"));
    return;
  }
  WEFT_FAIL_POINT("agent.resend");
  put(peer, connection, std::move(frames));
  if (!peer->met.exchange(true) && membership_.opened != nullptr) {
    membership_.opened(peer->info.id);
  }
}

absl::Status Agent::on_accept(const PeerIdentity& identity) {
  if (identity.group != options_.group) {
    return absl::FailedPreconditionError(absl::StrCat("worker '", options_.self.name,
                                                      "' belongs to group '", options_.group,
                                                      "', not to '", identity.group, "'"));
  }
  PeerPtr peer = find(identity.id);
  if (peer == nullptr && membership_.admit != nullptr && !stopping_.load()) {
    return membership_.admit({identity.id, identity.name, identity.address});
  }
  if (peer == nullptr && stopping_.load()) {
    return absl::UnavailableError(absl::StrCat("worker '", options_.self.name, "' leaves"));
  }
  if (peer == nullptr || peer->info.name != identity.name) {
    return absl::PermissionDeniedError(absl::StrCat("worker '", identity.name, "' (",
                                                    identity.id.to_string(),
                                                    ") is not a member of the group"));
  }
  if (peer->gone.load()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "worker '", identity.name, "' (", identity.id.to_string(), ") was declared dead"));
  }
  return absl::OkStatus();
}

void Agent::on_open(const ConnectionPtr& connection) {
  if (PeerPtr peer = find(connection->peer().id)) adopt(peer, connection);
}

void Agent::on_closed(const ConnectionPtr& connection, absl::Status reason) {
  PeerPtr peer = find(connection->peer().id);
  if (peer == nullptr) return;
  bool lost = false, left = false;
  Nanoseconds pause{0};
  ConnectionPtr spare;
  FrameBatch frames;
  {
    MutexLock lock(peer->mutex);
    std::erase(peer->others, connection);
    if (peer->connection == connection) {
      peer->use(nullptr);
      lost = true;
      left = peer->said_goodbye;
      pause = peer->redial_pause(kRedialPause);
      if (!peer->others.empty()) {
        // Under this lock: its own end must find it in its place.
        spare = peer->others.back();
        peer->others.pop_back();
        peer->use(spare);
        frames = peer->core.resend();
      }
    }
  }
  if (!lost || stopping_.load() || peer->gone.load()) return;
  if (left) {
    end_peer(peer, absl::UnavailableError("has left the group"), true);
  } else if (spare != nullptr) {
    put(peer, spare, std::move(frames));
  } else {
    // A process that died refuses this at once; one that lives gets its frames again.
    log_info("connection to '", peer->info.name, "' ended (", reason.ToString(),
             "), dialling again");
    dial_after(peer, pause);
  }
}

void Agent::on_frames(const ConnectionPtr& connection, std::vector<Frame> frames) {
  PeerPtr peer = find(connection->peer().id);
  if (peer == nullptr || peer->gone.load()) return;
  WEFT_FAIL_POINT("agent.frames.arrived");
  handling_.fetch_add(1);
  activity_.fetch_add(1);
  std::vector<Arrived> arrived;
  arrived.reserve(frames.size());
  bool foreign = false, honest = true, ack_now = false, ack_later = false;
  const TimePoint now = clock_.now();
  peer->heard.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  FrameBatch answers;              // to heartbeats
  std::vector<FramePtr> released;  // die outside the lock
  {
    MutexLock lock(peer->mutex);
    for (Frame& frame : frames) {
      const FrameHeader& header = frame.header;
      foreign = header.source != peer->info.id || header.destination != options_.self.id;
      if (foreign) break;
      honest = (header.sequence != 0 || !must_be_numbered(header.kind)) &&
               peer->core.on_header(header, now);
      bool fresh = true;
      if (honest && header.sequence != 0) {
        fresh = peer->core.accept(frame);
        honest = peer->core.session().gaps() <= kMaxGaps;
      }
      if (!honest) break;
      if (header.kind == FrameKind::kGoodbye) peer->said_goodbye = true;
      if (!fresh) continue;
      if (header.kind == FrameKind::kHeartbeat && frame.body.size() <= kMostSaid) {
        peer->said = std::move(frame.body);
      }
      if (header.kind == FrameKind::kHeartbeat && (header.flags & kFlagAnswer) == 0) {
        if (!peer->suspected.load()) answers.push_back(peer->core.answer(header, heartbeat_body()));
        continue;
      }
      Arrived& next = arrived.emplace_back(std::move(frame));
      if (next.frame.header.kind == FrameKind::kReply) {
        next.pending = peer->core.take_call(next.frame.header.call);
      }
    }
    released = peer->core.take_released();
    ack_now = peer->core.ack_due();
    ack_later = !ack_now && peer->core.ack_owed() && !peer->ack_armed;
    if (ack_now) peer->core.send_ack();
  }
  WEFT_FAIL_POINT("agent.frames.accepted");
  // On the connection that brought the heartbeat: the answer shows that this one works.
  if (!answers.empty()) (void)connection->send(std::move(answers));
  admit(peer, arrived);
  WEFT_FAIL_POINT("agent.frames.admitted");
  for (Arrived& each : arrived) handle(peer, std::move(each));
  if (foreign) {
    log_warning("'", peer->info.name, "' sent a frame that is not from itself to '",
                options_.self.name, "'; cutting its connection");
    connection->abort(absl::UnavailableError("a frame that is not from the peer"));
  } else if (!honest) {
    const absl::Status broke = absl::UnavailableError("broke the session protocol");
    suspect(peer->info.id, broke);
    connection->abort(broke);
  }
  if (ack_later) arm_ack(peer);
  flush(peer);
  activity_.fetch_add(1);
  handling_.fetch_sub(1);
}

void Agent::admit(const PeerPtr& peer, std::vector<Arrived>& arrived) {
  bool any = false;
  for (Arrived& each : arrived) {
    const FrameHeader& header = each.frame.header;
    if (header.kind != FrameKind::kCall) continue;
    any = true;
    const TimePoint deadline =
        header.budget_us == 0 ? kNever
                              : Timeout(absl::Microseconds(static_cast<int64_t>(std::min<uint64_t>(
                                            header.budget_us, uint64_t{1} << 50))))
                                    .deadline_from(clock_.now());
    auto context = std::make_shared<CallContext>(clock_, peer->info.id, peer->info.name, deadline);
    each.call =
        std::make_shared<IncomingCall>(*this, peer->info.id, std::move(each.frame), context);
  }
  if (!any) return;
  MutexLock lock(peer->mutex);
  for (Arrived& each : arrived) {
    if (each.call == nullptr) continue;
    const uint64_t id = each.call->header().call;
    peer->core.incoming().emplace(id, each.call);
    // Of a peer that went meanwhile nobody else would cancel it.
    each.cancelled = peer->core.admitted(id) || peer->gone.load();
  }
}

void Agent::handle(const PeerPtr& peer, Arrived arrived) {
  Frame& frame = arrived.frame;
  switch (frame.header.kind) {
    case FrameKind::kCall:
      if (arrived.cancelled) arrived.call->context()->cancel();
      handle_call(arrived.call);
      break;
    case FrameKind::kReply:
      if (arrived.pending) {
        arrived.pending->on_reply(std::move(frame));
      } else if (late_reply_handler_) {
        late_reply_handler_(peer->info.id, std::move(frame));
      }
      break;
    case FrameKind::kPost:
      // Whoever heard of its end hears nothing more of it.
      if (frame.header.function < kTopics && post_handlers_[frame.header.function] &&
          !peer->gone.load()) {
        post_handlers_[frame.header.function](peer->info.id, std::move(frame));
      }
      break;
    case FrameKind::kCancel:
      handle_cancel(peer, frame.header);
      break;
    case FrameKind::kAbort:
      suspect(peer->info.id, absl::UnavailableError("ended the session"));
      break;
    case FrameKind::kHeartbeat:
      if (membership_.heartbeat_answered != nullptr) {
        membership_.heartbeat_answered(peer->info.id, frame.header.call);
      }
      break;
    case FrameKind::kHello:
    case FrameKind::kAck:
    case FrameKind::kGoodbye:
      break;
  }
}

}  // namespace weft::rpc_internal
