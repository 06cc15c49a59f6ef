// The agent's side towards connections: dialling, accepting, frames in and out, their ends.
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/internal/agent_peer.h"

namespace weft::internal {
namespace {

constexpr size_t kMaxGaps = size_t{1} << 20;  // out-of-order frames a peer may leave open

}  // namespace

void Agent::flush(const PeerPtr& peer) {
  std::vector<FramePtr> frames;
  ConnectionPtr connection;
  bool must_dial = false;
  {
    MutexLock lock(peer->mutex);
    if (peer->gone.load()) return;
    connection = peer->connection;
    // Without a connection everything waits for one: adopt() sends it.
    if (connection != nullptr) frames = peer->core.take_outgoing();
    must_dial = connection == nullptr && !peer->dialling;
  }
  if (connection != nullptr) {
    for (FramePtr& frame : frames) {
      if (!connection->send(std::move(frame))) break;  // on_closed will dial again and resend
    }
  } else if (must_dial) {
    dial(peer, options_.connect_timeout);
  }
}

void Agent::dial(const PeerPtr& peer, Nanoseconds timeout) {
  {
    MutexLock lock(peer->mutex);
    if (peer->dialling || peer->connection != nullptr || peer->gone.load() || stopping_.load()) {
      return;
    }
    peer->dialling = true;
  }
  transport_.connect(peer->info.address, {options_.group, peer->info.name, peer->info.id},
                     clock_.now() + timeout,
                     [this, peer](absl::StatusOr<ConnectionPtr> connection) {
                       {
                         MutexLock lock(peer->mutex);
                         peer->dialling = false;
                       }
                       if (connection.ok()) {
                         adopt(peer, *connection);
                         return;
                       }
                       {
                         MutexLock lock(peer->mutex);
                         if (peer->connection != nullptr)
                           return;  // it dialled this worker meanwhile
                       }
                       if (stopping_.load()) return;
                       declare_dead(peer->info.id, absl::UnavailableError(absl::StrCat(
                                                       "cannot be reached at ", peer->info.address,
                                                       ": ", connection.status().message())));
                     });
}

void Agent::adopt(const PeerPtr& peer, const ConnectionPtr& connection) {
  std::vector<FramePtr> frames;
  {
    MutexLock lock(peer->mutex);
    if (!peer->gone.load()) {
      if (peer->connection != nullptr) {
        peer->others.push_back(connection);
        return;
      }
      peer->connection = connection;
      frames = peer->core.resend();
    }
  }
  if (peer->gone.load()) {
    connection->close();
    return;
  }
  for (FramePtr& frame : frames) {
    if (!connection->send(std::move(frame))) return;
  }
}

absl::Status Agent::on_accept(const PeerIdentity& identity) {
  if (identity.group != options_.group) {
    return absl::FailedPreconditionError(absl::StrCat("worker '", options_.self.name,
                                                      "' belongs to group '", options_.group,
                                                      "', not to '", identity.group, "'"));
  }
  PeerPtr peer = find(identity.id);
  if (peer == nullptr || peer->info.name != identity.name) {
    return absl::FailedPreconditionError(absl::StrCat("worker '", identity.name, "' (",
                                                      identity.id.to_string(),
                                                      ") is not a member of the group"));
  }
  if (peer->gone.load()) {
    return absl::FailedPreconditionError(absl::StrCat(
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
  ConnectionPtr spare;
  std::vector<FramePtr> frames;
  {
    MutexLock lock(peer->mutex);
    std::erase(peer->others, connection);
    if (peer->connection == connection) {
      peer->connection = nullptr;
      lost = true;
      left = peer->said_goodbye;
      if (!peer->others.empty()) {
        // Under this lock: its own end must find it in its place.
        spare = peer->others.back();
        peer->others.pop_back();
        peer->connection = spare;
        frames = peer->core.resend();
      }
    }
  }
  if (!lost || stopping_.load() || peer->gone.load()) return;
  if (left) {
    end_peer(peer, absl::UnavailableError("has left the group"), true);
  } else if (spare != nullptr) {
    for (FramePtr& frame : frames) {
      if (!spare->send(std::move(frame))) return;
    }
  } else {
    // A process that died refuses this at once; one that lives gets its frames again.
    log_info("connection to '", peer->info.name, "' ended (", reason.ToString(),
             "), dialling again");
    dial(peer, options_.reconnect_timeout);
  }
}

void Agent::on_frame(const ConnectionPtr& connection, Frame frame) {
  const FrameHeader& header = frame.header;
  PeerPtr peer = find(connection->peer().id);
  if (peer == nullptr || peer->gone.load()) return;
  if (header.source != peer->info.id || header.destination != options_.self.id) {
    log_warning("'", peer->info.name, "' sent a frame from ", header.source.to_string(), " to ",
                header.destination.to_string(), "; closing its connection");
    connection->close();
    return;
  }
  handling_.fetch_add(1);
  activity_.fetch_add(1);
  bool fresh = true, honest = true, ack_now = false, ack_later = false;
  {
    MutexLock lock(peer->mutex);
    honest = peer->core.on_header(header, clock_.now());
    if (honest && header.sequence != 0) {
      fresh = peer->core.accept(frame);
      honest = peer->core.session().gaps() <= kMaxGaps;
      ack_now = peer->core.ack_due();
      ack_later = !ack_now && !peer->ack_armed;
      if (ack_now) peer->core.send_ack();
    }
    if (header.kind == FrameKind::kGoodbye) peer->said_goodbye = true;
  }
  if (!honest) {
    declare_dead(peer->info.id, absl::UnavailableError("broke the session protocol"));
    connection->close();
  } else if (fresh) {
    switch (header.kind) {
      case FrameKind::kCall:
        handle_call(peer, std::move(frame));
        break;
      case FrameKind::kReply:
        handle_reply(peer, std::move(frame));
        break;
      case FrameKind::kPost:
        if (header.function < kTopics && post_handlers_[header.function]) {
          post_handlers_[header.function](peer->info.id, std::move(frame));
        }
        break;
      case FrameKind::kCancel:
        handle_cancel(peer, header.call);
        break;
      case FrameKind::kAbort:
        declare_dead(peer->info.id, absl::UnavailableError("ended the session"));
        break;
      case FrameKind::kHello:
      case FrameKind::kAck:
      case FrameKind::kGoodbye:
        break;
    }
  }
  if (ack_later) arm_ack(peer);
  flush(peer);
  handling_.fetch_sub(1);
}

}  // namespace weft::internal
