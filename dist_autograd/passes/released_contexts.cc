#include "weft/dist_autograd/passes/released_contexts.h"

#include <algorithm>

namespace weft::dist_autograd_internal {

void ReleasedContexts::add(const ContextId& context) {
  Creator& creator = creators_[context.creator];
  if (context.number > creator.watermark) creator.beyond.insert(context.number);
  add_until(context.creator, creator.watermark);
}

void ReleasedContexts::add_until(WorkerId creator_id, uint64_t watermark) {
  Creator& creator = creators_[creator_id];
  creator.watermark = std::max(creator.watermark, watermark);
  std::set<uint64_t>& beyond = creator.beyond;
  beyond.erase(beyond.begin(), beyond.upper_bound(creator.watermark));
  while (!beyond.empty() && *beyond.begin() == creator.watermark + 1) {
    beyond.erase(beyond.begin());
    ++creator.watermark;
  }
}

bool ReleasedContexts::contains(const ContextId& context) const {
  auto it = creators_.find(context.creator);
  if (it == creators_.end()) return false;
  return context.number <= it->second.watermark || it->second.beyond.contains(context.number);
}

uint64_t ReleasedContexts::watermark(WorkerId creator) const {
  auto it = creators_.find(creator);
  return it == creators_.end() ? 0 : it->second.watermark;
}

size_t ReleasedContexts::above_watermark(WorkerId creator) const {
  auto it = creators_.find(creator);
  return it == creators_.end() ? 0 : it->second.beyond.size();
}

}  // namespace weft::dist_autograd_internal
