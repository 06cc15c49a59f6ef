#include "weft/examples/rl_agent_observers/progress_of_episodes.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace weft::examples {

std::string EpisodeProgress::Now::to_string() const {
  return absl::StrFormat("update %d, %d episodes, %d steps, average %.1f", updates, episodes, steps,
                         average);
}

EpisodeProgress::EpisodeProgress(std::function<void(const Now&)> on_update)
    : on_update_(std::move(on_update)) {}

void EpisodeProgress::episode(int64_t steps) {
  MutexLock lock(mutex_);
  last_.push_back(steps);
  sum_of_last_ += steps;
  if (last_.size() > kEpisodes) {
    sum_of_last_ -= last_.front();
    last_.pop_front();
  }
  now_.steps += steps;
  ++now_.episodes;
  now_.average = static_cast<double>(sum_of_last_) / static_cast<double>(last_.size());
  if (!solved_ && last_.size() == kEpisodes && now_.average >= kSolved) solved_ = now_locked();
}

void EpisodeProgress::update() {
  Now now;
  {
    MutexLock lock(mutex_);
    ++now_.updates;
    now = now_locked();
  }
  if (on_update_) on_update_(now);
}

EpisodeProgress::Now EpisodeProgress::now() const {
  MutexLock lock(mutex_);
  return now_locked();
}

std::optional<EpisodeProgress::Now> EpisodeProgress::solved() const {
  MutexLock lock(mutex_);
  return solved_;
}

EpisodeProgress::Now EpisodeProgress::now_locked() const {
  Now now = now_;
  now.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  return now;
}

}  // namespace weft::examples
