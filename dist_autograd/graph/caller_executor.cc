#include "weft/dist_autograd/graph/caller_executor.h"

#include <utility>

namespace weft::dist_autograd_internal {

void CallerExecutor::schedule(Task task) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      queue_.push_back(std::move(task));
      task = nullptr;
    }
  }
  if (task != nullptr) {
    later_.schedule(std::move(task));
  } else {
    changed_.notify_one();
  }
}

bool CallerExecutor::next(Task& task) {
  MutexLock lock(mutex_);
  running_ = !closed_ && !queue_.empty();
  if (closed_) return false;
  if (running_) {
    task = std::move(queue_.front());
    queue_.pop_front();
  }
  return true;
}

bool CallerExecutor::idle() const {
  {
    MutexLock lock(mutex_);
    if (running_ || !queue_.empty()) return false;
  }
  return later_.idle();
}

void CallerExecutor::wait() {
  const BlockingSection waiting;
  MutexLock lock(mutex_);
  while (queue_.empty() && !closed_) changed_.wait(mutex_);
}

void CallerExecutor::run() {
  Task task;
  while (next(task)) {
    if (task != nullptr) {
      task();
      task = nullptr;
    } else {
      wait();
    }
  }
}

void CallerExecutor::close() {
  std::deque<Task> left;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    left.swap(queue_);
  }
  changed_.notify_one();
  for (Task& task : left) later_.schedule(std::move(task));
}

}  // namespace weft::dist_autograd_internal
