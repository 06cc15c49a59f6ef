#include "weft/comm/same_host/callback_threads.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/status/statusor.h"
#include "weft/async/error_text.h"
#include "weft/base/log.h"
#include "weft/base/thread.h"

namespace weft::comm_internal {

absl::Status CallbackThreads::ready() {
  MutexLock lock(mutex_);
  return threads_.empty() ? add_thread() : absl::OkStatus();
}

bool CallbackThreads::call(std::function<void()> call) {
  MutexLock lock(mutex_);
  calls_.push_back(std::move(call));
  const bool enough = enough_threads();
  const bool added = !enough && add_thread().ok();
  if (!added) calls_there_.notify_all();
  return enough || added;
}

bool CallbackThreads::grow() {
  MutexLock lock(mutex_);
  while (!enough_threads()) {
    if (!add_thread().ok()) return false;
  }
  return true;
}

// An idle thread may be on its way to another call, so this compares the numbers.
bool CallbackThreads::enough_threads() const {
  return calls_.size() <= idle_ || threads_.size() >= kMostThreads;
}

absl::Status CallbackThreads::add_thread() {
  absl::StatusOr<std::thread> thread =
      start_thread("the callbacks of a process group", [this] { run(); });
  if (!thread.ok()) return thread.status();
  threads_.push_back(*std::move(thread));
  ++idle_;
  return absl::OkStatus();
}

void CallbackThreads::run() {
  for (bool first = true;; first = false) {
    std::function<void()> call;
    {
      MutexLock lock(mutex_);
      if (!first) ++idle_;
      while (calls_.empty() && !stopping_) calls_there_.wait(mutex_);
      --idle_;
      if (calls_.empty()) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      call();
    } catch (const std::exception& error) {
      log_error("a callback of a collective threw: ", without_stack(error.what()));
    }
  }
}

void CallbackThreads::stop() {
  for (;;) {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      calls_there_.notify_all();
      threads.swap(threads_);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();  // meanwhile a call may start another one
  }
}

bool CallbackThreads::on_own_thread() const {
  const std::thread::id here = std::this_thread::get_id();
  MutexLock lock(mutex_);
  return std::any_of(threads_.begin(), threads_.end(),
                     [here](const std::thread& one) { return one.get_id() == here; });
}

}  // namespace weft::comm_internal
