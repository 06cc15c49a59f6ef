// Runs calls that arrive close together as one call on joined tensors, and gives each caller its
// part of the result.
//
//   class Agent {
//    public:
//     weft::Future<at::Tensor> act(const at::Tensor& state) { return act_(state); }
//    private:
//     Policy policy_;
//     weft::Batcher<at::Tensor(at::Tensor)> act_{  // the last member: it ends first
//         [this](at::Tensor states) { return policy_.forward(states); }, {.max_size = 64}};
//   };
//
// A method or function that returns the batcher's future is an async execution: its thread is free
// at once. RegistryBuilder::add takes a batcher too, and a batcher may stand in front of remote
// calls: its function then returns their future.
//
// Thread safety: all methods may be called from any thread. The function runs on the executor of
// the worker that was called, in LibTorch's default modes (a caller's NoGradGuard does not reach
// it), up to BatchOptions::max_running times at once for each worker of the process that is called.
// Lifetime: the destructor fails calls that wait (Cancelled) and lets running batches end; what the
// function uses must live as long. The function itself and arguments may be destroyed a little
// later, on the executor. Inside the function the destructor does not wait for that batch; in a
// continuation that the function's own future depends on it would wait for ever, and so would a
// function that waits for a call of its own batcher.
// Blocking: the destructor alone.
// Errors: through the future; docs/batching.md says who learns of what. What copying an argument
// throws is thrown by the call. A call outside a handler has no deadline of its own: wait_for has.
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

// R(P...): what one call takes and gives.
template <class R, class... P>
class Batcher<R(P...)> {
  static_assert(sizeof...(P) > 0, "weft: a batched function needs an argument to be joined");
  static_assert(!rpc_internal::kFuture<R> && !std::is_reference_v<R>,
                "weft: the result of a Batcher's signature is a value; the call gives a Future of "
                "it");

 public:
  // `function` takes either P..., joined along the first dimension, and returns an R that can be
  // divided along it (or StatusOr or Future of it); or std::vector<P>..., one element for each
  // call, and returns std::vector<R> or std::vector<absl::StatusOr<R>>, one for each (or StatusOr
  // or Future of it). For void it returns nothing, Status or Future<void>. It must not write its
  // arguments: a caller of this process may share their memory. Nor may callers write results,
  // which share the memory of the whole batch. Throws RpcError (InvalidArgument) for options that
  // contradict themselves.
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

  // Waits with others for a batch. The call's context, deadline and cancellation are those of the
  // handler that this is called in. Not of a batcher that was moved from, as those below.
  Future<R> operator()(P... argument) const {
    return rpc_internal::add_to_batch<R, P...>(*queues_, std::forward<P>(argument)...);
  }

  // Calls that wait now need not wait for others.
  void flush() const { queues_->flush(); }
  // For when there are fewer callers than before, or more: as BatchOptions::max_size, from the next
  // batch on. Throws RpcError (InvalidArgument): zero, or more than max_pending.
  void set_max_size(size_t calls) const { queues_->set_max_size(calls); }
  BatchStats stats() const { return queues_->stats(); }

 private:
  std::unique_ptr<rpc_internal::BatchQueues> queues_;
};

// A function that takes and gives joined tensors: of one call and of a batch alike.
template <class R, class... P>
Batcher(R (*)(P...)) -> Batcher<result_t<R>(P...)>;
template <class R, class... P>
Batcher(R (*)(P...), BatchOptions) -> Batcher<result_t<R>(P...)>;

}  // namespace weft
