// Runs calls that arrive close together as one call on joined tensors, and gives each caller its
// part of the result.
//
//   class Agent {
//    public:
//     weft::Future<at::Tensor> act(const at::Tensor& state) { return act_(state); }
//    private:
//     Policy policy_;
//     weft::Batcher<at::Tensor(at::Tensor)> act_{  // the last member, so it is destroyed first
//         [this](at::Tensor states) { return policy_.forward(states); }, {.max_size = 64}};
//   };
//
// A method or function that returns the batcher's future is an async execution: its thread is free
// at once. RegistryBuilder::add also accepts a batcher. A batcher may also stand in front of remote
// calls; then its function returns their future.
//
// Thread safety: all methods may be called from any thread. The function runs on the executor of
// the worker that was called, in LibTorch's default modes: a caller's NoGradGuard does not reach
// it. For each worker of the process that is called, it runs up to BatchOptions::max_running times
// at once.
// Lifetime: the destructor fails the calls that wait (Cancelled) and waits for running batches.
// Objects that the function uses must exist until then. The function itself and arguments may be
// destroyed a little later, on the executor. If the destructor runs inside the function, it does
// not wait for that batch. It would wait for ever in a continuation on which the function's own
// future depends. A function that waits for a call of its own batcher would also wait for ever.
// Blocking: only the destructor waits.
// Errors: through the future; docs/batching.md has the table. An exception from copying an argument
// leaves the call itself. A call outside a handler has no deadline: use Future::wait_for.
// Protocol: docs/batching.md.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "weft/async/future.h"
#include "weft/rpc/batching/batch_options.h"
#include "weft/rpc/batching/internal/batch_execution.h"
#include "weft/rpc/batching/internal/batch_queue.h"
#include "weft/rpc/signature.h"

namespace weft {

template <class Signature>
class Batcher;

// R(P...) is the type of one call.
template <class R, class... P>
class Batcher<R(P...)> {
  static_assert(sizeof...(P) > 0, "weft: a batched function needs an argument to be joined");
  static_assert(!rpc_internal::kFuture<R> && !std::is_reference_v<R>,
                "weft: the result of a Batcher's signature is a value; the call gives a Future of "
                "it");

 public:
  // `function` has one of two forms:
  //
  // - It takes P..., joined along the first dimension, and returns an R that can be divided along
  //   it.
  //
  // - It takes std::vector<P>..., with one element for each call. It returns a std::vector<R> or a
  //   std::vector<absl::StatusOr<R>> of the same size.
  //
  // In both forms it may also return a StatusOr or a Future of that result. If R is void, it
  // returns nothing, Status or Future<void>. It must not write to its arguments, because a caller
  // in this process may share their memory. Callers must not write to results, which share the
  // memory of the whole batch. Throws RpcError (InvalidArgument) if the options contradict each
  // other.
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Batcher>) explicit Batcher(
      F function, BatchOptions options = {})
      : queues_(rpc_internal::make_batch_queues<R, P...>(std::move(function), std::move(options))) {
  }
  Batcher(Batcher&&) noexcept = default;
  Batcher& operator=(Batcher&& other) noexcept {
    std::swap(queues_, other.queues_);
    return *this;
  }
  ~Batcher() {
    if (queues_ != nullptr) queues_->close();
  }

  // Adds a call, which waits with others for a batch. Its context, deadline and cancellation are
  // those of the handler that makes it. A batcher that was moved from has none of the methods from
  // here on.
  Future<R> operator()(P... argument) const {
    return rpc_internal::add_to_batch<R, P...>(*queues_, std::forward<P>(argument)...);
  }

  // Runs the calls that wait now, without waiting for others.
  void flush() const { queues_->flush(); }
  // Changes BatchOptions::max_size from the next batch on, if the number of callers has changed.
  // Throws RpcError (InvalidArgument): zero, or more than max_pending.
  void set_max_size(size_t calls) const { queues_->set_max_size(calls); }
  BatchStats stats() const { return queues_->stats(); }

 private:
  std::unique_ptr<rpc_internal::BatchQueues> queues_;
};

// Deduces R(P...) from a function on joined tensors: a batch has the same types as one call.
template <class R, class... P>
Batcher(R (*)(P...)) -> Batcher<result_t<R>(P...)>;
template <class R, class... P>
Batcher(R (*)(P...), BatchOptions) -> Batcher<result_t<R>(P...)>;

}  // namespace weft
