#include "weft/rpc/membership/awake_time.h"

#include "weft/base/faults/breakage.h"

namespace weft::rpc_internal {

Nanoseconds without(Nanoseconds span, Nanoseconds& wait) {
  if (WEFT_BREAK(waits_are_silence)) return span;
  const Nanoseconds taken = std::min(span, wait);
  wait -= taken;
  return span - taken;
}

// A gap of more than two intervals means that this worker did not run.
Nanoseconds AwakeTime::awake(Nanoseconds span) const {
  return std::min<Nanoseconds>(span, 2 * limits_.heartbeat_interval);
}

PassedTime AwakeTime::look(TimePoint now) {
  const Nanoseconds all = now - last_look_;
  // The time for which this worker did not run does not count as silence of the peers.
  const Nanoseconds passed = WEFT_BREAK(stopped_time_counts) ? all : awake(all);
  last_look_ = now;
  awake_ += passed;
  lag_ = std::max<Nanoseconds>(all - 2 * limits_.heartbeat_interval, faded(lag_));
  // One sixteenth always counts. Otherwise a worker that always waits would suspect no peer.
  return {passed, std::max<Nanoseconds>(without(passed, wait_), passed / kMostLimit)};
}

void AwakeTime::add_wait(Nanoseconds time) {
  wait_ = std::min<Nanoseconds>(wait_ + time, limits_.suspect_after);
}

}  // namespace weft::rpc_internal
