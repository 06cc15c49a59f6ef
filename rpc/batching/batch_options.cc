#include "weft/rpc/batching/batch_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft {

absl::Status BatchOptions::validate() const {
  const auto refuse = [&](auto... text) {
    return absl::InvalidArgumentError(absl::StrCat("batcher '", name, "': ", text...));
  };
  if (max_size == 0) return refuse("max_size must be at least 1");
  if (max_running == 0) return refuse("max_running must be at least 1");
  if (max_groups == 0) return refuse("max_groups must be at least 1");
  if (max_pending < max_size) {
    return refuse("max_pending (", max_pending, ") must be at least max_size (", max_size, ")");
  }
  if (max_wait < Nanoseconds(0)) return refuse("max_wait must not be negative");
  if (latency_goal.is_set() && max_wait == kUntilFull) {
    return refuse("latency_goal tunes the size, so that kUntilFull would wait for no fixed number");
  }
  if (adaptive && (max_wait == Nanoseconds(0) || max_wait == kUntilFull)) {
    return refuse("adaptive cuts max_wait short, which must be above zero and have an end");
  }
  return absl::OkStatus();
}

BatchStats& BatchStats::operator+=(const BatchStats& other) {
  batches += other.batches;
  calls += other.calls;
  largest = std::max(largest, other.largest);
  abandoned += other.abandoned;
  refused += other.refused;
  late += other.late;
  pending += other.pending;
  size = std::max(size, other.size);
  usual_run = std::max(usual_run, other.usual_run);
  return *this;
}

}  // namespace weft
