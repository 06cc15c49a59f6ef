#include "weft/async/future.h"

#include <cstdlib>
#include <cxxabi.h>
#include <typeinfo>

#include "weft/async/error_text.h"
#include "weft/async/serving_threads.h"

namespace weft {
namespace {

std::atomic<ScopeCarrier*> installed_carrier{nullptr};

std::string name_of(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace

ScopeCarrier* ScopeCarrier::installed() {
  return installed_carrier.load(std::memory_order_acquire);
}
void ScopeCarrier::install(ScopeCarrier* carrier) {
  installed_carrier.store(carrier, std::memory_order_release);
}

namespace async_internal {

bool FutureCore::wait_until(TimePoint deadline) {
  if (done()) return true;
  BlockingSection blocking;
  MutexLock lock(mutex_);
  has_waiters_ = true;
  while (!done()) {
    if (!completed_.wait_until(mutex_, deadline) && !done()) return false;
  }
  return true;
}

bool FutureCore::listen(CompletionListener* listener) {
  MutexLock lock(mutex_);
  if (done() || listener_ != nullptr) return false;
  listener_ = listener;
  return true;
}

void FutureCore::forget_listener() {
  MutexLock lock(mutex_);
  listener_ = nullptr;
}

bool FutureCore::add_continuation(Executor* executor, Executor::Task run) {
  if (executor == nullptr) executor = executor_;
  if (executor == nullptr) executor = Executor::current();
  if (executor == nullptr) return false;
  {
    MutexLock lock(mutex_);
    if (!done()) {
      continuations_.push_back({executor, std::move(run)});
      return true;
    }
  }
  executor->schedule(std::move(run));
  return true;
}

void FutureCore::on_complete_inline(Executor::Task run) {
  {
    MutexLock lock(mutex_);
    if (!done()) {
      continuations_.push_back({nullptr, std::move(run)});
      return;
    }
  }
  run();
}

void FutureCore::cancel() {
  Executor::Task hook;
  {
    MutexLock lock(mutex_);
    if (done()) return;
    hook = std::move(on_cancel_);
    on_cancel_ = nullptr;
  }
  fail(with_ran(absl::CancelledError("cancelled by the caller"), Ran::kMaybe));
  if (hook) hook();
}

void FutureCore::set_on_cancel(Executor::Task hook) {
  MutexLock lock(mutex_);
  if (!done()) on_cancel_ = std::move(hook);
}

void FutureCore::set_on_consume(std::shared_ptr<const std::function<void()>> hook) {
  MutexLock lock(mutex_);
  on_consume_ = std::move(hook);
}

void FutureCore::consume() {
  std::shared_ptr<const std::function<void()>> hook;
  {
    MutexLock lock(mutex_);
    hook = on_consume_;
  }
  if (hook != nullptr) (*hook)();
}

void FutureCore::publish() {
  std::vector<Continuation> continuations;
  Executor::Task on_cancel;  // destroyed outside the lock
  bool wake = false;
  {
    MutexLock lock(mutex_);
    done_.store(true, std::memory_order_release);
    continuations.swap(continuations_);
    on_cancel = std::move(on_cancel_);
    on_cancel_ = nullptr;
    wake = has_waiters_;
    if (listener_ != nullptr) listener_->completed();
  }
  if (wake && !(ServingThreads::in_work() && ServingThreads::defer([self = shared_from_this()] {
                  self->completed_.notify_all();
                }))) {
    completed_.notify_all();
  }
  for (Continuation& next : continuations) {
    if (next.executor == nullptr) {
      next.run();
    } else {
      next.executor->schedule(std::move(next.run));
    }
  }
}

absl::Status no_executor() {
  return absl::FailedPreconditionError(
      "this future belongs to no worker: name an executor, then(executor, f)");
}

absl::Status move_only_shared() {
  return absl::FailedPreconditionError(
      "a move-only value can be taken only by the sole holder of its future");
}

absl::Status result_taken() {
  return absl::FailedPreconditionError("the value of this future was moved out before");
}

absl::Status empty_future() {
  return absl::FailedPreconditionError("a continuation gave a future without a promise");
}

absl::Status status_of_current_exception() {
  try {
    throw;
  } catch (const RpcError& error) {
    return error.status();
  } catch (const std::exception& error) {
    return absl::UnknownError(
        absl::StrCat(name_of(typeid(error)), ": ", without_stack(error.what())));
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return absl::UnknownError(
        absl::StrCat("exception of type ", type != nullptr ? name_of(*type) : "unknown"));
  }
}

}  // namespace async_internal
}  // namespace weft
