// What the agent's main thread waits for: observers that join or go, and runs that end.
//
// Thread safety: all methods may be called from any thread. Blocking: pop, until its deadline.
// There are as many events at most as observers joined and went and runs were begun.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/worker/worker.h"

namespace weft::examples {

class Events {
 public:
  enum class What { kJoined, kGone, kRan };
  struct Event {
    What what;
    WorkerInfo observer;
    absl::Status status = {};  // of the run; why it is gone
  };
  void push(Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  // Nullopt after the deadline.
  std::optional<Event> pop(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    while (events_.empty()) {
      if (!changed_.wait_until(mutex_, deadline)) return std::nullopt;
    }
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weft::examples
