// Sees every leaf's gradient of a backward pass on this worker once it is final, and may replace
// it, at once or later.
//
// The seam on which data parallel training hangs its buckets: distributed autograd knows nothing of
// who implements it (WorkerOptions::leaf_observer). An observer that reduces gradients over the
// group takes a PassHold, starts the reduction, and when it is done replaces the gradients and
// releases the hold; if it fails, it fails the hold.
//
// Thread safety: leaves are shown on the strand of one pass; passes of several contexts may
// call at once. A PassHold may be used from any thread, by one at a time.
// Lifetime: an observer must outlive every pass it was given to. A PassHold may outlive its pass
// and its worker; it then does nothing.
// Errors: whatever an observer returns, or a hold fails with, fails the pass on every worker.
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

// Keeps a backward pass from ending while a gradient of it is still being worked on. One that is
// destroyed without having been released fails the pass: a gradient may be missing.
class PassHold {
 public:
  PassHold();  // holds nothing
  explicit PassHold(std::unique_ptr<dist_autograd_internal::HeldPass> held);
  PassHold(PassHold&& other) noexcept;
  PassHold& operator=(PassHold&& other) noexcept;
  ~PassHold();

  // Gives a leaf that was final in this pass another gradient, of the leaf's shape and type. Takes
  // effect before the pass can end; what shares its memory is copied.
  void replace(const at::Tensor& variable, at::Tensor gradient);
  // The same for any leaf, also one that the pass did not reach on this worker.
  void give(const at::Tensor& variable, at::Tensor gradient);
  // Each of these ends the hold.
  void release();
  void fail(absl::Status why);

 private:
  std::unique_ptr<dist_autograd_internal::HeldPass> held_;  // null: ended
};

// The pass that a leaf_final belongs to.
class ObservedPass {
 public:
  virtual ContextId context() const = 0;
  // It will not be committed. Who sees false is told by pass_failed when that changes.
  virtual bool failed() const = 0;
  // Only inside leaf_final and leaf_without_gradient.
  virtual PassHold hold() = 0;

 protected:
  ~ObservedPass() = default;
};

class LeafObserver {
 public:
  virtual ~LeafObserver() = default;

  // `gradient` is the whole gradient of `variable` in this pass on this worker, after all hooks. It
  // may be assigned or changed in place; nobody else holds it. Not called for a leaf that the pass
  // does not reach.
  virtual absl::Status leaf_final(ObservedPass& pass, const at::Tensor& variable,
                                  at::Tensor& gradient) = 0;
  // The pass leads to `variable` on this worker, but brings it no gradient. In place of leaf_final,
  // and like it.
  virtual absl::Status leaf_without_gradient(ObservedPass& /*pass*/,
                                             const at::Tensor& /*variable*/) {
    return absl::OkStatus();
  }
  // A pass in which one of these was called will not be committed: what it waits for is wanted no
  // more. From any thread; must neither block nor call into distributed autograd.
  virtual void pass_failed(const ContextId& /*context*/) {}
};

}  // namespace weft
