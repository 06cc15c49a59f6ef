// Whom the agent knows: the members of its group, the lives that have ended, and unknown processes
// that others speak of.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/rpc/session/agent.h"
#include "weft/rpc/session/internal/agent_peer.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostEnded = 1024;   // lives that are remembered after their end
constexpr size_t kMostParked = 4096;  // posts that wait for one incarnation to become known
// Heartbeats without answer from a peer that is heard, after the time for which the last was relied
// on.
constexpr Nanoseconds kMuteAfter = std::chrono::seconds(3);
// A connection that takes no frames has this long to report its end.
constexpr Nanoseconds kEndsWithin = std::chrono::seconds(3);

}  // namespace

Agent::PeerPtr Agent::find(WorkerId worker) const {
  MutexLock lock(mutex_);
  auto found = peers_.find(worker.bits());
  return found == peers_.end() ? nullptr : found->second;
}

std::vector<Agent::PeerPtr> Agent::all_peers() const {
  std::vector<PeerPtr> all;
  MutexLock lock(mutex_);
  all.reserve(members_.size());
  for (const WorkerInfo& member : members_) all.push_back(peers_.at(member.id.bits()));
  return all;
}

void Agent::add_member(WorkerInfo member) {
  MutexLock lock(mutex_);
  if (peers_.contains(member.id.bits())) return;  // it has dialled twice
  const auto place =
      std::upper_bound(members_.begin(), members_.end(), member,
                       [](const WorkerInfo& a, const WorkerInfo& b) { return a.id < b.id; });
  auto peer = std::make_shared<Peer>(member, options_.self.id, options_.credit);
  peer->nameless.store(true);
  if (auto waiting = unknown_.extract(member.id.bits()); !waiting.empty()) {
    MutexLock unshared(peer->mutex);
    for (Frame& frame : waiting.mapped()) peer->core.post(std::move(frame));
  }
  peers_[member.id.bits()] = std::move(peer);
  members_.insert(place, std::move(member));
}

void Agent::reach(WorkerId member) {
  if (PeerPtr peer = find(member)) dial(peer, options_.connect_timeout);
}

bool Agent::name_member(WorkerId member) {
  MutexLock lock(mutex_);
  auto found = peers_.find(member.bits());
  // Of whom is gone nobody is told that it has joined, nor that it is gone (has_name).
  if (found == peers_.end() || found->second->gone.load()) return false;
  if (!found->second->nameless.exchange(false)) return false;
  drop_superseded();
  return true;
}

bool Agent::has_name(WorkerId member) const {
  MutexLock lock(mutex_);
  auto found = peers_.find(member.bits());
  return found != peers_.end() && !found->second->nameless.load();
}

// Of a place in the group the newest incarnation stays, so that errors can say what became of it.
void Agent::drop_superseded() {
  for (auto next = members_.begin(); next != members_.end();) {
    const auto member = next++;
    const bool superseded = next != members_.end() && next->id.index == member->id.index &&
                            !peers_.at(next->id.bits())->nameless.load() &&
                            peers_.at(member->id.bits())->gone.load();
    if (superseded) next = members_.erase(member);
  }
}

void Agent::forget_incarnations(WorkerId ended) {
  std::vector<PeerPtr> dropped;  // dies outside the lock
  MutexLock lock(mutex_);
  drop_superseded();
  ended_.push_back(ended);
  while (ended_.size() > kMostEnded) {
    const WorkerId oldest = ended_.front();
    ended_.pop_front();
    std::erase_if(members_, [&](const WorkerInfo& member) { return member.id == oldest; });
    auto found = peers_.find(oldest.bits());
    if (found == peers_.end()) continue;
    dropped.push_back(std::move(found->second));
    peers_.erase(found);
  }
}

absl::StatusOr<WorkerId> Agent::resolve(std::string_view name) const {
  MutexLock lock(mutex_);
  WorkerId newest;
  for (const WorkerInfo& member : members_) {
    if (member.name == name && !peers_.at(member.id.bits())->nameless.load()) newest = member.id;
  }
  if (newest.valid()) return newest;
  std::string known;
  for (const WorkerInfo& member : members_) {
    if (peers_.at(member.id.bits())->nameless.load()) continue;
    absl::StrAppend(&known, known.empty() ? "" : ", ", member.name);
  }
  return with_ran(absl::NotFoundError(absl::StrCat("no worker is called '",
                                                   absl::string_view(name.data(), name.size()),
                                                   "'; the group has: ", known)),
                  Ran::kNo);
}

