#include "weft/rref/internal/id_ledger.h"

#include <iterator>

namespace weft::rref_internal {

bool IdLedger::ended(WorkerId creator, uint64_t number) const {
  auto found = creators_.find(creator);
  if (found == creators_.end()) return false;
  return number < found->second.watermark || found->second.buried.contains(number);
}

bool IdLedger::bury(WorkerId creator, uint64_t number) {
  Creator& entry = creators_[creator];
  if (number < entry.watermark) return false;
  if (entry.buried.insert(number).second) ++tombstones_;
  if (entry.buried.size() <= limit_) return false;
  auto keep_from = std::next(entry.buried.begin(), entry.buried.size() - limit_ / 2);
  const uint64_t watermark =
      keep_from == entry.buried.end() ? *entry.buried.rbegin() + 1 : *keep_from;
  raise_to(entry, watermark);
  return true;
}

bool IdLedger::raise(WorkerId creator, uint64_t settled_below) {
  Creator& entry = creators_[creator];
  if (settled_below <= entry.watermark) return false;
  raise_to(entry, settled_below);
  return true;
}

void IdLedger::forget(WorkerId creator) {
  auto found = creators_.find(creator);
  if (found == creators_.end()) return;
  tombstones_ -= found->second.buried.size();
  creators_.erase(found);
}

uint64_t IdLedger::watermark(WorkerId creator) const {
  auto found = creators_.find(creator);
  return found == creators_.end() ? 0 : found->second.watermark;
}

void IdLedger::raise_to(Creator& creator, uint64_t watermark) {
  creator.watermark = watermark;
  auto end = creator.buried.lower_bound(watermark);
  for (auto it = creator.buried.begin(); it != end; it = creator.buried.erase(it)) --tombstones_;
}

}  // namespace weft::rref_internal
