// A result that arrives later: a value, or an error.
//
// A Future is a copyable handle to one immutable result. Its Promise completes it exactly once. If
// the Promise is destroyed first, the result is Cancelled. Destroying a Future has no effect on the
// result. Continuations never run inside `then` or inside the completing call: an executor runs
// them.
//
// Thread safety: all methods may be called from any thread.
// Blocking: only `wait`, `wait_for`, `result` and `wait_all` block. They announce the wait to the
// executor.
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

// The value of a Future<void>.
struct Unit {
  friend bool operator==(Unit, Unit) { return true; }
};

// Carries thread-local state (current worker, autograd context) from the thread that adds a
// continuation to the thread that runs it. The room that owns the state installs the carrier.
class ScopeCarrier {
 public:
  using Task = Executor::Task;
  virtual ~ScopeCarrier() = default;
  virtual Task carry(Task task) = 0;
  // Null until a room installs a carrier, which it does before any worker starts.
  static ScopeCarrier* installed();
  static void install(ScopeCarrier* carrier);
};

namespace async_internal {

template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, Unit, T>;

// Wakes a thread that does other work while it waits for a future. It must live until
// forget_listener() has returned.
class CompletionListener {
 public:
  // Called inside the completing call, under a lock of the future: it must be short and must not
  // use the future.
  virtual void completed() = 0;

 protected:
  ~CompletionListener() = default;
};

// The part of a future's state that does not depend on the type of its value.
class FutureCore : public std::enable_shared_from_this<FutureCore> {
 public:
  explicit FutureCore(Executor* executor) : executor_(executor) {}
  virtual ~FutureCore() = default;