std::string Agent::name_of(WorkerId worker) const {
  PeerPtr peer = find(worker);
  return peer == nullptr ? worker.to_string() : peer->info.name;
}

WorkerInfo Agent::info_of(WorkerId worker) const {
  PeerPtr peer = find(worker);
  return peer == nullptr ? WorkerInfo{worker, worker.to_string(), ""} : peer->info;
}

std::vector<WorkerInfo> Agent::members() const {
  MutexLock lock(mutex_);
  return members_;
}

bool Agent::is_live(WorkerId worker) const {
  PeerPtr peer = find(worker);
  return peer != nullptr && !peer->gone.load();
}

TimePoint Agent::last_heard(WorkerId worker) const {
  PeerPtr peer = find(worker);
  if (peer == nullptr) return TimePoint::min();
  return TimePoint(TimePoint::duration(peer->heard.load(std::memory_order_relaxed)));
}

std::vector<WorkerId> Agent::live() const {
  std::vector<WorkerId> live;
  for (const PeerPtr& peer : all_peers()) {
    if (!peer->gone.load()) live.push_back(peer->info.id);
  }
  return live;
}

bool Agent::post_to_unknown(WorkerId to, Frame frame) {
  if (membership_.unknown == nullptr || stopping_.load() || !to.valid()) return false;
  bool too_many = false;
  PeerPtr peer;
  {
    MutexLock lock(mutex_);
    auto found = peers_.find(to.bits());
    if (found != peers_.end()) {  // became known meanwhile
      peer = found->second;
    } else {
      std::vector<Frame>& waiting = unknown_[to.bits()];
      too_many = waiting.size() >= kMostParked;
      if (!too_many) waiting.push_back(std::move(frame));
    }
  }
  if (too_many) {
    membership_.give_up(to, absl::ResourceExhaustedError(
                                absl::StrCat(kMostParked, " posts wait for it to become known")));
    return false;
  }
  if (peer == nullptr) {
    membership_.unknown(to);
    return true;
  }
  {
    MutexLock lock(peer->mutex);
    if (peer->gone.load()) return false;
    peer->core.post(std::move(frame));
  }
  flush(peer);
  return true;
}

std::vector<Agent::PeerLook> Agent::look_at_peers() {
  std::vector<PeerLook> looks;
  for (const PeerPtr& peer : all_peers()) {
    if (peer->gone.load() || peer->info.id == options_.self.id) continue;
    PeerLook look;
    look.peer = peer->info.id;
    look.heard = TimePoint(TimePoint::duration(peer->heard.load(std::memory_order_relaxed)));
    const TimePoint now = clock_.now();
    ConnectionPtr hung;
    const char* how = nullptr;
    {
      MutexLock lock(peer->mutex);
      how = peer->is_stuck(now, options_.stuck_after) ? "what was sent is not acknowledged"
            : peer->is_mute(now, kMuteAfter)          ? "heartbeats are not answered"
            : peer->is_refused(now, kEndsWithin)      ? "it takes no frames and does not end"
                                                      : nullptr;
      if (how != nullptr) {
        hung = peer->connection;
        peer->judge_anew();
      }
    }
    if (hung != nullptr) {
      log_warning("the connection to '", peer->info.name, "', which is heard, hangs: ", how,
                  "; making a new one");
      // Not closed: that takes an answer on the stream that hangs. `on_closed` dials the next one.
      hung->abort(absl::UnavailableError(absl::StrCat("the connection hung: ", how)));
    }
    MutexLock lock(peer->mutex);
    // That silence is this worker's own.
    if (peer->cannot_dial) look.heard = now;
    look.said = peer->said;
    const uint64_t traffic = peer->core.counted_sent() + peer->core.counted_received();
    look.busy = traffic != std::exchange(peer->looked_at, traffic) ||
                peer->core.pending_calls() > 0 || !peer->core.incoming().empty() ||
                !peer->core.session().unacknowledged().empty();
    looks.push_back(look);
  }
  return looks;
}

}  // namespace weft::rpc_internal
