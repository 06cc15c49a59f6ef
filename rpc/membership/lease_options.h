// Sets how long a worker may be silent before the others suspect that it is dead.
//
// All workers of a group need the same limits, and nothing compares them. The `valid_for` of one
// worker is safe only if it is below the `suspect_after` of the others.
//
// Thread safety: a plain value.
// Protocol: docs/membership.md, "Leases".
#pragma once

#include "absl/status/status.h"
#include "weft/base/clock.h"

namespace weft {

struct LeaseOptions {
  // The time between two heartbeats to a worker with which this one has shared state.
  Nanoseconds heartbeat_interval = std::chrono::milliseconds(200);
  // A worker suspects a peer that it sent heartbeats to and heard nothing from for this time.
  Nanoseconds suspect_after = std::chrono::milliseconds(1800);
  // The lease is valid for this time after the newest answered heartbeat was sent. Later calls
  // wait here, unsent, for the next answer.
  Nanoseconds valid_for = std::chrono::milliseconds(1400);
  // Two workers keep their lease for this time after the last call, reference or context that they
  // shared.
  Nanoseconds linger = std::chrono::seconds(10);

  // InvalidArgument unless all of these hold:
  //   0 < 2 heartbeat_interval < valid_for <= 1000 heartbeat_interval
  //   valid_for + heartbeat_interval <= suspect_after
  //   heartbeat_interval <= linger
  absl::Status validate() const;
};

}  // namespace weft
