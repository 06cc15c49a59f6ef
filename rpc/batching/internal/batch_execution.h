// Runs one batch of typed calls: joins them, runs the function and divides its result.
//
// To find the calls that fail, the execution divides a batch into parts and runs them one after the
// other. So errors do not make the function run more often at the same time.
//
// Thread safety: none. Each step begins after the step before has finished.
// Lifetime: shared with the continuation of the function's future. After the last part it completes
// the batch.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "weft/async/future.h"
#include "weft/rpc/batching/internal/batch_queue.h"
#include "weft/rpc/batching/internal/batch_tensors.h"
#include "weft/rpc/codec/value_bytes.h"
#include "weft/rpc/signature.h"
#include "weft/rpc/user_call.h"

namespace weft::rpc_internal {

template <class R, class... P>
struct TypedItem final : BatchItem {
  using Arguments = std::tuple<std::remove_cvref_t<P>...>;

  template <class... A>
  explicit TypedItem(Executor* executor, A&&... argument)
      : arguments(std::forward<A>(argument)...), promise(executor) {}
  void fail(const absl::Status& status) override { promise.set_error(status); }
  bool done() const override { return promise.state()->done(); }
  void on_cancel(Executor::Task hook) override { promise.state()->set_on_cancel(std::move(hook)); }
  size_t bytes() const override { return argument_bytes; }

  Arguments arguments;
  Promise<R> promise;
  int64_t rows = 1;
  size_t argument_bytes = 0;
};

// Whether a function has the form for joined arguments, and whether it has the form for lists.
template <class F, class R, class... P>
inline constexpr bool kTakesJoined =
    kAllJoinable<P...> &&
    (std::is_void_v<R> || kAllJoinable<R>)&&std::is_invocable_v<F&, std::remove_cvref_t<P>...>;
template <class F, class... P>
inline constexpr bool kTakesLists = std::is_invocable_v<F&, std::vector<std::remove_cvref_t<P>>...>;

template <class F, class R, class... P>
class BatchExecution : public std::enable_shared_from_this<BatchExecution<F, R, P...>> {
 public:
  using Item = TypedItem<R, P...>;
  using Result = absl::StatusOr<async_internal::Stored<R>>;
  static constexpr bool kJoined = kTakesJoined<F, R, P...>;

  BatchExecution(std::shared_ptr<F> function, BatchQueue& queue, BatchItems items,
                 BatchQueue::End end)
      : function_(std::move(function)),
        queue_(queue),
        items_(std::move(items)),
        results_(items_.size()),
        parts_{{0, items_.size()}},
        end_(std::move(end)) {}

  // Runs the parts that are left. Returns when one of them waits for a future, whose continuation
  // goes on here.
  void run() {
    while (!parts_.empty()) {
      const Part part = parts_.back();
      parts_.pop_back();
      if (!run_part(part)) return;
    }
    end_([self = this->shared_from_this()] {
      for (size_t call = 0; call < self->items_.size(); ++call) {
        self->item(call).promise.set(std::move(self->results_[call]));
      }
    });
  }

 private:
  struct Part {
    size_t begin, end;  // indices of calls
    size_t size() const { return end - begin; }
  };

  Item& item(size_t i) { return static_cast<Item&>(*items_[i]); }
  const BatchOptions& options() const { return queue_.options(); }

  // False: the function returned a future, and its continuation runs the parts that are left.
  bool run_part(Part part) {
    using Returned = std::remove_cvref_t<decltype(call(part))>;
    if constexpr (std::is_void_v<Returned>) {
      const absl::Status status = guarded([&] { call(part); });
      complete<Unit>(part, status.ok() ? absl::StatusOr<Unit>(Unit{}) : status);
    } else {
      std::optional<Returned> returned;
      const absl::Status status = guarded([&] { returned.emplace(call(part)); });
      if (!status.ok()) {
        fail(part, status);
      } else if constexpr (kFuture<Returned>) {
        return complete_later(part, *std::move(returned));
      } else {
        complete_with(part, *std::move(returned));
      }
    }
    return true;
  }
  absl::Status guarded(absl::FunctionRef<void()> code) {
    BatchQueue::Inside inside(&queue_);
    return run_user_code(code);
  }

  decltype(auto) call(Part part) {
    return [&]<size_t... i>(std::index_sequence<i...>)->decltype(auto) {
      if constexpr (kJoined) {
        return (*function_)(joined<i>(part)...);
      } else {
        return (*function_)(listed<i>(part)...);
      }
    }
    (std::index_sequence_for<P...>());
  }

