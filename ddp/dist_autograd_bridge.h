// DistributedDataParallel under distributed autograd: the averaged gradients of its parameters
// appear in the context of the pass, and nowhere else.
//
//   auto gradients = std::make_shared<weft::DdpGradients>();
//   worker_options.leaf_observer = gradients;              // before Worker::join
//   weft::DistributedDataParallel ddp(net, group, {.distributed_gradients = gradients});
//
// Both places are needed, on every worker that has a copy: one without the other is an error.
//
// Each trainer runs a pass of its own, in a context of its own; as soon as a parameter's gradient
// in that pass is final it goes into its bucket, and the pass ends when the averages are back.
// Trainers forward and backward as often as each other. Loss and module may lie on other workers;
// the module's parameters lie here.
//
// Thread safety: all methods from any thread. Lifetime: shared with the worker. One pass at a time
// over one DistributedDataParallel.
// Errors: fail the pass on every worker of it (RpcError): FailedPrecondition for a second pass at
// the same time, and for what the reducer refuses; Unavailable when the group lost a rank. If a
// pass fails after it has begun to reduce, the group is aborted: the passes of the other ranks fail
// too, at once, and the ranks must make a new group (update_process_group). If it fails before, the
// other ranks' passes wait for it until their deadline; so does a pass that a parameter's gradient
// never comes in, and then a line in the log names the parameter.
#pragma once

#include <map>
#include <memory>

#include <ATen/core/Tensor.h>

#include "weft/async/executor.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/ddp/distributed_gradients.h"
#include "weft/dist_autograd/graph/leaf_observer.h"

namespace weft {

class DdpGradients final : public LeafObserver, public DistributedGradients {
 public:
  DdpGradients();
  ~DdpGradients() override;

  void attach(const std::shared_ptr<ddp_internal::Reducer>& reducer) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void detach(const std::shared_ptr<ddp_internal::Reducer>& reducer) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void settle(const std::shared_ptr<ddp_internal::Reducer>& reducer) override
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status leaf_final(ObservedPass& pass, const at::Tensor& variable,
                          at::Tensor& gradient) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status leaf_without_gradient(ObservedPass& pass, const at::Tensor& variable) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void pass_failed(const ContextId& context) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Entry;
  struct Place {
    std::shared_ptr<Entry> entry;
    size_t parameter = 0;
  };

  std::shared_ptr<Entry> entry_of(const ddp_internal::Reducer& reducer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status show(ObservedPass& pass, const at::Tensor& variable, const at::Tensor& gradient)
      ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;  // distributed autograd calls in with its own lock held: nothing is called under it
  std::map<const void*, Place> places_ ABSL_GUARDED_BY(mutex_);  // by the variable's TensorImpl
  SystemClock clock_;
  ThreadExecutor finishers_;  // wait for reductions; ends first
};

}  // namespace weft
