#include "weft/rpc/membership/lease_limits.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace weft {

absl::Status LeaseLimits::validate() const {
  const bool good = interval > Nanoseconds(0) && 2 * interval < trust && trust <= 1000 * interval &&
                    trust + interval <= patience && linger >= interval;
  if (good) return absl::OkStatus();
  const auto text = [](Nanoseconds time) { return absl::FormatDuration(absl::FromChrono(time)); };
  return absl::InvalidArgumentError(absl::StrCat(
      "lease: interval ", text(interval), ", trust ", text(trust), ", patience ", text(patience),
      ", linger ", text(linger),
      ": twice the interval must be below trust, trust not above 1000 intervals, trust + "
      "interval not above patience, and linger not below the interval"));
}

}  // namespace weft
