#include "weft/rpc/membership/lease_options.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace weft {

absl::Status LeaseOptions::validate() const {
  const bool good = heartbeat_interval > Nanoseconds(0) && 2 * heartbeat_interval < valid_for &&
                    valid_for <= 1000 * heartbeat_interval &&
                    valid_for + heartbeat_interval <= suspect_after && linger >= heartbeat_interval;
  if (good) return absl::OkStatus();
  const auto text = [](Nanoseconds time) { return absl::FormatDuration(absl::FromChrono(time)); };
  return absl::InvalidArgumentError(absl::StrCat(
      "lease: heartbeat_interval ", text(heartbeat_interval), ", valid_for ", text(valid_for),
      ", suspect_after ", text(suspect_after), ", linger ", text(linger),
      ": twice the heartbeat_interval must be below valid_for, valid_for not above 1000 of it, "
      "valid_for + heartbeat_interval not above suspect_after, and linger not below the "
      "heartbeat_interval"));
}

}  // namespace weft
