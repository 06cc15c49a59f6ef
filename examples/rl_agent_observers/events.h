// The queue of events for the agent's main thread: observers that join or go, and runs that
// complete.
//
// Thread safety: all methods may be called from any thread. Blocking: pop, until its deadline.
// Each observer that joins or goes, and each run, adds at most one event, so the queue has no
// limit.
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
    absl::Status status = {};  // kRan: the outcome of the run; kGone: why it is gone
  };
  void push(Event event) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  // Returns nullopt after the deadline.
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
