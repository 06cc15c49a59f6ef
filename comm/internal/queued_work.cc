#include "weft/comm/internal/queued_work.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <ATen/core/ivalue.h>

namespace weft::internal {
namespace {

class QueuedWork : public c10d::Work {
 public:
  explicit QueuedWork(WorkQueue::Call call)
      : Work(call.rank, call.type, call.title),
        number_(call.number),
        outputs_(std::move(call.outputs)) {}

  void run(const std::function<void()>& task) {
    try {
      task();
    } catch (...) {
      future_->setError(std::current_exception());
      return finish(std::current_exception());
    }
    // First the future: it is complete when wait() has returned.
    future_->markCompleted(c10::IValue(outputs_));
    finish();
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return number_; }

 private:
  const uint64_t number_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
};

}  // namespace

class WorkQueue::State {
 public:
  void push(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
  }
  void run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;  // under mutex_
  bool ending_ = false;                      // under mutex_
};

WorkQueue::WorkQueue()
    : state_(std::make_shared<State>()), thread_([state = state_] { state->run(); }) {}

WorkQueue::~WorkQueue() {
  state_->end();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

c10::intrusive_ptr<c10d::Work> WorkQueue::push(Call call, std::function<void()> task) {
  auto work = c10::make_intrusive<QueuedWork>(std::move(call));
  state_->push([work, task = std::move(task)] { work->run(task); });
  return work;
}

}  // namespace weft::internal
