#include "weft/bench/processes/best_of.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/report/statistics.h"

namespace weft::bench {

BestOf::BestOf(std::string name, std::vector<std::unique_ptr<Group>> variants)
    : name_(std::move(name)), variants_(std::move(variants)) {}

absl::Status BestOf::start() {
  for (const std::unique_ptr<Group>& variant : variants_) {
    if (const absl::Status started = variant->start(); !started.ok()) {
      return absl::Status(started.code(), absl::StrCat(variant->name(), ": ", started.message()));
    }
    if (variant->spins_when_idle()) variant->pause();
  }
  return absl::OkStatus();
}

void BestOf::pause() {
  for (const std::unique_ptr<Group>& variant : variants_) variant->pause();
}

void BestOf::resume() {
  for (const std::unique_ptr<Group>& variant : variants_) {
    if (!variant->spins_when_idle()) variant->resume();
  }
}

absl::StatusOr<BlockResult> BestOf::run(const Row& row, double seconds) {
  const bool after_pause = row.work == Work::kAddAfterIdle;
  std::vector<Values>& values = values_[row.name];
  values.resize(variants_.size());
  std::optional<BlockResult> best;
  double best_value = 0;
  for (size_t i = 0; i < variants_.size(); ++i) {
    Group& variant = *variants_[i];
    const bool spins = variant.spins_when_idle();
    if (spins && after_pause) continue;
    if (spins) variant.resume();
    absl::StatusOr<BlockResult> block =
        variant.run(row, seconds / static_cast<double>(variants_.size()));
    if (spins) variant.pause();
    if (absl::IsUnimplemented(block.status())) continue;
    if (!block.ok()) return block;
    values[i].push_back(value_of(row, *block));
    const double value = median(values[i]);
    if (!best || (row.lower_is_better() ? value < best_value : value > best_value)) {
      best = *std::move(block);
      best_value = value;
    }
  }
  if (!best) return absl::UnimplementedError("no variant has this row");
  return *std::move(best);
}

}  // namespace weft::bench
