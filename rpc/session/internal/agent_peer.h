// What an agent keeps of each peer.
//
// Thread safety: the fields say what guards them.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "weft/rpc/session/agent.h"
#include "weft/rpc/session/internal/stream_watch.h"

namespace weft::rpc_internal {

struct Agent::Peer {
  Peer(WorkerInfo info_in, WorkerId self, const CreditWindow& window)
      : info(std::move(info_in)), core(self, info.id, window) {}

  const WorkerInfo info;
  std::atomic<bool> gone{false};
  std::atomic<bool> suspected{false};
  std::atomic<bool> met{false};       // there was a connection
  std::atomic<bool> nameless{false};  // a joiner that has not met all: resolve() passes it over
  std::atomic<TimePoint::rep> heard{TimePoint::min().time_since_epoch().count()};  // last frame
  // Of look_at_peers() alone: the traffic at the last look, and what the connection does with it.
  uint64_t looked_at ABSL_GUARDED_BY(mutex) = 0;
  StreamWatch watch ABSL_GUARDED_BY(mutex);
  TimePoint refused_since ABSL_GUARDED_BY(mutex) = kNever;  // the connection takes no frames
  TimePoint valid_until ABSL_GUARDED_BY(mutex) = kNever;
  // How long the peer was heard while no heartbeat of this worker was answered, as far as the looks
  // saw.
  Nanoseconds mute_for ABSL_GUARDED_BY(mutex){0};
  TimePoint mute_look ABSL_GUARDED_BY(mutex);  // the last look, and what was heard until then
  TimePoint::rep mute_heard ABSL_GUARDED_BY(mutex) = 0;
  std::string said ABSL_GUARDED_BY(mutex);  // body of its newest heartbeat or answer
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

  // The connection that is written to from now on, or none.
  void use(ConnectionPtr next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    connection = std::move(next);
    judge_anew();
  }
  void judge_anew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    watch = StreamWatch();
    refused_since = kNever;
    mute_for = Nanoseconds(0);
  }

  // Something waits to be acknowledged, and nothing has moved on its stream for `limit`.
  bool is_stuck(TimePoint now, Nanoseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto& waiting = core.session().unacknowledged();
    if (waiting.empty() || connection == nullptr) return watch.is_stuck(0, {}, now, limit);
    const Frame& oldest = *waiting.front();
    return watch.is_stuck(oldest.header.sequence, connection->streams_of(oldest), now, limit);
  }

  // Heartbeats are not answered, and the peer is heard: they may travel where a stream hangs. What
  // keeps waiting for an answer would wait as long as that stream. A peer that is not heard may be
  // slow: its silence does not count, nor does the time in which this worker itself did not look.
  bool is_mute(TimePoint now, Nanoseconds limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    constexpr Nanoseconds kMostOfALook = std::chrono::seconds(1);
    const Nanoseconds passed =
        std::min<Nanoseconds>(now - std::exchange(mute_look, now), kMostOfALook);
    const TimePoint::rep heard_until = heard.load(std::memory_order_relaxed);
    const bool was_heard = std::exchange(mute_heard, heard_until) != heard_until;
    if (now < valid_until || connection == nullptr) {
      mute_for = Nanoseconds(0);
    } else if (was_heard) {
      mute_for += std::min<Nanoseconds>(passed, now - valid_until);
    }
    return mute_for >= limit;
  }

  // `send` was refused, and the connection has not ended since.
  bool is_refused(TimePoint now, Nanoseconds limit) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return refused_since != kNever && now - refused_since >= limit;
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

}  // namespace weft::rpc_internal
