#include "weft/comm/internal/same_host_work.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include "weft/base/log.h"
#include "weft/comm/internal/exception_text.h"
#include "weft/comm/tensors/tensor_arguments.h"

namespace weft::comm_internal {

std::exception_ptr exception_of(const absl::Status& failure) {
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::string(failure.message())));
}

void throw_failure(const absl::Status& failure) { std::rethrow_exception(exception_of(failure)); }

// The result of the operations. It is shared by the work, which may be destroyed first, and by the
// thread that completes the future.
class SameHostWork::Outcome {
 public:
  Outcome(Call call, std::function<void()> end)
      : parts(std::move(call.parts)),
        outputs(std::move(call.outputs)),
        settle_(std::move(call.settle)),
        end_(std::move(end)) {}

  // Call it when all operations are done. Null: they have succeeded.
  const std::exception_ptr& error() {
    std::call_once(once_, [this] { finish(); });
    return error_;
  }

  const Parts parts;
  const std::vector<at::Tensor> outputs;

 private:
  void finish() {
    for (const auto& one : parts) {
      if (error_ == nullptr && !one->status().ok()) error_ = exception_of(one->status());
    }
    if (error_ == nullptr && settle_ != nullptr) {
      try {
        settle_();
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    settle_ = nullptr;
    if (const auto end = std::exchange(end_, nullptr)) end();
  }

  std::once_flag once_;
  std::function<void()> settle_;
  std::function<void()> end_;  // closes the profiler's event
  std::exception_ptr error_;
};

class SameHostWork::Promised {
 public:
  explicit Promised(std::shared_ptr<Outcome> outcome)
      : outcome_(std::move(outcome)), left_(outcome_->parts.size()) {}

  const c10::intrusive_ptr<c10::ivalue::Future>& future() const { return future_; }
  void one_is_done() {
    if (left_.fetch_sub(1) == 1) complete();
  }
  // Returns when the future is complete. Its callbacks may still run, and may wait for this work.
  void complete() {
    if (completing_.exchange(true)) return future_->wait();
    try {
      if (const std::exception_ptr& error = outcome_->error(); error != nullptr) {
        future_->setError(error);
      } else {
        future_->markCompleted(c10::IValue(outcome_->outputs));
      }
    } catch (const std::exception& failed) {
      log_error("a callback of a collective's future threw: ", text_of(failed));
    }
  }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const std::shared_ptr<Outcome> outcome_;
  std::atomic<size_t> left_;
  std::atomic<bool> completing_{false};
};

SameHostWork::SameHostWork(std::shared_ptr<CollectiveGroup> group, Call call)
    : Work(group->rank(), call.type, call.title),
      group_(std::move(group)),
      number_(call.number),
      outcome_(std::make_shared<Outcome>(std::move(call),
                                         std::exchange(recordFunctionEndCallback_, nullptr))) {}

bool SameHostWork::all_done() const {
  return std::all_of(outcome_->parts.begin(), outcome_->parts.end(),
                     [](const auto& one) { return one->done(); });
}

bool SameHostWork::isCompleted() {
  if (!all_done()) group_->poll();
  if (!all_done()) return false;
  outcome_->error();
  return true;
}

bool SameHostWork::isSuccess() const { return all_done() && outcome_->error() == nullptr; }

std::exception_ptr SameHostWork::exception() const {
  return all_done() ? outcome_->error() : nullptr;
}

bool SameHostWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = end_of(timeout);
  for (const auto& one : outcome_->parts) {
    const absl::Status status = group_->wait(one, deadline);
    if (!one->done()) throw_failure(status);
  }
  complete_future();
  if (outcome_->error() != nullptr) std::rethrow_exception(outcome_->error());
  return true;
}

std::vector<at::Tensor> SameHostWork::result() { return outcome_->outputs; }

int SameHostWork::sourceRank() const {
  return outcome_->parts.empty() ? -1 : outcome_->parts.back()->peer();
}

c10::intrusive_ptr<c10::ivalue::Future> SameHostWork::getFuture() {
  std::shared_ptr<Promised> promised;
  {
    const std::lock_guard lock(mutex_);
    if (promised_ != nullptr) return promised_->future();
    promised = promised_ = std::make_shared<Promised>(outcome_);
  }
  if (outcome_->parts.empty()) promised->complete();
  for (const auto& one : outcome_->parts) {
    group_->when_done(one, [promised] { promised->one_is_done(); });
  }
  return promised->future();
}

void SameHostWork::complete_future() {
  std::shared_ptr<Promised> promised;
  {
    const std::lock_guard lock(mutex_);
    promised = promised_;
  }
  if (promised != nullptr) promised->complete();
}

}  // namespace weft::comm_internal
