#include "weft/rpc/session/internal/peer_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostEnded = 1024;    // incarnations that are gone
constexpr size_t kMostWaiting = 4096;  // posts for one unknown incarnation

bool by_id(const WorkerInfo& a, const WorkerInfo& b) { return a.id < b.id; }

}  // namespace

void PeerTable::set_members(std::vector<WorkerInfo> members) {
  std::sort(members.begin(), members.end(), by_id);
  MutexLock lock(mutex_);
  members_ = std::move(members);
  for (const WorkerInfo& member : members_) {
    entries_[member.id.bits()] = {std::make_shared<PeerLink>(environment_, member), true};
  }
}

void PeerTable::add(WorkerInfo member) {
  MutexLock lock(mutex_);
  if (entries_.contains(member.id.bits())) return;  // it has dialled twice
  auto link = std::make_shared<PeerLink>(environment_, member);
  if (auto waiting = unknown_.extract(member.id.bits()); !waiting.empty()) {
    link->post_first(std::move(waiting.mapped()));
  }
  entries_[member.id.bits()] = {std::move(link), false};
  members_.insert(std::upper_bound(members_.begin(), members_.end(), member, by_id),
                  std::move(member));
}

bool PeerTable::name(WorkerId member) {
  MutexLock lock(mutex_);
  auto found = entries_.find(member.bits());
  // A worker that died before it was named is announced neither as joined nor as dead.
  if (found == entries_.end() || found->second.link->gone()) return false;
  if (std::exchange(found->second.named, true)) return false;
  drop_superseded();
  return true;
}

PeerLinkPtr PeerTable::find(WorkerId worker) const {
  MutexLock lock(mutex_);
  auto found = entries_.find(worker.bits());
  return found == entries_.end() ? nullptr : found->second.link;
}

std::vector<PeerLinkPtr> PeerTable::all() const {
  std::vector<PeerLinkPtr> all;
  MutexLock lock(mutex_);
  all.reserve(members_.size());
  for (const WorkerInfo& member : members_) all.push_back(entry_of(member).link);
  return all;
}

absl::StatusOr<WorkerId> PeerTable::resolve(std::string_view name) const {
  MutexLock lock(mutex_);
  WorkerId newest;
  for (const WorkerInfo& member : members_) {
    if (member.name == name && entry_of(member).named) newest = member.id;
  }
  if (newest.valid()) return newest;
  std::string known;
  for (const WorkerInfo& member : members_) {
    if (!entry_of(member).named) continue;
    absl::StrAppend(&known, known.empty() ? "" : ", ", member.name);
  }
  return with_ran(absl::NotFoundError(absl::StrCat("no worker is called '", absl_view(name),
                                                   "'; the group has: ", known)),
                  Ran::kNo);
}

std::vector<WorkerInfo> PeerTable::members() const {
  MutexLock lock(mutex_);
  return members_;
}

// The newest incarnation of each index stays, so that errors can say that it is gone, and why.
void PeerTable::drop_superseded() {
  for (auto next = members_.begin(); next != members_.end();) {
    const auto member = next++;
    const bool superseded = next != members_.end() && next->id.index == member->id.index &&
                            entry_of(*next).named && entry_of(*member).link->gone();
    if (superseded) next = members_.erase(member);
  }
}

void PeerTable::ended(WorkerId incarnation) {
  std::vector<PeerLinkPtr> dropped;  // destroyed outside the lock
  MutexLock lock(mutex_);
  drop_superseded();
  ended_.push_back(incarnation);
  while (ended_.size() > kMostEnded) {
    const WorkerId oldest = ended_.front();
    ended_.pop_front();
    std::erase_if(members_, [&](const WorkerInfo& member) { return member.id == oldest; });
    auto found = entries_.find(oldest.bits());
    if (found == entries_.end()) continue;
    dropped.push_back(std::move(found->second.link));
    entries_.erase(found);
  }
}

absl::StatusOr<PeerLinkPtr> PeerTable::keep(WorkerId unknown, Frame& post) {
  MutexLock lock(mutex_);
  auto found = entries_.find(unknown.bits());
  if (found != entries_.end()) return found->second.link;
  std::vector<Frame>& waiting = unknown_[unknown.bits()];
  if (waiting.size() >= kMostWaiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMostWaiting, " posts wait for it to become known"));
  }
  waiting.push_back(std::move(post));
  return PeerLinkPtr();
}

void PeerTable::drop_posts_to(WorkerId unknown) {
  MutexLock lock(mutex_);
  unknown_.erase(unknown.bits());
}

bool PeerTable::has_unknown() const {
  MutexLock lock(mutex_);
  return !unknown_.empty();
}

}  // namespace weft::rpc_internal
