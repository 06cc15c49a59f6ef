#include "weft/async/serving_threads.h"

#include <algorithm>
#include <iterator>
#include <pthread.h>
#include <utility>

#include "weft/base/thread.h"

namespace weft {

thread_local ServingThreads::Here* ServingThreads::here_ = nullptr;

ServingThreads::ServingThreads(std::function<bool()> serve_one, Nanoseconds tick,
                               Nanoseconds together)
    : serve_one_(std::move(serve_one)), tick_(tick), together_(together) {
  MutexLock lock(mutex_);
  started_ = start(true);
  if (started_.ok()) start_stand_by();
}

ServingThreads::~ServingThreads() { join(); }

void ServingThreads::join() {
  while (true) {  // a thread may start another one that stands by while this joins it
    std::vector<std::thread> threads;
    {
      MutexLock lock(mutex_);
      threads.swap(threads_);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();
  }
}

absl::Status ServingThreads::started() const {
  MutexLock lock(mutex_);
  return started_;
}

absl::Status ServingThreads::start(bool serve) {
  absl::StatusOr<std::thread> thread =
      start_thread("the transport's queue", [this, serve] { run(serve); });
  if (!thread.ok()) return thread.status();
  if (!serve) ++standing_by_;  // before it runs, so that no other thread starts one more
  threads_.push_back(*std::move(thread));
  return absl::OkStatus();
}

void ServingThreads::start_stand_by() {
  const bool full = threads_.size() >= kMaxThreads;
  const bool there = !full && start(false).ok();
  may_take_.store(there, std::memory_order_relaxed);
  retry_at_ = there || full ? kNever : std::chrono::steady_clock::now() + kRetry * tick_;
}

void ServingThreads::run(bool serve) {
  pthread_setname_np(pthread_self(), kServingThread);
  Here here(this);
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

void ServingThreads::run_due(Here& here) {
  if (here.due.empty()) return;
  // Swapped, because deferred work may defer further work.
  std::vector<Executor::Task> due;
  due.swap(here.due);
  for (Executor::Task& each : due) each();
  due.clear();
  if (here.due.empty()) here.due.swap(due);  // reuses the memory
}

void ServingThreads::collect(Here& here, bool with_end) {
  here.due.swap(deferred_);
  if (!with_end) return;
  std::move(end_.begin(), end_.end(), std::back_inserter(here.due));
  end_.clear();
}

void ServingThreads::serve(Here& here) {
  {
    MutexLock lock(mutex_);
    collect(here, true);  // the deferred work of the previous term
  }
  run_due(here);
  while (true) {
    const bool more = serve_one_();
    run_due(here);
    if (here.taken.empty()) {
      here.due.swap(here.end);
      run_due(here);
    }
    if (!more) break;
    if (!may_take_.load(std::memory_order_relaxed)) {
      MutexLock lock(mutex_);
      if (standing_by_ == 0 && std::chrono::steady_clock::now() >= retry_at_) start_stand_by();
    }
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
    end_.swap(here.end);
    here.expected = {};
    wake = !std::exchange(watching_, true);
  }
  if (wake) changed_.notify_all();
  TimePoint since = std::chrono::steady_clock::now();
  while (true) {
    Nearby next{};
    const TimePoint now = std::chrono::steady_clock::now();
    {
      MutexLock lock(mutex_);
      if (term_ != here.term) return;  // another thread has taken over, with the other tasks
      handed_over_ = false;            // the wait was over before another thread took over
      running_ = !tasks_.empty();
      if (!running_ || now - since >= together_) {
        collect(here, !running_);
        since = now;
      }
      if (running_) {
        ++begun_;
        next = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    run_due(here);
    if (next.executor == nullptr) return;
    here.in_task = true;
    next.executor->run_nearby(std::move(next.call));
    here.in_task = false;
  }
}

// Lock order: this mutex_, then that of the executor (in give_back_nearby).
uint64_t ServingThreads::take_over(std::vector<Executor::Call>& unrun) {
  for (Nearby& each : tasks_) {
    if (!each.executor->give_back_nearby(each.call)) unrun.push_back(std::move(each.call));
  }
  tasks_.clear();
  running_ = watching_ = handed_over_ = false;
  --standing_by_;
  if (standing_by_ == 0) start_stand_by();
  return ++term_;
}

uint64_t ServingThreads::stand_by() {
  std::vector<Executor::Call> unrun;  // destroyed outside the lock
  MutexLock lock(mutex_);
  while (!ended_) {
    if (handed_over_) return take_over(unrun);
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
    if (running_ && was_running) return take_over(unrun);  // one task ran for a whole tick
    if (!running_ && tasks_.empty()) watching_ = false;
  }
  --standing_by_;
  return 0;
}

bool ServingThreads::take(ThreadExecutor& executor, Executor::Call& call) {
  Here* const here = here_;
  const Nanoseconds expected = std::max(*call.expected, kLeastExpected);
  if (here == nullptr || !here->in_work ||
      (!here->taken.empty() && here->expected + expected > kMostExpected) ||
      !here->threads->may_take_.load(std::memory_order_relaxed)) {
    return false;
  }
  here->expected += expected;
  here->taken.push_back({&executor, std::move(call)});
  return true;
}

bool ServingThreads::defer_to_end(Executor::Task what) {
  if (!in_work()) return false;
  here_->end.push_back(std::move(what));
  return true;
}

bool ServingThreads::defer(Executor::Task what) {
  if (!may_defer()) return false;
  if (here_->in_work) {
    here_->due.push_back(std::move(what));
    return true;
  }
  // Not here_->due: if another thread takes over during this task, it must do the work.
  ServingThreads& self = *here_->threads;
  MutexLock lock(self.mutex_);
  if (self.term_ != here_->term) return false;
  self.deferred_.push_back(std::move(what));
  return true;
}

void ServingThreads::hand_over() {
  Here* const here = here_;
  if (!here->in_task) return;
  ServingThreads& self = *here->threads;
  bool tell = false;
  {
    MutexLock lock(self.mutex_);
    if (self.term_ != here->term) return;
    self.collect(*here, false);
    tell = !self.handed_over_ && self.standing_by_ > 0;
    if (tell) self.handed_over_ = true;
  }
  if (tell) self.changed_.notify_all();
  run_due(*here);
}

}  // namespace weft
