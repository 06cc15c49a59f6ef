// Counts episodes and tells when the task is solved: the last 100 episodes had 475 steps on
// average, which is the definition of CartPole-v1.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "weft/base/mutex.h"

namespace weft::examples {

class EpisodeProgress {
 public:
  static constexpr size_t kEpisodes = 100;
  static constexpr double kSolved = 475;

  struct Now {
    int64_t steps = 0;  // of finished episodes
    int64_t episodes = 0;
    int64_t updates = 0;
    double average = 0;  // steps of the last 100 episodes, or of all if there are fewer
    double seconds = 0;  // since the beginning
    // "update 12, 340 episodes, 24012 steps, average 117.3"
    std::string to_string() const;
  };

  // `on_update` is called after each update.
  explicit EpisodeProgress(std::function<void(const Now&)> on_update = {});

  void episode(int64_t steps) ABSL_LOCKS_EXCLUDED(mutex_);
  void update() ABSL_LOCKS_EXCLUDED(mutex_);
  Now now() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The state when the task was solved. Nullopt before that.
  std::optional<Now> solved() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Now now_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(const Now&)> on_update_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  mutable Mutex mutex_;
  Now now_ ABSL_GUARDED_BY(mutex_);
  std::optional<Now> solved_ ABSL_GUARDED_BY(mutex_);
  std::deque<int64_t> last_ ABSL_GUARDED_BY(mutex_);
  int64_t sum_of_last_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::examples
