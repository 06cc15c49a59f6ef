// A value that will be there later, or the error that came instead.
//
// A Future is a copyable handle to one immutable result. The Promise that belongs to it completes
// it exactly once; a Promise dropped without completing gives Cancelled. Dropping a Future changes
// nothing. Continuations never run inside `then` or inside the completing call: they are scheduled.
//
// Thread safety: all methods may be called from any thread.
// Blocking: only `wait`, `wait_for` and `result`; each announces itself to the executor.
// Errors: `wait` throws RpcError; `result` returns the absl::StatusOr.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/rpc_error.h"

namespace weft {

// What a Future<void> holds.
struct Unit {
  friend bool operator==(Unit, Unit) { return true; }
};

// Carries thread-local state (current worker, autograd context) from where a continuation is made
// to where it runs. The rooms above base install what there is to carry.
class ScopeCarrier {
 public:
  using Task = Executor::Task;
  virtual ~ScopeCarrier() = default;
  virtual Task carry(Task task) = 0;
  // Null until a room installs one; set before any worker starts.
  static ScopeCarrier* installed();
  static void install(ScopeCarrier* carrier);
};

namespace async_internal {

template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Unit, T>;

// The part of a future's state that does not depend on its type.
class FutureCore : public std::enable_shared_from_this<FutureCore> {
 public:
  explicit FutureCore(Executor* executor) : executor_(executor) {}
  virtual ~FutureCore() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }
  bool wait_until(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // `run` is scheduled on `executor` (null: this future's own) once the result is there. False: no
  // executor is known, `run` was dropped.
  bool add_continuation(Executor* executor, Executor::Task run) ABSL_LOCKS_EXCLUDED(mutex_);
  // For Weft's own plumbing: `run` runs inside the completing call (or here, if already complete).
  // It must not block or run user code.
  void on_complete_inline(Executor::Task run) ABSL_LOCKS_EXCLUDED(mutex_);
  void cancel();
  void set_on_cancel(Executor::Task hook) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs on each thread that reads the value, before it does (a CUDA stream waits for an event).
  void set_on_consume(std::shared_ptr<const std::function<void()>> hook)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void consume() ABSL_LOCKS_EXCLUDED(mutex_);
  Executor* executor() const { return executor_; }

  // Readers of the result. The completing call may still hold the state when a reader wakes, so the
  // state's own reference count cannot say who else will read.
  void add_reader() { readers_.fetch_add(1, std::memory_order_relaxed); }
  void drop_reader() { readers_.fetch_sub(1, std::memory_order_release); }
  bool has_one_reader() const { return readers_.load(std::memory_order_acquire) == 1; }
  // True once, and only for a reader that is the only one: it may move the result out. Readers that
  // come later find it taken: one word holds both, so none can come in between unseen.
  bool take() {
    int one = 1;
    return readers_.compare_exchange_strong(one, 1 | kTaken, std::memory_order_acq_rel);
  }
  bool taken() const { return (readers_.load(std::memory_order_acquire) & kTaken) != 0; }

 protected:
  virtual void fail(absl::Status status) = 0;
  // First half of completion: true for the one caller that may store the result.
  bool claim() { return !claimed_.exchange(true, std::memory_order_acq_rel); }
  // Second half: publishes the stored result, wakes waiters, schedules continuations. Inside a
  // piece of work of ServingThreads waiters are woken at its end: what they wait for next may be
  // part of it too.
  void publish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Continuation {
    Executor* executor;  // null: inline
    Executor::Task run;
  };

  static constexpr int kTaken = 1 << 30;

  Executor* const executor_;
  std::atomic<bool> claimed_{false};
  std::atomic<bool> done_{false};
  std::atomic<int> readers_{0};  // with kTaken, once the result was moved out
  Mutex mutex_;
  CondVar completed_;
  bool has_waiters_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Continuation> continuations_ ABSL_GUARDED_BY(mutex_);
  Executor::Task on_cancel_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const std::function<void()>> on_consume_ ABSL_GUARDED_BY(mutex_);
};

absl::Status no_executor();
absl::Status move_only_shared();
absl::Status result_taken();
absl::Status empty_future();

template <class T>
class FutureState final : public FutureCore {
 public:
  using FutureCore::FutureCore;

