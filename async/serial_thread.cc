#include "weft/async/serial_thread.h"

#include <deque>
#include <thread>
#include <utility>

#include "weft/base/mutex.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/base/thread.h"

namespace weft {

struct SerialThread::Queue {
  mutable Mutex mutex;
  CondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mutex);
  bool running ABSL_GUARDED_BY(mutex) = false;
  bool ending ABSL_GUARDED_BY(mutex) = false;
  std::thread thread ABSL_GUARDED_BY(mutex);  // empty before its start and after the end

  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return tasks.empty() && !running; }

  // Waits for the next task. An empty one means that the thread must stop.
  Task next() ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(mutex);
    running = false;
    if (ending) changed.notify_all();  // stop() waits
    while (tasks.empty() && !ending) changed.wait(mutex);
    if (tasks.empty()) return {};
    Task task = std::move(tasks.front());
    tasks.pop_front();
    running = true;
    return task;
  }

  void work() ABSL_LOCKS_EXCLUDED(mutex) {
    while (Task task = next()) task();  // the task is destroyed before the next one is taken
  }
};

SerialThread::SerialThread(StartLater, AtEnd at_end, absl::string_view purpose)
    : at_end_(at_end), purpose_(purpose), queue_(std::make_shared<Queue>()) {}

SerialThread::SerialThread(AtEnd at_end, absl::string_view purpose)
    : SerialThread(StartLater{}, at_end, purpose) {
  if (absl::Status started = start(); !started.ok()) throw RpcError(std::move(started));
}

SerialThread::~SerialThread() { stop(); }

absl::Status SerialThread::start() {
  MutexLock lock(queue_->mutex);
  if (queue_->thread.joinable() || queue_->ending) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(queue_->thread,
                        start_thread(purpose_, [queue = queue_] { queue->work(); }));
  return absl::OkStatus();
}

void SerialThread::run(Task task) {
  {
    MutexLock lock(queue_->mutex);
    if (queue_->ending) return;
    queue_->tasks.push_back(std::move(task));
  }
  queue_->changed.notify_one();
}

bool SerialThread::idle() const {
  MutexLock lock(queue_->mutex);
  return queue_->idle();
}

void SerialThread::stop(Nanoseconds at_most) {
  const TimePoint now = std::chrono::steady_clock::now();
  const TimePoint deadline = at_most < kNever - now ? now + at_most : kNever;
  end();
  std::thread thread;
  {
    MutexLock lock(queue_->mutex);
    if (queue_->thread.get_id() != std::this_thread::get_id()) {
      while (queue_->thread.joinable() && !queue_->idle() &&
             queue_->changed.wait_until(queue_->mutex, deadline)) {
      }
    }
    thread = std::move(queue_->thread);
    if (!queue_->idle() && thread.joinable()) thread.detach();
  }
  queue_->changed.notify_all();  // another stop() may wait for the thread
  if (thread.joinable()) thread.join();
}

void SerialThread::detach() {
  end();
  {
    MutexLock lock(queue_->mutex);
    if (queue_->thread.joinable()) queue_->thread.detach();
  }
  queue_->changed.notify_all();
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

}  // namespace weft
