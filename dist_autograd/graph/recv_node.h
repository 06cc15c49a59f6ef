// Puts a received tensor's gradient on its way back: the grad_fn of a tensor that came from another
// worker.
//
// Every received tensor that requires a gradient has a node of its own; nodes of one message share
// its SendId, so one answer per message goes back. LocalGraph takes the gradient at the node
// without running it. Run by LibTorch's own engine, a node throws: plain backward() cannot cross
// workers.
//
// Thread safety: immutable once made.
// Lifetime: owned by the tensor and the graph above it alone. Dropped tensors free their nodes.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace weft::dist_autograd_internal {

class RecvNode final : public torch::autograd::Node {
 public:
  // `slot` is the tensor's position among the `slots` tensors of the message.
  RecvNode(SendId send, uint32_t slot, uint32_t slots);

  SendId send() const { return send_; }
  uint32_t slot() const { return slot_; }
  uint32_t slots() const { return slots_; }
  std::string name() const override;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& inputs) override;

 private:
  const SendId send_;
  const uint32_t slot_;
  const uint32_t slots_;
};

// Makes freshly decoded tensors part of the autograd graph: each tensor i with requires_grad[i]
// gets its own RecvNode. Integer tensors, undefined tensors and a tensor that stands in the message
// a second time are skipped; a tensor that is a view is replaced by an alias that is none.
// InvalidArgument if the mask has another length or a tensor is already part of a graph.
absl::Status attach_recv(SendId send, std::vector<at::Tensor>& tensors,
                         const std::vector<bool>& requires_grad);

}  // namespace weft::dist_autograd_internal
