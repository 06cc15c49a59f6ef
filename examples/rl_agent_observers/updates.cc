#include "weft/examples/rl_agent_observers/updates.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/error_text.h"

namespace weft::examples {
namespace {

constexpr size_t kMostUpdatesWaiting = 20;

}  // namespace

Updates::Updates(Options options, std::function<void(Episodes)> learn)
    : options_(options), learn_(std::move(learn)) {}

void Updates::add(Trajectory& finished, const std::vector<float>& returns) {
  MutexLock lock(mutex_);
  const size_t limit = kMostUpdatesWaiting * options_.steps;
  finished_.take(finished, returns, finished_.actions.size() < limit);
}

void Updates::run_if_enough() {
  Episodes episodes;
  {
    MutexLock lock(mutex_);
    if (running_ || !status_.ok() || finished_.actions.size() < options_.steps) return;
    running_ = true;
    std::swap(episodes, finished_);
  }
  if (options_.own_thread) {
    thread_.run([this, episodes = std::move(episodes)]() mutable { run(std::move(episodes)); });
  } else {
    run(std::move(episodes));
  }
}

void Updates::run(Episodes episodes) {
  absl::Status status;
  try {
    learn_(std::move(episodes));
  } catch (const std::exception& error) {
    status =
        absl::InternalError(absl::StrCat("the agent cannot learn: ", without_stack(error.what())));
  }
  MutexLock lock(mutex_);
  running_ = false;
  status_ = status;
}

absl::Status Updates::status() const {
  MutexLock lock(mutex_);
  return status_;
}

}  // namespace weft::examples
