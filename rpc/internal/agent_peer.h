// What an agent keeps of each peer.
//
// Thread safety: the fields say what guards them.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "weft/rpc/internal/agent.h"

namespace weft::internal {

struct Agent::Peer {
  Peer(WorkerInfo info_in, WorkerId self, const CreditWindow& window)
      : info(std::move(info_in)), core(self, info.id, window) {}

  const WorkerInfo info;
  std::atomic<bool> gone{false};
  std::atomic<bool> suspected{false};
  std::atomic<bool> met{false};       // there was a connection
  std::atomic<bool> nameless{false};  // a newcomer that has not met all: resolve() passes it over
  std::atomic<TimePoint::rep> heard{TimePoint::min().time_since_epoch().count()};  // last frame
  // Of look_at_peers() alone: the traffic at the last look, and since when nothing has moved.
  uint64_t looked_at ABSL_GUARDED_BY(mutex) = 0;
  // Oldest frame without acknowledgement, bytes queued.
  std::pair<uint64_t, size_t> moved_to ABSL_GUARDED_BY(mutex) = {0, 0};
  TimePoint moved_at ABSL_GUARDED_BY(mutex);
  TimePoint trusted_until ABSL_GUARDED_BY(mutex) = kNever;
  TimePoint unanswered_since ABSL_GUARDED_BY(mutex) = kNever;
  Mutex mutex;
  PeerCore core ABSL_GUARDED_BY(mutex);
  ConnectionPtr connection ABSL_GUARDED_BY(mutex);           // the one that is written to
  std::vector<ConnectionPtr> others ABSL_GUARDED_BY(mutex);  // both ends dialled at once
  bool dialling ABSL_GUARDED_BY(mutex) = false;
  bool cannot_dial ABSL_GUARDED_BY(mutex) = false;  // for want of descriptors here
  uint64_t resent_from ABSL_GUARDED_BY(mutex) = 0;
  int futile ABSL_GUARDED_BY(mutex) = 0;  // connections that began there and got no further
  bool said_goodbye ABSL_GUARDED_BY(mutex) = false;
  absl::Status fate ABSL_GUARDED_BY(mutex);  // why it is gone
  TimePoint deadline_armed ABSL_GUARDED_BY(mutex) = kNever;
  bool ack_armed ABSL_GUARDED_BY(mutex) = false;
  std::atomic<bool> flush_put_off{false};  // a serving thread will flush

  // Something waits to be acknowledged, and nothing has moved since `moved_at`.
  bool is_stuck(TimePoint now, Nanoseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto& waiting = core.session().unacknowledged();
    std::pair<uint64_t, size_t> reached{0, 0};
    if (!waiting.empty() && connection != nullptr) {
      reached = {waiting.front()->header.sequence, connection->queued_bytes()};
    }
    if (reached.first == 0 || reached != moved_to) {
      moved_to = reached;
      moved_at = now;
    }
    return now - moved_at >= limit;
  }

  // Beats are not answered, and the peer is heard: they may travel where a lane hangs. What keeps
  // waiting for an answer would wait as long as that lane.
  bool is_mute(TimePoint now, Nanoseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (now < trusted_until || connection == nullptr) {
      unanswered_since = kNever;
    } else if (unanswered_since == kNever) {
      unanswered_since = now;
    }
    return unanswered_since != kNever && now - unanswered_since >= limit;
  }

  // A new connection begins with the oldest frame that was not acknowledged. Where several, one
  // after the other, end without getting it across, the next waits: shorter than leases notice.
  void note_resent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto& waiting = core.session().unacknowledged();
    const uint64_t oldest = waiting.empty() ? 0 : waiting.front()->header.sequence;
    futile = oldest != 0 && oldest == resent_from ? std::min(futile + 1, 6) : 0;  // 160 ms
    resent_from = oldest;
  }
  Nanoseconds redial_pause(Nanoseconds unit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return futile <= 3 ? Nanoseconds(0) : unit * (1 << (futile - 3));
  }

  // With the lock; what it gives is sent without it.
  Departure depart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (gone.load()) return {};
    // Without a connection everything waits for one: adopt() sends it.
    if (connection == nullptr) return {nullptr, {}, !dialling};
    return {connection, core.take_outgoing(), false};
  }
};

}  // namespace weft::internal
