// Collects finished episodes, and has the agent learn from them when there are enough.
//
// Thread safety: all methods may be called from any thread. One update runs at a time.
// Lifetime: the destructor waits for the update that runs.
// Blocking: run_if_enough, if updates have no thread of their own.
// Bounds: the episodes of 20 updates. If observers are faster than learning, the rest is dropped.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "weft/async/serial_thread.h"
#include "weft/base/mutex.h"
#include "weft/examples/rl_agent_observers/trajectories.h"

namespace weft::examples {

class Updates {
 public:
  struct Options {
    size_t steps = 0;         // of finished episodes, for one update
    bool own_thread = false;  // updates run beside the calls of observers
  };
  Updates(Options options, std::function<void(Episodes)> learn);

  // Takes the steps out of the trajectory, which begins another episode.
  void add(Trajectory& finished, const std::vector<float>& returns) ABSL_LOCKS_EXCLUDED(mutex_);
  void run_if_enough() ABSL_LOCKS_EXCLUDED(mutex_);
  // Says why learning has stopped. Normally OK.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void run(Episodes episodes) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::function<void(Episodes)> learn_;
  mutable Mutex mutex_;
  Episodes finished_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  SerialThread thread_;  // the last member, because its tasks use the others
};

}  // namespace weft::examples
