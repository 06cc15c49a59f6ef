#include "weft/rpc/membership/internal/ended_incarnations.h"

#include <algorithm>
#include <iterator>

#include "weft/base/faults/breakage.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostEnded = 1024;  // incarnations that are remembered separately

}  // namespace

void EndedIncarnations::add(WorkerId worker, std::string_view name) {
  const auto [place, fresh] = ended_.try_emplace(worker);
  if (!fresh) return;
  place->second.name = std::string(name);
  order_.push_back(worker);
  if (order_.size() > kMostEnded) forget_oldest();
}

// A worker never forgets that a member is gone. For each index it keeps one number for good.
void EndedIncarnations::forget_oldest() {
  const auto oldest = ended_.find(order_.front());
  order_.pop_front();
  if (!oldest->second.name.empty()) {
    uint32_t& last = forgotten_[oldest->first.index];
    last = std::max(last, oldest->first.incarnation);
  }
  undecided_.erase(oldest->first);
  ended_.erase(oldest);
}

bool EndedIncarnations::learn(const DeathRecord& death_record) {
  Ended& ended = ended_.at(death_record.dead);
  const bool fresh = ended.by != death_record.by;
  ended.by = death_record.by;
  ended.reason = death_record.reason;
  undecided_.erase(death_record.dead);
  return fresh;
}

bool EndedIncarnations::contains(WorkerId worker) const {
  if (ended_.contains(worker)) return true;
  const auto found = forgotten_.find(worker.index);
  return found != forgotten_.end() && worker.incarnation <= found->second;
}

bool EndedIncarnations::has_later(WorkerId worker) const {
  auto later = ended_.upper_bound(worker);
  for (; later != ended_.end() && later->first.index == worker.index; ++later) {
    if (!later->second.name.empty() || later->second.by.valid()) return true;
  }
  return false;
}

std::optional<WorkerId> EndedIncarnations::last_before(WorkerId worker) const {
  uint32_t last = 0;  // incarnations count from 1
  if (const auto later = ended_.lower_bound(worker); later != ended_.begin()) {
    const WorkerId before = std::prev(later)->first;
    if (before.index == worker.index) last = before.incarnation;
  }
  const auto found = forgotten_.find(worker.index);
  if (found != forgotten_.end() && found->second < worker.incarnation) {
    last = std::max(last, found->second);
  }
  if (last == 0) return std::nullopt;
  return WorkerId{worker.index, last};
}

std::string_view EndedIncarnations::name_of(WorkerId worker) const {
  const auto found = ended_.find(worker);
  return found == ended_.end() ? std::string_view() : found->second.name;
}

std::vector<DeathRecord> EndedIncarnations::death_records() const {
  std::vector<DeathRecord> records;
  for (const auto& [dead, last] : ended_) {
    if (last.by.valid()) records.push_back({dead, last.by, last.reason});
  }
  return records;
}

std::vector<DeathRecord> EndedIncarnations::written_by(WorkerId writer) const {
  std::vector<DeathRecord> records;
  if (WEFT_BREAK(last_words_not_told)) return records;
  // Each writer once, because the writers of damaged death records may form a circle.
  std::vector<WorkerId> writers = {writer};
  for (size_t next = 0; next < writers.size(); ++next) {
    for (const auto& [dead, last] : ended_) {
      if (last.by != writers[next]) continue;
      records.push_back({dead, last.by, last.reason});
      if (std::find(writers.begin(), writers.end(), dead) == writers.end()) {
        writers.push_back(dead);
      }
    }
  }
  return records;
}

bool EndedIncarnations::speaks_for(WorkerId self, WorkerId writer) const {
  // The limit is for damaged death records, whose writers may form a circle.
  for (size_t links = 0; writer != self && links < kMostEnded; ++links) {
    const auto ended = ended_.find(writer);
    if (ended == ended_.end() || WEFT_BREAK(last_words_not_told)) return false;
    writer = ended->second.by;
  }
  return writer == self;
}

void EndedIncarnations::settle_before(WorkerId later) {
  undecided_.erase(undecided_.lower_bound({later.index, 0}), undecided_.lower_bound(later));
}

}  // namespace weft::rpc_internal
