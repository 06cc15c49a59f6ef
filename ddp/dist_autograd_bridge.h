// Connects DistributedDataParallel with distributed autograd: the averaged gradients of its
// parameters go into the context of the pass, and nowhere else.
//
//   auto gradients = std::make_shared<weft::DdpGradients>();
//   worker_options.leaf_observer = gradients;              // before Worker::join
//   weft::DistributedDataParallel ddp(net, group, {.distributed_gradients = gradients});
//
// Every worker with a copy needs both settings. One without the other is an error.
//
// Each trainer runs its own pass, in its own context. When a parameter's gradient in that pass is
// final, it goes into its bucket. The pass is complete when the averages are back. Trainers run
// forward and backward equally often. Loss and module may be on other workers, but the module's
// parameters must be here.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared with the worker. One DistributedDataParallel has one pass at a time.
// Errors: they fail the pass on all its workers (RpcError). FailedPrecondition: a second pass at
// the same time, or an error of the reducer. Unavailable: the group lost a rank.
// If a pass fails after it has begun to reduce, the group is aborted. Then the passes of the other
// ranks fail too, at once, and the ranks must make a new group (update_process_group). If it fails
// earlier, the other ranks' passes wait for it until their deadline. They also do so if a
// parameter's gradient never arrives in a pass. Then a line in the log names the parameter.
// Protocol: docs/ddp.md, "Under distributed autograd".
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

  Mutex mutex_;  // lock order: distributed autograd's lock, this one, Entry::mutex_
  std::map<const void*, Place> places_ ABSL_GUARDED_BY(mutex_);  // by the variable's TensorImpl
  SystemClock clock_;
  ThreadExecutor finishers_;  // its threads wait for reductions; destroyed first
};

}  // namespace weft
