#include "weft/rpc/membership/internal/roster.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace weft::rpc_internal {
namespace {

std::string quoted(const std::string& name, WorkerId worker) {
  return absl::StrCat("'", name, "' (", worker.to_string(), ")");
}

absl::Status refusal(const std::string& who, const std::string& why) {
  return absl::PermissionDeniedError(absl::StrCat("worker ", who, why));
}

}  // namespace

const Roster::Peer* Roster::find(WorkerId worker) const {
  const auto found = peers_.find(worker);
  return found == peers_.end() ? nullptr : &found->second;
}

void Roster::put(const WorkerInfo& member) {
  const auto place = peers_.try_emplace(member.id, Peer{"", Lease(limits_), Suspicion()}).first;
  place->second.name = member.name;
}

bool Roster::end(WorkerId worker) {
  const Peer* const peer = find(worker);
  ended_.add(worker, peer == nullptr ? std::string_view() : peer->name);
  return peers_.erase(worker) > 0;
}

absl::Status Roster::refusal_of(const WorkerInfo& joiner) const {
  const std::string who = named(joiner), self = named(self_);
  if (world_size_ != 0 && joiner.id.index >= world_size_) {
    return refusal(who, absl::StrCat(" has no place in a group of ", world_size_));
  }
  if (ended_.contains(joiner.id) || ended_.has_later(joiner.id)) {
    return refusal(who, " was declared dead, or has left");
  }
  if (joiner.id.index == self_.id.index) {
    return refusal(who, absl::StrCat(" has the place of ", self));
  }
  for (const auto& [id, peer] : peers_) {
    if (id.index == joiner.id.index) {
      if (id.incarnation > joiner.id.incarnation) {
        return refusal(who, absl::StrCat(" is an earlier incarnation of ", named(id)));
      }
    } else if (peer.name == joiner.name) {
      return refusal(named(id), " has that name already");
    }
  }
  if (joiner.name == self_.name) return refusal(self, " has that name already");
  return absl::OkStatus();
}

// A false claim to have replaced a worker that is gone does harm, too. Once the claimant has a
// death record, no incarnation of that index below it is admitted any more.
std::optional<WorkerId> Roster::replaced_by(WorkerId joiner) const {
  const auto peer = peers_.lower_bound({joiner.index, 0});
  if (peer != peers_.end() && peer->first < joiner) return peer->first;
  return peers_.contains(joiner) ? std::nullopt : ended_.last_before(joiner);
}

std::vector<WorkerId> Roster::others_of_index(WorkerId worker) const {
  std::vector<WorkerId> others;
  auto peer = peers_.lower_bound({worker.index, 0});
  for (; peer != peers_.end() && peer->first.index == worker.index; ++peer) {
    if (peer->first != worker) others.push_back(peer->first);
  }
  return others;
}

bool Roster::is_outlived(WorkerId worker) const {
  const auto later = peers_.upper_bound(worker);
  return (later != peers_.end() && later->first.index == worker.index) ||
         ended_.has_later(worker) ||
         (worker.index == self_.id.index && worker.incarnation < self_.id.incarnation);
}

std::string Roster::named(WorkerId worker) const {
  if (worker == self_.id) return named(self_);
  if (const Peer* const peer = find(worker)) return quoted(peer->name, worker);
  const std::string name(ended_.name_of(worker));
  return name.empty() ? worker.to_string() : quoted(name, worker);
}

std::string Roster::named(const WorkerInfo& worker) { return quoted(worker.name, worker.id); }

}  // namespace weft::rpc_internal