  bool complete(absl::StatusOr<Stored<T>> result) {
    if (!claim()) return false;
    result_ = std::move(result);
    publish();
    return true;
  }
  // Only after done(), and not once it was taken.
  absl::StatusOr<Stored<T>>& result() { return result_; }
  // Only after done(), by a reader: a copy; of what cannot be copied the result itself, if nobody
  // else can read it and nobody has taken it.
  absl::StatusOr<Stored<T>> take_result() {
    if (taken()) return result_taken();
    if constexpr (std::is_copy_constructible_v<Stored<T>>) {
      return result_;
    } else {
      if (!result_.ok()) return result_.status();
      if (take()) return std::move(result_);
      return taken() ? result_taken() : move_only_shared();
    }
  }

 private:
  void fail(absl::Status status) override { complete(std::move(status)); }

  absl::StatusOr<Stored<T>> result_ = absl::UnknownError("pending");
};

// What a reader finds once another one has taken the result.
template <class T>
const absl::StatusOr<Stored<T>>& no_result() {
  static const auto* const kTaken = new absl::StatusOr<Stored<T>>(result_taken());
  return *kTaken;
}

}  // namespace async_internal

template <class T>
class Promise;

template <class T>
class [[nodiscard]] Future {
 public:
  using Value = async_internal::Stored<T>;
  using State = async_internal::FutureState<T>;

