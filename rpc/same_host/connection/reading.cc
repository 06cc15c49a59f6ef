#include "weft/rpc/same_host/connection/reading.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "weft/async/serving_threads.h"

namespace weft::rpc_internal {
namespace {

// A caller that reads, while it is inside read_until_done().
struct Caller {
  const Reading* reading;
  bool interrupted = false;  // something came that only the serving thread may handle
};
thread_local Caller* caller_here = nullptr;

}  // namespace

Reading::Reading(std::shared_ptr<WakePage> page, Nanoseconds spin, Visit visit)
    : page_(std::move(page)), visit_(std::move(visit)), spinner_(spin), caller_spinner_(spin) {}

void Reading::post(Task task) {
  const bool by_caller = caller_here != nullptr && caller_here->reading == this;
  {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    has_tasks_.store(true, std::memory_order_seq_cst);
  }
  if (by_caller) {
    caller_here->interrupted = true;  // it wakes the serving thread when it stops reading
  } else {
    bits().wake(Group::kServing);
  }
}

void Reading::run_tasks() {
  std::vector<Task> tasks;
  {
    MutexLock lock(mutex_);
    has_tasks_.store(false, std::memory_order_relaxed);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) task();
}

bool Reading::arm_for(Group other) {
  bits().arm(other);
  return bits().any_pending();
}

// It does not sleep for long: a caller that has the lock and gets no processor would otherwise hide
// from peers that this thread needs one, too (rpc/membership/processor_waits.h).
void Reading::lock_visiting() {
  constexpr int kYields = 100;
  for (int tries = 0; !visiting_.try_lock(); ++tries) {
    if (tries < kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kRetryLock);
    }
  }
}

// ---- The serving thread

bool Reading::work() {
  bits().disarm();
  const ServingThreads::Work work;
  lock_visiting();
  const bool tasks = has_tasks();
  if (tasks) run_tasks();
  const bool visited = bits().take_pending([this](size_t slot) { visit_(slot, Group::kServing); });
  visiting_.unlock();
  bool wake = false;
  {
    MutexLock lock(mutex_);
    if (visited) served_ = true;
    // The caller may sleep already, and handlers may delay this thread's next look.
    wake = caller_reads() && arm_for(Group::kCaller);
  }
  if (wake) bits().wake(Group::kCaller);
  return tasks || visited;
}

void Reading::rest() {
  const auto something = [&] { return bits().any_pending() || has_tasks() || caller_reads(); };
  const auto sleep = [&] {
    uint32_t seen = 0;
    bool idle = false;
    {
      MutexLock lock(mutex_);
      const bool others = caller_reads();  // the pending bits are the caller's
      seen = others ? bits().word.load() : bits().arm(Group::kServing);
      idle = !has_tasks() && (others || !bits().any_pending());
    }
    const TimePoint until = std::chrono::steady_clock::now() + kLookAnyway;
    if (idle) bits().sleep(seen, until, Group::kServing);
  };
  if (caller_reads()) {
    sleep();
  } else {
    spinner_.wait(something, sleep);
  }
}

// ---- A caller that waits

void Reading::completed() {
  if (caller_here == nullptr || caller_here->reading != this) bits().wake(Group::kCaller);
}

bool Reading::begin_reading(async_internal::FutureCore& result) {
  bool met = false;
  bool wake = false;
  {
    MutexLock lock(mutex_);
    // Frames that wait for the serving thread go first.
    if (closed_.load() || has_tasks() || callers_met_.load()) return false;
    met = caller_reads_.load();
    if (met) {  // from now on the serving thread reads for both
      callers_met_.store(true);
      wake = arm_for(Group::kServing);
    } else if (skip_ > 0) {
      --skip_;
      after_skip_ = true;
    } else if (result.listen(this)) {
      disturbed_ = std::exchange(served_, false) && !std::exchange(after_skip_, false);
      caller_reads_.store(true);
      return true;
    }
  }
  if (met) bits().wake(Group::kCaller);
  if (wake) bits().wake(Group::kServing);
  return false;
}

void Reading::end_reading(bool direct) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    caller_reads_.store(false);
    const bool met = callers_met_.exchange(false);
    if (direct && !met && !disturbed_) {
      skipped_last_ /= 2;
    } else {
      skip_ = skipped_last_ = std::min(2 * skipped_last_ + 1, kMostSkipped);
    }
    wake = arm_for(Group::kServing) || has_tasks();
    caller_left_.notify_all();
  }
  if (wake) bits().wake(Group::kServing);
}

void Reading::read_until_done(async_internal::FutureCore& result) noexcept {
  // A thread that holds visiting_, or that runs a serving thread's task, must not read.
  if (ServingThreads::may_defer() || caller_here != nullptr || !begin_reading(result)) return;
  Caller caller{this};
  caller_here = &caller;
  int of_others = 0;
  const auto over = [&] {
    return result.done() || caller.interrupted || of_others == kMostOfOthers ||
           callers_met_.load() || closed_.load();
  };
  const auto something = [&] { return bits().any_pending() || over(); };
  while (!over()) {
    if (has_tasks()) std::this_thread::yield();  // to the serving thread
    bits().disarm();
    if (!visiting_.try_lock()) {
      // The serving thread may have armed for this one already: a signal may have come since.
      const uint32_t seen = bits().arm(Group::kCaller);
      const TimePoint until = std::chrono::steady_clock::now() + kRetryLock;
      if (!over()) bits().sleep(seen, until, Group::kCaller);
      continue;
    }
    const bool any = bits().take_pending([this](size_t slot) { visit_(slot, Group::kCaller); });
    visiting_.unlock();
    if (any) {
      ++of_others;
      continue;
    }
    caller_spinner_.wait(something, [&] {
      const uint32_t seen = bits().arm(Group::kCaller);
      if (!something()) bits().sleep(seen, kNever, Group::kCaller);
    });
  }
  caller_here = nullptr;
  result.forget_listener();
  const bool direct = result.done();
  if (direct) direct_replies_.fetch_add(1, std::memory_order_relaxed);
  end_reading(direct);
}

void Reading::close() {
  MutexLock lock(mutex_);
  closed_.store(true);
  bits().wake(Group::kCaller);
  while (caller_reads_.load()) caller_left_.wait(mutex_);
}

}  // namespace weft::rpc_internal
