#include "weft/examples/ddp_mnist/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status.h"
#include "weft/checkpoint/atomic_file.h"

namespace weft::examples {
namespace {

constexpr int64_t kFirst = 20;  // steps, before rounding errors have grown

}  // namespace

absl::Status LossCurve::write(const std::string& path) const {
  std::string text;
  for (const auto& [step, loss] : losses_) absl::StrAppendFormat(&text, "%d %.17g\n", step, loss);
  return write_file_atomically(path, text);
}

absl::Status LossCurve::read(const std::string& path, int64_t last_step) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  int64_t step = 0;
  double loss = 0;
  while (file >> step >> loss) {
    if (step <= last_step) add(step, loss);
  }
  if (!file.eof()) return absl::DataLossError(absl::StrCat(path, " is no file of losses"));
  return absl::OkStatus();
}

absl::StatusOr<std::string> LossCurve::compare(const std::string& path) const {
  LossCurve other;
  WEFT_RETURN_IF_ERROR(other.read(path, std::numeric_limits<int64_t>::max()));
  double among_first = 0, among_all = 0;
  int64_t common = 0;
  for (const auto& [step, loss] : losses_) {
    const auto there = other.losses_.find(step);
    if (there == other.losses_.end()) continue;
    const double difference = std::abs(loss - there->second);
    // A NaN counts as an infinite difference.
    among_all = std::max(among_all, std::isnan(difference) ? HUGE_VAL : difference);
    if (++common <= kFirst) among_first = among_all;
  }
  if (common == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has none of this run's steps"));
  }
  return absl::StrFormat("greatest difference to %s: %.1e in the first %d steps, %.1e in all %d",
                         path, among_first, std::min(common, kFirst), among_all, common);
}

}  // namespace weft::examples
