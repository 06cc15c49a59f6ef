#include "weft/comm/internal/queued_work.h"

#include <chrono>
#include <exception>
#include <utility>

#include <ATen/core/ivalue.h>

#include "weft/base/log.h"
#include "weft/comm/internal/exception_text.h"

namespace weft::comm_internal {
namespace {

class QueuedWork : public c10d::Work {
 public:
  explicit QueuedWork(WorkQueue::Call call)
      : Work(call.rank, call.type, call.title),
        number_(call.number),
        outputs_(std::move(call.outputs)) {}

  void run(const std::function<void()>& task) {
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    // Complete the future before finish(), so that it is complete when wait() has returned. Its
    // callbacks run in this block.
    try {
      if (error != nullptr) {
        future_->setError(error);
      } else {
        future_->markCompleted(c10::IValue(outputs_));
      }
    } catch (const std::exception& failed) {
      log_error("a callback of a collective's future threw: ", text_of(failed));
    }
    finish(error);
  }
  // Look at the future first: its callback may wait for this work, before finish() was called.
  bool wait(std::chrono::milliseconds timeout) override {
    if (future_->completed()) {
      if (future_->hasError()) std::rethrow_exception(future_->exception_ptr());
      return true;
    }
    return Work::wait(timeout);
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

c10::intrusive_ptr<c10d::Work> WorkQueue::push(Call call, std::function<void()> task) {
  auto work = c10::make_intrusive<QueuedWork>(std::move(call));
  thread_.run([work, task = std::move(task)] { work->run(task); });
  return work;
}

}  // namespace weft::comm_internal