  bool done() const { return done_.load(std::memory_order_acquire); }
  bool wait_until(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells `listener` of the completion, unless forget_listener() comes first. False: the future is
  // complete, or has a listener.
  bool listen(CompletionListener* listener) ABSL_LOCKS_EXCLUDED(mutex_);
  void forget_listener() ABSL_LOCKS_EXCLUDED(mutex_);
  // Schedules `run` on `executor` as soon as the result exists. Null means this future's executor
  // or, if it has none, the current one. False: there is no executor, and `run` was dropped.
  bool add_continuation(Executor* executor, Executor::Task run) ABSL_LOCKS_EXCLUDED(mutex_);
  // For Weft's internal use: runs `run` inside the completing call, or inside this call if the
  // future is complete. `run` must not block and must not run user code.
  void on_complete_inline(Executor::Task run) ABSL_LOCKS_EXCLUDED(mutex_);
  void cancel();
  void set_on_cancel(Executor::Task hook) ABSL_LOCKS_EXCLUDED(mutex_);
  // Each reader calls `hook` on its own thread before it reads the value (a CUDA stream waits for
  // an event).
  void set_on_consume(std::shared_ptr<const std::function<void()>> hook)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void consume() ABSL_LOCKS_EXCLUDED(mutex_);
  Executor* executor() const { return executor_; }

  // Counts the readers of the result. The reference count of the state does not tell how many
  // readers there are, because the completing call may still hold the state when a reader wakes.
  void add_reader() { readers_.fetch_add(1, std::memory_order_relaxed); }
  void drop_reader() { readers_.fetch_sub(1, std::memory_order_release); }
  bool has_one_reader() const { return readers_.load(std::memory_order_acquire) == 1; }
  // True at most once, and only if there is exactly one reader, which may then move the result out.
  // Later readers find the result taken. One atomic word holds the number of readers and kTaken, so
  // no reader can be added unseen between the check and the mark.
  bool take() {
    int one = 1;
    return readers_.compare_exchange_strong(one, 1 | kTaken, std::memory_order_acq_rel);
  }
  bool taken() const { return (readers_.load(std::memory_order_acquire) & kTaken) != 0; }

 protected:
  virtual void fail(absl::Status status) = 0;
  // First half of a completion: true for the one caller that may store the result.
  bool claim() { return !claimed_.exchange(true, std::memory_order_acq_rel); }
  // Second half: publishes the stored result, wakes waiters and schedules continuations. Inside a
  // piece of work of ServingThreads, the waiters are woken only after that piece, because it may
  // also complete the futures for which they wait next.
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
  std::atomic<int> readers_{0};  // includes the bit kTaken once the result was moved out
  Mutex mutex_;
  CondVar completed_;
  bool has_waiters_ ABSL_GUARDED_BY(mutex_) = false;
  CompletionListener* listener_ ABSL_GUARDED_BY(mutex_) = nullptr;
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
  // Only after done(), and not after the result was taken.
  absl::StatusOr<Stored<T>>& result() { return result_; }
  // Only after done(), and only by a reader. Returns a copy of the result. A value that cannot be
  // copied is moved out if this is the only reader; otherwise, or if it was moved out before, the
  // result is FailedPrecondition.
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

// The result that readers get after another reader has taken the value (FailedPrecondition).
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

  Future() = default;  // without a state: no method but valid() (false) may be called
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

  // Returns the value; the reference is valid as long as this handle. Throws RpcError.
  decltype(auto) wait() const& {
    const absl::StatusOr<Value>& result = this->result();
    if (!result.ok()) throw RpcError(result.status());
    if constexpr (!std::is_void_v<T>) return static_cast<const Value&>(*result);
  }
  // Moves the value out if no other handle can read it, and otherwise copies it. Throws
  // FailedPrecondition for a move-only value if other futures refer to it. After the value was
  // moved out, every read is FailedPrecondition.
  T wait() && {
    const absl::StatusOr<Value>& shared = this->result();
    if (!shared.ok()) throw RpcError(shared.status());
    if constexpr (!std::is_void_v<T>) {
      if constexpr (std::is_copy_constructible_v<Value>) {
        // A use_count above 1 may be a promise, which can still make further futures.
        if (state_.use_count() == 1 && state_->take()) return std::move(*state_->result());
        return *shared;
      } else {
        absl::StatusOr<Value> mine = state_->take_result();
        if (!mine.ok()) throw RpcError(mine.status());
        return *std::move(mine);
      }
    }
  }
  // False: the result did not arrive within `timeout`. Unlike in std::future, zero means no limit;
  // use `done()` to poll.
  bool wait_for(Timeout timeout) const {
    return state_->wait_until(timeout.deadline_from(std::chrono::steady_clock::now()));
  }
  const absl::StatusOr<Value>& result() const {
    state_->wait_until(kNever);
    if (state_->taken()) return async_internal::no_result<T>();
    state_->consume();
    return state_->result();
  }

  // Completes this future at once with Cancelled (ran = maybe) and runs the producer's cancel hook.
  // Does nothing if the future is complete.
  void cancel() const { state_->cancel(); }

  // Schedules `f(const Future<T>&)` on `executor` when this future is complete. The result of f,
  // its exception, or the future that it returns completes the returned future. Without `executor`,
  // f runs on this future's executor (that of the worker that made it) or else on the current one.
  // If there is no executor at all, f does not run. Then the returned future fails with this
  // future's error (a call that failed before it had a worker), or else with FailedPrecondition.
  template <class F>
  auto then(Executor* executor, F f) const& {
    return Future(*this).then(executor, std::move(f));
  }
  // As above, but moves this handle into the continuation, which may then be the only reader.
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

// Completes a Future.
template <class T>
class Promise {
 public:
  using Value = async_internal::Stored<T>;
  using State = async_internal::FutureState<T>;

  // Continuations of its future run on `executor` unless `then` names another one.
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
  // False: the future was complete before (cancelled, for example), and `result` is dropped. A
  // thread that waits for the future may destroy this promise during the call.
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

// Converts the exception of user code that is being handled. RpcError keeps its status; any other
// exception becomes Unknown with its type's name and its text. Call it inside a catch block.
absl::Status status_of_current_exception();

// Runs `f` and completes `promise` with its result, with the future that it returns, or with its
// exception.
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
      const auto state = inner.state();  // a copy, because `inner` moves into the continuation
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
  const std::shared_ptr<State> state = state_;  // a copy, because *this moves into the task
  Promise<R> promise(executor != nullptr ? executor : state->executor());
  Future<R> future = promise.future();
  Executor::Task task = [self = std::move(*this), f = std::move(f),
                         promise = std::move(promise)]() mutable {
    async_internal::fulfil<R>(std::move(promise), [&]() -> Result {
      F once = std::move(f);  // destroyed before the result is used: it may own the returned future
      return once(self);
    });
  };
  if (ScopeCarrier* carrier = ScopeCarrier::installed()) task = carrier->carry(std::move(task));
  if (!state->add_continuation(executor, std::move(task))) {
    // A call that failed early has no worker. Its error says more than no_executor().
    const bool failed = state->done() && !state->taken() && !state->result().ok();
    return Future<R>::ready(failed ? state->result().status() : async_internal::no_executor());
  }
  return future;
}

// Returns a future that completes when all `futures` are complete. If some failed, its error is
// that of the first of them in the given order.
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

// Waits until all are complete. Then throws the first error in the given order, if there is one.
template <class T>
void wait_all(const std::vector<Future<T>>& futures) {
  for (const Future<T>& future : futures) (void)future.result();
  for (const Future<T>& future : futures) (void)future.wait();
}

}  // namespace weft
