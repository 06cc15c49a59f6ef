// Runs callbacks on threads of their own. A callback may wait for another one, so there is a thread
// for each, up to kMostThreads.
//
// Thread safety: all methods may be called from any thread, except that a callback must not call
// stop().
// Lifetime: the destructor calls stop().
// Blocking: stop() and the destructor, until all callbacks have returned.
// Errors: ResourceExhausted if the system refuses a thread. A callback that throws is logged.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"

namespace weft::comm_internal {

class CallbackThreads {
 public:
  static constexpr size_t kMostThreads = 64;

  CallbackThreads() = default;
  ~CallbackThreads() { stop(); }
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Starts the first thread, if there is none yet. If this is OK, every later call() runs.
  absl::Status ready() ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `call` soon. False: the system refuses a further thread, so `call` waits until one of the
  // threads is free. Then call grow() from time to time.
  bool call(std::function<void()> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // If calls wait for a thread, tries again to start one. False: the system refuses it again.
  bool grow() ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs all calls, also those that they make, and ends the threads.
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the caller is one of the threads.
  bool on_own_thread() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  bool enough_threads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status add_thread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void run() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  CondVar calls_there_;
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;  // threads without a call, also those that just begin
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::comm_internal
