#include "weft/rref/internal/id_ledger.h"

#include <iterator>

namespace weft::rref_internal {

bool IdLedger::ended(WorkerId creator, uint64_t number) const {
  auto found = creators_.find(creator);
  if (found == creators_.end()) return false;
  return number < found->second.watermark || found->second.tombstones.contains(number);
}

bool IdLedger::add_tombstone(WorkerId creator, uint64_t number) {
  Creator& entry = creators_[creator];
  if (number < entry.watermark) return false;
  if (entry.tombstones.insert(number).second) ++tombstones_;
  if (entry.tombstones.size() <= limit_) return false;
  auto keep_from = std::next(entry.tombstones.begin(), entry.tombstones.size() - limit_ / 2);
  const uint64_t watermark =
      keep_from == entry.tombstones.end() ? *entry.tombstones.rbegin() + 1 : *keep_from;
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
  tombstones_ -= found->second.tombstones.size();
  creators_.erase(found);
}

uint64_t IdLedger::watermark(WorkerId creator) const {
  auto found = creators_.find(creator);
  return found == creators_.end() ? 0 : found->second.watermark;
}

void IdLedger::raise_to(Creator& creator, uint64_t watermark) {
  creator.watermark = watermark;
  auto end = creator.tombstones.lower_bound(watermark);
  for (auto it = creator.tombstones.begin(); it != end; it = creator.tombstones.erase(it))
    --tombstones_;
}

}  // namespace weft::rref_internal
