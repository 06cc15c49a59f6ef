// How long a worker may be silent before the others hold it for dead.
//
// All workers of a group need the same limits: the `valid_for` of one is safe only below the
// `suspect_after` of the others, and nothing compares them.
//
// Thread safety: a plain value. Protocol: docs/membership.md, "Leases".
#pragma once

#include "absl/status/status.h"
#include "weft/base/clock.h"

namespace weft {

struct LeaseOptions {
  // Between two heartbeats to a worker with which something is shared.
  Nanoseconds heartbeat_interval = std::chrono::milliseconds(200);
  // Silence after which a worker that was beaten is suspected.
  Nanoseconds suspect_after = std::chrono::milliseconds(1800);
  // How long after its sending a heartbeat that was answered is relied on. Later calls wait,
  // unsent, for the next answer.
  Nanoseconds valid_for = std::chrono::milliseconds(1400);
  // How long two workers keep their lease after the last call, reference and context between them.
  Nanoseconds linger = std::chrono::seconds(10);

  // InvalidArgument: not 0 < 2 heartbeat_interval < valid_for <= 1000 heartbeat_interval, valid_for
  // + heartbeat_interval <= suspect_after, heartbeat_interval <= linger.
  absl::Status validate() const;
};

}  // namespace weft
