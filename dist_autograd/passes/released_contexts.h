// Remembers which contexts are released, so that a late request cannot bring one back to life.
//
// A context's number grows with every context of its creator. Per creator this holds a watermark,
// under which all are released, and the released ones above it; releases carry the creator's own
// watermark, so the second part holds no more than what was released since the creator's oldest
// live context began.
//
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

#include "weft/base/ids.h"

namespace weft::dist_autograd_internal {

class ReleasedContexts {
 public:
  void add(const ContextId& context);
  // All contexts of this creator up to `watermark` are released.
  void add_until(WorkerId creator, uint64_t watermark);
  bool contains(const ContextId& context) const;
  // Releases this worker knows of: what a forwarded release may say about the creator.
  uint64_t watermark(WorkerId creator) const;
  size_t above_watermark(WorkerId creator) const;

  // The creator is dead: a caller who knows that needs none of its entries any more.
  void forget(WorkerId creator) { creators_.erase(creator); }

 private:
  struct Creator {
    uint64_t watermark = 0;
    std::set<uint64_t> beyond;
  };
  std::map<WorkerId, Creator> creators_;
};

}  // namespace weft::dist_autograd_internal