  // Joins the i-th argument of all calls: the argument of the first call, with joined tensors.
  template <size_t i>
  auto joined(Part part) {
    auto argument = std::get<i>(item(part.begin).arguments);
    std::vector<std::vector<at::Tensor>> tensors;  // of the argument; of each call
    visit_each_tensor(argument, [&](at::Tensor&) { tensors.emplace_back().reserve(part.size()); });
    for (size_t call = part.begin; call < part.end; ++call) {
      auto slot = tensors.begin();
      visit_each_tensor(std::get<i>(item(call).arguments),
                        [&](at::Tensor& tensor) { (slot++)->push_back(tensor); });
    }
    auto slot = tensors.begin();
    visit_each_tensor(argument, [&](at::Tensor& tensor) {
      tensor = join_tensors(std::move(*slot++), options().join);
    });
    return argument;
  }

  // Lists the i-th argument of each call. It is moved, unless the calls may have to run again.
  template <size_t i>
  auto listed(Part part) {
    using Argument = std::tuple_element_t<i, typename Item::Arguments>;
    std::vector<Argument> list;
    list.reserve(part.size());
    for (size_t call = part.begin; call < part.end; ++call) {
      Argument& argument = std::get<i>(item(call).arguments);
      if constexpr (std::is_copy_constructible_v<Argument>) {
        if (options().isolate_errors) {
          list.push_back(argument);
          continue;
        }
      }
      list.push_back(std::move(argument));
    }
    return list;
  }

  template <class T>
  bool complete_later(Part part, Future<T> future) {
    if (!future.valid()) {
      fail(part, async_internal::empty_future());
      return true;
    }
    (void)std::move(future).then(&CallScope::current().runtime->executor(),
                                 [self = this->shared_from_this(), part](const Future<T>& done) {
                                   self->take(part, done);
                                   self->run();
                                 });
    return false;
  }

  template <class T>
  void take(Part part, const Future<T>& done) {
    absl::StatusOr<async_internal::Stored<T>> value;
    const absl::Status thrown = run_user_code([&] {
      (void)done.result();
      value = done.state()->take_result();
    });
    if (thrown.ok()) {
      complete<async_internal::Stored<T>>(part, std::move(value));
    } else {
      settle(part, thrown);
    }
  }

  template <class T>
  void complete_with(Part part, T value) {
    complete<T>(part, absl::StatusOr<T>(std::move(value)));
  }
  template <class T>
  void complete_with(Part part, absl::StatusOr<T> value) {
    complete<T>(part, std::move(value));
  }
  void complete_with(Part part, absl::Status status) {
    complete<Unit>(part, status.ok() ? absl::StatusOr<Unit>(Unit{}) : status);
  }

  template <class T>
  void complete(Part part, absl::StatusOr<T> value) {
    if (!value.ok()) {
      fail(part, std::move(value).status());
      return;
    }
    absl::Status status;
    const absl::Status thrown = run_user_code([&] { status = divide(part, *value); });
    if (!thrown.ok() || !status.ok()) settle(part, thrown.ok() ? status : thrown);
  }

  // The function failed for this part. Other codes (a worker stopped, a deadline passed, a function
  // is missing) are not the fault of one call, so they do not divide the part.
  void fail(Part part, const absl::Status& status) {
    const bool of_a_call =
        absl::IsUnknown(status) || absl::IsInvalidArgument(status) || absl::IsInternal(status);
    if (options().isolate_errors && of_a_call && part.size() > 1) {
      const size_t middle = part.begin + part.size() / 2;
      parts_.push_back({middle, part.end});
      parts_.push_back({part.begin, middle});
      return;
    }
    settle(part, status);
  }
  void settle(Part part, const absl::Status& status) {
    // This function ran, even if the error of a call inside it has another `ran`.
    const absl::Status ran = with_ran(status, Ran::kYes);
    for (size_t call = part.begin; call < part.end; ++call) results_[call] = ran;
  }

  // Divides the function's result for the part among its calls.
  template <class T>
  absl::Status divide(Part part, T& value) {
    if constexpr (std::is_void_v<R>) {
      static_assert(std::is_same_v<T, Unit>, "weft: the function of this Batcher returns nothing");
      for (size_t call = part.begin; call < part.end; ++call) results_[call] = Unit{};
    } else if constexpr (kJoined) {
      static_assert(std::is_convertible_v<T, R>,
                    "weft: the function of this Batcher must return the R of Batcher<R(P...)>, "
                    "joined");
      return divide_joined(part, value);
    } else {
      static_assert(
          std::is_same_v<T, std::vector<R>> || std::is_same_v<T, std::vector<absl::StatusOr<R>>>,
          "weft: a function that takes lists must return std::vector<R> or "
          "std::vector<absl::StatusOr<R>>");
      if (value.size() != part.size()) {
        return wrong_count(options().name, value.size(), part.size());
      }
      for (size_t i = 0; i < value.size(); ++i) {
        Result& result = results_[part.begin + i];
        result = std::move(value[i]);
        if (!result.ok()) result = with_ran(result.status(), Ran::kYes);
      }
    }
    return absl::OkStatus();
  }

