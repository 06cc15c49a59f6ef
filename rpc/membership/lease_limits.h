// How long a worker may be silent before the others hold it for dead.
//
// All workers of a group need the same limits: the `trust` of one is safe only below the `patience`
// of the others, and nothing compares them.
//
// Thread safety: a plain value. Protocol: docs/membership.md, "Leases".
#pragma once

#include "absl/status/status.h"
#include "weft/base/clock.h"

namespace weft {

struct LeaseLimits {
  // Between two beats to a worker with which something is shared.
  Nanoseconds interval = std::chrono::milliseconds(200);
  // Silence after which a worker that was beaten is suspected.
  Nanoseconds patience = std::chrono::milliseconds(1800);
  // How long after its sending a beat that was answered is relied on. Later calls wait, unsent, for
  // the next answer.
  Nanoseconds trust = std::chrono::milliseconds(1400);
  // How long two workers keep their lease after the last call, reference and context between them.
  Nanoseconds linger = std::chrono::seconds(10);

  // InvalidArgument: not 0 < 2 interval < trust <= 1000 interval, trust + interval <= patience,
  // interval <= linger.
  absl::Status validate() const;
};

}  // namespace weft
