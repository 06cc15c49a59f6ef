#include "weft/async/serial_thread.h"

#include <deque>
#include <utility>

#include "weft/base/mutex.h"
#include "weft/base/thread.h"

namespace weft {

struct SerialThread::Queue {
  Mutex mutex;
  CondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  bool ending ABSL_GUARDED_BY(mutex) = false;

  // Waits for the next task. An empty one means that the thread must stop.
  Task next() ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(mutex);
    while (tasks.empty() && !ending) changed.wait(mutex);
    if (tasks.empty()) return {};
    Task task = std::move(tasks.front());
    tasks.pop_front();
    return task;
  }
};

SerialThread::SerialThread(AtEnd at_end, absl::string_view purpose)
    : at_end_(at_end),
      queue_(std::make_shared<Queue>()),
      thread_(start_needed_thread(purpose, [queue = queue_] {
        while (Task task = queue->next()) task();
      })) {}

SerialThread::~SerialThread() {
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    detach();
  } else {
    end();
    thread_.join();
  }
}

void SerialThread::detach() {
  end();
  thread_.detach();
}

void SerialThread::end() {
  {
    std::deque<Task> unrun;  // destroyed outside the lock
    const MutexLock lock(queue_->mutex);
    queue_->ending = true;
    if (at_end_ == AtEnd::kDrop) unrun.swap(queue_->tasks);
  }
  queue_->changed.notify_all();
}

void SerialThread::run(Task task) {
  {
    MutexLock lock(queue_->mutex);
    queue_->tasks.push_back(std::move(task));
  }
  queue_->changed.notify_one();
}

}  // namespace weft