  absl::Status divide_joined(Part part, async_internal::Stored<R> value) {
    BatchRows rows{options().join, {}};
    for (size_t call = part.begin; call < part.end; ++call) rows.of.push_back(item(call).rows);
    std::vector<std::vector<at::Tensor>> shares;  // of each tensor; of each call
    absl::Status status;
    visit_each_tensor(value, [&](at::Tensor& tensor) {
      auto divided = divide_tensor(tensor, rows, options().name);
      if (divided.ok()) {
        shares.push_back(*std::move(divided));
      } else if (status.ok()) {
        status = std::move(divided).status();
      }
    });
    WEFT_RETURN_IF_ERROR(status);
    for (size_t i = 0; i < part.size(); ++i) {
      async_internal::Stored<R> share = value;
      auto tensor = shares.begin();
      visit_each_tensor(share, [&](at::Tensor& slot) { slot = (*tensor++)[i]; });
      results_[part.begin + i] = std::move(share);
    }
    return status;
  }

  const std::shared_ptr<F> function_;
  BatchQueue& queue_;  // end_ keeps it alive
  const BatchItems items_;
  std::vector<Result> results_;
  std::vector<Part> parts_;  // that have not run; the last one is next
  BatchQueue::End end_;
};

template <class R, class... P, class F>
std::unique_ptr<BatchQueues> make_batch_queues(F function, BatchOptions options) {
  constexpr bool kJoins = kTakesJoined<F, R, P...>;
  static_assert(
      kJoins || kTakesLists<F, P...>,
      "weft: the function of a Batcher<R(P...)> takes P..., if all of them and R are made "
      "of tensors, or std::vector<P>...");
  if (absl::Status status = options.validate(); !status.ok()) throw RpcError(std::move(status));
  if constexpr (!(std::is_copy_constructible_v<std::remove_cvref_t<P>> && ...)) {
    if (options.isolate_errors) {
      throw RpcError(absl::InvalidArgumentError(absl::StrCat(
          "batcher '", options.name,
          "': isolate_errors runs calls again, but their arguments cannot be copied")));
    }
  }
  return std::make_unique<BatchQueues>(
      std::move(options), kJoins,
      [function = std::make_shared<F>(std::move(function))](BatchQueue& queue, BatchItems items,
                                                            BatchQueue::End end) {
        std::make_shared<BatchExecution<F, R, P...>>(function, queue, std::move(items),
                                                     std::move(end))
            ->run();
      });
}

// The properties of a call's tensors that decide with which other calls it may run.
struct BatchKey {
  BatchShape shape;
  bool alone = false;
};

// InvalidArgument, which names the batcher: the call's tensors cannot be joined.
template <class Item>
absl::StatusOr<BatchKey> batch_key_of(const BatchQueues& queues, Item& item) {
  ShapeOfCall call{queues.options().join};
  visit_each_tensor(item.arguments, call);
  if (call.status.ok() && call.tensors == 0) {
    call.status =
        absl::InvalidArgumentError("a call without a tensor cannot be joined with others");
  }
  if (!call.status.ok()) {
    return prepend(absl::StrCat("batcher '", queues.options().name, "': "), call.status);
  }
  if (queues.options().join == BatchJoin::kConcatenate) item.rows = call.rows;
  // Outside a context, each caller runs its own backward pass, so callers must not share a graph.
  return BatchKey{std::move(call.numbers),
                  call.requires_grad && !CallScope::current().context.valid()};
}

template <class R, class... P>
Future<R> add_to_batch(BatchQueues& queues, std::type_identity_t<P>... argument) {
  absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = current_runtime();
  if (!runtime.ok()) return Future<R>::ready(with_ran(runtime.status(), Ran::kNo));
  auto item =
      std::make_unique<TypedItem<R, P...>>(&(*runtime)->executor(), std::forward<P>(argument)...);
  Future<R> future = item->promise.future();
  item->argument_bytes = value_bytes(item->arguments);
  BatchKey key;
  if constexpr (kAllJoinable<P...>) {
    if (queues.joins()) {
      absl::StatusOr<BatchKey> chosen = batch_key_of(queues, *item);
      if (!chosen.ok()) {
        item->fail(with_ran(chosen.status(), Ran::kNo));
        return future;
      }
      key = *std::move(chosen);
    }
  }
  queues.of(*runtime)->add(*runtime, std::move(key.shape), key.alone, std::move(item));
  return future;
}

}  // namespace weft::rpc_internal
