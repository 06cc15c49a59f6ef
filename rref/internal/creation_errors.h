// Why creations failed, for references that come to the owner late.
//
// An error is kept as long as the tombstone of its RRef, unless its creator has more errors than
// the limit.
//
// Thread safety: none; part of the core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace weft::rref_internal {

class CreationErrors {
 public:
  // `most`: errors that are kept for each creator, but at least one.
  explicit CreationErrors(size_t most) : most_(std::max<size_t>(most, 1)) {}

  void add(RRefId rref, absl::Status error) {
    std::map<uint64_t, absl::Status>& errors = errors_[rref.creator];
    const auto added = errors.emplace(rref.number, std::move(error)).first;
    if (errors.size() <= most_) return;
    // Not the new one, even if it is the oldest: the references that wait get this error next.
    errors.erase(errors.begin() == added ? std::next(added) : errors.begin());
  }
  // Null: none is known.
  const absl::Status* find(RRefId rref) const {
    const auto errors = errors_.find(rref.creator);
    if (errors == errors_.end()) return nullptr;
    const auto found = errors->second.find(rref.number);
    return found == errors->second.end() ? nullptr : &found->second;
  }
  void forget_below(WorkerId creator, uint64_t number) {
    const auto errors = errors_.find(creator);
    if (errors == errors_.end()) return;
    errors->second.erase(errors->second.begin(), errors->second.lower_bound(number));
    if (errors->second.empty()) errors_.erase(errors);
  }
  void clear() { errors_.clear(); }

 private:
  const size_t most_;
  std::map<WorkerId, std::map<uint64_t, absl::Status>> errors_;  // by the RRefs' numbers
};

}  // namespace weft::rref_internal
