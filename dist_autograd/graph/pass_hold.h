// HeldPass is the interface through which a PassHold acts on its pass; see leaf_observer.h.
//
// Thread safety: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

namespace weft::dist_autograd_internal {

class HeldPass {
 public:
  virtual ~HeldPass() = default;
  virtual void replace(const at::Tensor& variable, at::Tensor gradient) = 0;
  virtual void give(const at::Tensor& variable, at::Tensor gradient) = 0;
  // Ends the hold. Called once, after all other calls.
  virtual void end(absl::Status outcome) = 0;
};

}  // namespace weft::dist_autograd_internal
