// Remembers which contexts are released, so that a late request cannot open one again.
//
// A creator numbers its contexts in ascending order. For each creator this holds a watermark, up to
// which all contexts are released, and the numbers of released contexts above it. Releases carry
// the creator's own watermark. So the numbers kept are at most those that were released since the
// creator's oldest open context began.
//
// Thread safety: none.
// Protocol: docs/backward_protocol.md, "Release".
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
  // The number up to which this worker knows that all contexts of the creator are released. A
  // forwarded release carries it.
  uint64_t watermark(WorkerId creator) const;
  size_t above_watermark(WorkerId creator) const;

  // Forgets a dead creator. The caller must then refuse its contexts because of the death.
  void forget(WorkerId creator) { creators_.erase(creator); }

 private:
  struct Creator {
    uint64_t watermark = 0;
    std::set<uint64_t> beyond;
  };
  std::map<WorkerId, Creator> creators_;
};

}  // namespace weft::dist_autograd_internal
