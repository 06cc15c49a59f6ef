// An executor whose tasks run one at a time, in the order that the schedule of the run chooses.
//
// Thread safety: none, because the whole simulation is one thread.
#pragma once

#include <utility>
#include <vector>

#include "weft/async/executor.h"

namespace weft::sim {

class SimExecutor final : public Executor {
 public:
  void schedule(Task task) override {
    if (!stopped_) ready_.push_back(std::move(task));
  }
  bool idle() const override { return ready_.empty() && running_ == 0; }

  size_t ready() const { return ready_.size(); }
  void run(size_t place) {
    Task task = std::move(ready_[place]);
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(place));
    ++running_;
    {
      Enter enter(this);
      task();
      task = nullptr;
    }
    --running_;
  }
  // Destroys queued tasks without running them, and all later tasks too.
  void stop() {
    stopped_ = true;
    while (!ready_.empty()) {
      std::vector<Task> dropped;
      dropped.swap(ready_);
    }
  }

 private:
  std::vector<Task> ready_;
  int running_ = 0;
  bool stopped_ = false;
};

}  // namespace weft::sim
