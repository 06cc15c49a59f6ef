#include "weft/base/serving_threads.h"

#include <algorithm>
#include <utility>

namespace weft {

thread_local ServingThreads::Here* ServingThreads::here_ = nullptr;

ServingThreads::ServingThreads(std::function<bool()> serve_one, Nanoseconds tick)
    : serve_one_(std::move(serve_one)), tick_(tick) {
  MutexLock lock(mutex_);
  start_thread(true);
  start_thread(false);
}

ServingThreads::~ServingThreads() { join(); }

void ServingThreads::join() {
  while (true) {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mutex_);
      threads.swap(threads_);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();
  }
}

void ServingThreads::start_thread(bool serve) {
  if (!serve) ++standing_by_;  // from here on, so that nobody starts another one
  threads_.emplace_back([this, serve] { run(serve); });
}

void ServingThreads::run(bool serve) {
  Here here{this, 1, false, {}, {}};
  here_ = &here;
  if (!serve) here.term = stand_by();
  while (here.term != 0) {
    this->serve(here);
    {
      MutexLock lock(mutex_);
      ++standing_by_;
      may_take_.store(true, std::memory_order_relaxed);
    }
    here.term = stand_by();
  }
  here_ = nullptr;
}

void ServingThreads::serve(Here& here) {
  while (serve_one_()) {
    if (here.taken.empty()) continue;
    run_tasks(here);
    MutexLock lock(mutex_);
    if (term_ != here.term) return;
  }
  MutexLock lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void ServingThreads::run_tasks(Here& here) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    for (Nearby& each : here.taken) tasks_.push_back(std::move(each));
    here.taken.clear();
    here.expected = {};
    wake = !std::exchange(watching_, true);
  }
  if (wake) changed_.notify_all();
  here.in_task = true;
  while (true) {
    Nearby next;
    {
      MutexLock lock(mutex_);
      if (term_ != here.term) break;
      handed_over_ = false;  // nobody has taken over: the wait was short
      running_ = !tasks_.empty();
      if (!running_) break;
      ++begun_;
      next = std::move(tasks_.front());
      tasks_.pop_front();
    }
    next.executor->run_nearby(std::move(next.task));
  }
  here.in_task = false;
}

uint64_t ServingThreads::take_over() {
  for (Nearby& each : tasks_) each.executor->give_back_nearby(std::move(each.task));
  tasks_.clear();
  running_ = watching_ = handed_over_ = false;
  --standing_by_;
  if (standing_by_ == 0) {
    if (threads_.size() < kMaxThreads) {
      start_thread(false);
    } else {
      may_take_.store(false, std::memory_order_relaxed);
    }
  }
  return ++term_;
}

uint64_t ServingThreads::stand_by() {
  MutexLock lock(mutex_);
  while (!ended_) {
    if (handed_over_) return take_over();
    if (!watching_ || has_watcher_) {
      changed_.wait(mutex_);
      continue;
    }
    has_watcher_ = true;
    const uint64_t term = term_, begun = begun_;
    const bool was_running = running_;
    const TimePoint until = std::chrono::steady_clock::now() + tick_;
    while (!ended_ && !handed_over_ && changed_.wait_until(mutex_, until)) {
    }
    has_watcher_ = false;
    if (ended_ || handed_over_ || term_ != term || begun_ != begun) continue;
    if (running_ && was_running) return take_over();  // the same task for a whole tick
    if (!running_) watching_ = false;
  }
  --standing_by_;
  return 0;
}

bool ServingThreads::take(ThreadExecutor& executor, Executor::Task& task, Nanoseconds expected) {
  Here* const here = here_;
  expected = std::max(expected, kLeastExpected);
  if (here == nullptr || here->in_task || here->expected + expected > kMostExpected ||
      !here->threads->may_take_.load(std::memory_order_relaxed)) {
    return false;
  }
  here->expected += expected;
  here->taken.push_back({&executor, std::move(task)});
  return true;
}

void ServingThreads::hand_over() {
  Here* const here = here_;
  if (!here->in_task) return;
  ServingThreads& self = *here->threads;
  {
    MutexLock lock(self.mutex_);
    if (self.term_ != here->term || self.handed_over_ || self.standing_by_ == 0) return;
    self.handed_over_ = true;
  }
  self.changed_.notify_all();
}

}  // namespace weft
