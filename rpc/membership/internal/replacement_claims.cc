#include "weft/rpc/membership/internal/replacement_claims.h"

#include <algorithm>
#include <cstddef>

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostClaims = 64;  // open at a time; also the number of contradicted ones

}  // namespace

bool ReplacementClaims::open(const WorkerInfo& claimant) {
  return open_.size() < kMostClaims && open_.emplace(claimant.id, claimant).second;
}

bool ReplacementClaims::close(const WorkerInfo& claimant) {
  const auto found = open_.find(claimant.id);
  if (found == open_.end() || found->second != claimant) return false;
  open_.erase(found);
  return true;
}

void ReplacementClaims::contradict(const WorkerInfo& claimant) {
  if (contradicted_.size() == kMostClaims) contradicted_.pop_front();
  contradicted_.push_back(claimant);
}

bool ReplacementClaims::take_contradicted(const WorkerInfo& claimant) {
  const auto found = std::find(contradicted_.begin(), contradicted_.end(), claimant);
  if (found == contradicted_.end()) return false;
  contradicted_.erase(found);
  return true;
}

}  // namespace weft::rpc_internal
