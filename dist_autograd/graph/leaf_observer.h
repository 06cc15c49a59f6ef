// A LeafObserver sees each leaf's final gradient of a backward pass on this worker, and may replace
// it at once or later.
//
// Through this interface, data parallel training reduces its buckets. Distributed autograd does not
// know the implementation (WorkerOptions::leaf_observer). An observer that reduces gradients over
// the group takes a PassHold and starts the reduction. When the reduction is done, it replaces the
// gradients and releases the hold. If the reduction fails, it fails the hold.
//
// Thread safety: the strand of a pass calls the observer for one leaf after another. Passes of
// several contexts may call it at the same time. Any thread may use a PassHold, but only one at a
// time.
// Lifetime: an observer must outlive every pass to which it was given. A PassHold may outlive its
// pass and its worker; it then does nothing.
// Errors: an error that an observer returns, or with which a hold fails, fails the pass on every
// worker.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace at {
class Tensor;
}

namespace weft {
namespace dist_autograd_internal {
class HeldPass;
}

// Prevents the commit of a backward pass while the observer still works on a gradient of it. If a
// hold is destroyed before it was released, it fails the pass, because a gradient may be missing.
class PassHold {
 public:
  PassHold();  // holds nothing
  explicit PassHold(std::unique_ptr<dist_autograd_internal::HeldPass> held);
  PassHold(PassHold&& other) noexcept;
  PassHold& operator=(PassHold&& other) noexcept;
  ~PassHold();

  // Replaces the gradient of a leaf that was final in this pass. `gradient` must have the leaf's
  // shape and type. It takes effect before the pass can be committed. If another tensor shares the
  // memory of `gradient`, it is copied.
  void replace(const at::Tensor& variable, at::Tensor gradient);
  // The same for any leaf, even if the pass did not reach it on this worker.
  void give(const at::Tensor& variable, at::Tensor gradient);
  // Each of these two ends the hold.
  void release();
  void fail(absl::Status why);

 private:
  std::unique_ptr<dist_autograd_internal::HeldPass> held_;  // null: this holds nothing
};

// The pass for which an observer is called.
class ObservedPass {
 public:
  virtual ContextId context() const = 0;
  // True if this worker has stopped its part of the pass, so that nothing more of it is needed. If
  // it is false and becomes true later, pass_failed is called then.
  virtual bool failed() const = 0;
  // Takes a hold. Call it only inside leaf_final and leaf_without_gradient.
  virtual PassHold hold() = 0;

 protected:
  ~ObservedPass() = default;
};

class LeafObserver {
 public:
  virtual ~LeafObserver() = default;

  // `gradient` is the whole gradient of `variable` in this pass on this worker, after all hooks.
  // The observer may assign it or change it in place; nobody else holds it. Not called for a leaf
  // that the pass does not reach.
  virtual absl::Status leaf_final(ObservedPass& pass, const at::Tensor& variable,
                                  at::Tensor& gradient) = 0;
  // The pass leads to `variable` on this worker, but brings it no gradient. Called in place of
  // leaf_final, under the same rules.
  virtual absl::Status leaf_without_gradient(ObservedPass& /*pass*/,
                                             const at::Tensor& /*variable*/) {
    return absl::OkStatus();
  }
  // A pass in which one of these was called has stopped on this worker, so the observer need not
  // finish its work for it. Called from any thread. It must neither block nor call into distributed
  // autograd.
  virtual void pass_failed(const ContextId& /*context*/) {}
};

}  // namespace weft
