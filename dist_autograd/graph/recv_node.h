// A RecvNode is the grad_fn of a tensor that came from another worker. There, the tensor's gradient
// leaves this worker.
//
// Every received tensor that requires a gradient has a node of its own. The nodes of one message
// share its SendId, so one answer per message goes back. LocalGraph takes the gradient at the node
// without running it. If LibTorch's own engine runs a node, the node throws, because plain
// backward() cannot cross workers.
//
// Thread safety: immutable after construction.
// Lifetime: only the tensor and the graph that uses it own a node. When they are gone, it is freed.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>

#include "absl/status/status.h"
#include "weft/base/ids.h"

namespace weft::dist_autograd_internal {

class RecvNode final : public torch::autograd::Node {
 public:
  // `slot` is the tensor's index among the `slots` tensors of the message.
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

// Makes freshly decoded tensors part of the autograd graph. Each tensor i with requires_grad[i]
// gets its own RecvNode. Skipped are tensors of types without gradients (integers), undefined
// tensors, and a tensor that is in the message a second time. A view or an inference tensor is
// replaced by an alias that is neither. InvalidArgument: the mask has another length, or a tensor
// is already part of a graph.
absl::Status attach_recv(SendId send, std::vector<at::Tensor>& tensors,
                         const std::vector<bool>& requires_grad);

}  // namespace weft::dist_autograd_internal