  Future() = default;  // no state: valid() is false and nothing else may be called
  explicit Future(std::shared_ptr<State> state) : state_(std::move(state)) {
    if (state_ != nullptr) state_->add_reader();
  }
  Future(const Future& other) : Future(other.state_) {}
  Future(Future&& other) noexcept : state_(std::move(other.state_)) {}
  Future& operator=(Future other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Future() {
    if (state_ != nullptr) state_->drop_reader();
  }

  static Future ready(absl::StatusOr<Value> result) {
    auto state = std::make_shared<State>(Executor::current());
    state->complete(std::move(result));
    return Future(std::move(state));
  }

  bool valid() const { return state_ != nullptr; }
  bool done() const { return state_->done(); }

  // The value, valid as long as this handle. Throws RpcError.
  decltype(auto) wait() const& {
    const absl::StatusOr<Value>& result = this->result();
    if (!result.ok()) throw RpcError(result.status());
    if constexpr (!std::is_void_v<T>) return static_cast<const Value&>(*result);
  }
  // The value moved out if nobody else can read it, else copied; a move-only value that other
  // futures hold too is FailedPrecondition. So is every read after it was moved out.
  T wait() && {
    const absl::StatusOr<Value>& shared = this->result();
    if (!shared.ok()) throw RpcError(shared.status());
    if constexpr (!std::is_void_v<T>) {
      if constexpr (std::is_copy_constructible_v<Value>) {
        // A promise that is still there may hand out more futures.
        if (state_.use_count() == 1 && state_->take()) return std::move(*state_->result());
        return *shared;
      } else {
        absl::StatusOr<Value> mine = state_->take_result();
        if (!mine.ok()) throw RpcError(mine.status());
        return *std::move(mine);
      }
    }
  }
  // False if the result was not there within `timeout`. Zero is no limit here, unlike std::future:
  // poll with `done()`.
  bool wait_for(Timeout timeout) const {
    return state_->wait_until(timeout.deadline_from(std::chrono::steady_clock::now()));
  }
  const absl::StatusOr<Value>& result() const {
    state_->wait_until(kNever);
    if (state_->taken()) return async_internal::no_result<T>();
    state_->consume();
    return state_->result();
  }

  // Completes this future at once with Cancelled (ran = maybe) unless it is complete already, and
  // tells whoever works on it.
  void cancel() const { state_->cancel(); }

  // Runs `f(const Future<T>&)` on `executor` once this is complete; its result (or exception, or
  // the future it returns, unwrapped) completes the returned future. Without an executor it is that
  // of the worker that made this future, or the current one; if there is none (a call that failed
  // before it had a worker), f does not run, and the returned future fails as this one.
  template <class F>
  auto then(Executor* executor, F f) const& {
    return Future(*this).then(executor, std::move(f));
  }
  // The continuation holds this handle itself, and may be its only reader.
  template <class F>
  auto then(Executor* executor, F f) &&;
  template <class F>
  auto then(F f) const& {
    return then(static_cast<Executor*>(nullptr), std::move(f));
  }
  template <class F>
  auto then(F f) && {
    return std::move(*this).then(static_cast<Executor*>(nullptr), std::move(f));
  }

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// The writing end of a Future.
template <class T>
class Promise {
 public:
  using Value = async_internal::Stored<T>;
  using State = async_internal::FutureState<T>;

  // Continuations of its future run on `executor` unless they name another.
  explicit Promise(Executor* executor = Executor::current())
      : state_(std::make_shared<State>(executor)) {}
  ~Promise() {
    if (state_ != nullptr) {
      state_->complete(with_ran(absl::CancelledError("the promise was dropped"), Ran::kMaybe));
    }
  }
  Promise(Promise&& other) noexcept : state_(std::move(other.state_)) {}
  Promise& operator=(Promise&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }

  Future<T> future() const { return Future<T>(state_); }
  // False if the future was complete already (cancelled, say): the value is dropped. Whoever waits
  // may destroy this promise as soon as the result is there.
  bool set(absl::StatusOr<Value> result) const {
    const std::shared_ptr<State> state = state_;
    return state->complete(std::move(result));
  }
  bool set_value() requires std::is_void_v<T> { return set(Unit{}); }
  bool set_error(absl::Status status) const { return set(std::move(status)); }

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

namespace async_internal {

template <class T>
struct Unwrapped {
  using type = T;
};
template <class T>
struct Unwrapped<Future<T>> {
  using type = T;
};
template <class T>
struct Unwrapped<absl::StatusOr<T>> {
  using type = T;
};

// What an exception thrown by user code becomes: RpcError keeps its status, anything else is
// Unknown with the type's name and the text. To be called inside a catch block.
absl::Status status_of_current_exception();

// Runs `f` and completes `promise` with what it gives.
template <class R, class F>
void fulfil(Promise<R> promise, F&& f) {
  using Result = std::invoke_result_t<F>;
  try {
    if constexpr (std::is_void_v<Result>) {
      f();
      promise.set(Unit{});
    } else if constexpr (std::is_same_v<Result, Future<R>>) {
      Future<R> inner = f();
      if (!inner.valid()) {
        promise.set_error(empty_future());
        return;
      }
      const auto state = inner.state();  // shared with the continuation, which is the reader now
      state->on_complete_inline([inner = std::move(inner), promise = std::move(promise)] {
        inner.state()->consume();
        promise.set(inner.state()->take_result());
      });
    } else {
      promise.set(f());
    }
  } catch (...) {
    promise.set_error(status_of_current_exception());
  }
}

}  // namespace async_internal

template <class T>
template <class F>
auto Future<T>::then(Executor* executor, F f) && {
  using Result = std::invoke_result_t<F, const Future<T>&>;
  using R = typename async_internal::Unwrapped<Result>::type;
  const std::shared_ptr<State> state = state_;  // shared with the continuation
  Promise<R> promise(executor != nullptr ? executor : state->executor());
  Future<R> future = promise.future();
  Executor::Task task = [self = std::move(*this), f = std::move(f),
                         promise = std::move(promise)]() mutable {
    async_internal::fulfil<R>(std::move(promise), [&]() -> Result {
      F once = std::move(f);  // what it has captured may be the future that it gives
      return once(self);
    });
  };
  if (ScopeCarrier* carrier = ScopeCarrier::installed()) task = carrier->carry(std::move(task));
  if (!state->add_continuation(executor, std::move(task))) {
    // An early error has no worker; it is worth more than this one.
    const bool failed = state->done() && !state->taken() && !state->result().ok();
    return Future<R>::ready(failed ? state->result().status() : async_internal::no_executor());
  }
  return future;
}

// Complete once all are; then the first error in the order given wins.
template <class T>
Future<std::vector<T>> collect_all(std::vector<Future<T>> futures) {
  struct Gathered {
    explicit Gathered(size_t count) : missing(count) {}
    std::vector<Future<T>> futures;
    std::atomic<size_t> missing;
    Promise<std::vector<T>> promise;
  };
  auto gathered = std::make_shared<Gathered>(futures.size());
  gathered->futures = std::move(futures);
  Future<std::vector<T>> result = gathered->promise.future();
  auto finish = [gathered] {
    std::vector<T> values;
    values.reserve(gathered->futures.size());
    for (Future<T>& future : gathered->futures) {
      if (!future.result().ok()) {
        gathered->promise.set_error(future.result().status());
        return;
      }
      values.push_back(*future.result());
    }
    gathered->promise.set(std::move(values));
  };
  if (gathered->futures.empty()) finish();
  for (Future<T>& future : gathered->futures) {
    future.state()->on_complete_inline([gathered, finish] {
      if (gathered->missing.fetch_sub(1) == 1) finish();
    });
  }
  return result;
}

// Waits for all; throws the first error in the order given, after all are complete.
template <class T>
void wait_all(const std::vector<Future<T>>& futures) {
  for (const Future<T>& future : futures) (void)future.result();
  for (const Future<T>& future : futures) (void)future.wait();
}

}  // namespace weft
