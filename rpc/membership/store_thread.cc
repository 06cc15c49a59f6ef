#include "weft/rpc/membership/store_thread.h"

#include <utility>

#include "weft/async/future.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"

namespace weft::rpc_internal {

void StoreThread::schedule(Task task) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  if (absl::Status started = start_locked(); !started.ok()) log_warning(started.message());
}

absl::Status StoreThread::start() {
  MutexLock lock(mutex_);
  return start_locked();
}

absl::Status StoreThread::start_locked() {
  if (thread_.joinable() || stopping_) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(thread_, start_thread("questions to the rendezvous store",
                                              [self = shared_from_this()] { self->work(); }));
  return absl::OkStatus();
}

bool StoreThread::idle() const {
  MutexLock lock(mutex_);
  return tasks_.empty() && !running_;
}

void StoreThread::run(Task task, Nanoseconds at_most) {
  const auto done = std::make_shared<Promise<void>>(nullptr);  // shared with the task
  schedule([done, task = std::move(task)]() mutable {
    task();
    done->set_value();
  });
  (void)done->future().wait_for(at_most);
}

void StoreThread::work() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) changed_.wait(mutex_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
    }
    task();
    task = nullptr;
    MutexLock lock(mutex_);
    running_ = false;
    changed_.notify_all();
  }
}

void StoreThread::stop(Nanoseconds moment) {
  const auto deadline = std::chrono::steady_clock::now() + moment;
  std::deque<Task> dropped;  // destroyed outside the lock
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
    changed_.notify_all();
    while (running_ && changed_.wait_until(mutex_, deadline)) {
    }
    thread = std::move(thread_);
    if (running_ && thread.joinable()) thread.detach();
  }
  if (thread.joinable()) thread.join();
}

}  // namespace weft::rpc_internal
