#include "weft/dist_autograd/graph/recv_node.h"

#include <limits>
#include <memory>

#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"

namespace weft::dist_autograd_internal {
namespace {

// The sequence number of AccumulateGrad, so that gradients leave the worker before local work goes
// on.
constexpr uint64_t kRunFirst = std::numeric_limits<uint64_t>::max();

bool attached_for(const at::Tensor& tensor, SendId send) {
  const auto* node = dynamic_cast<const RecvNode*>(tensor.grad_fn().get());
  return node != nullptr && node->send() == send;
}

}  // namespace

RecvNode::RecvNode(SendId send, uint32_t slot, uint32_t slots)
    : Node(kRunFirst), send_(send), slot_(slot), slots_(slots) {}

std::string RecvNode::name() const {
  return absl::StrCat("weft::RecvBackward(", send_.to_string(), ", tensor ", slot_, ")");
}

torch::autograd::variable_list RecvNode::apply(torch::autograd::variable_list&&) {
  TORCH_CHECK(false, "backward() reached a tensor that was received from worker ",
              send_.creator.to_string(),
              ", and plain backward() cannot cross workers: use the distributed context, "
              "context.backward(loss)");
}

absl::Status attach_recv(SendId send, std::vector<at::Tensor>& tensors,
                         const std::vector<bool>& requires_grad) {
  if (requires_grad.size() != tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat(send.to_string(), ": ", requires_grad.size(),
                                                   " gradient flags for ", tensors.size(),
                                                   " tensors"));
  }
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    at::Tensor& tensor = tensors[slot];
    if (!requires_grad[slot] || !tensor.defined() ||
        !torch::autograd::isDifferentiableType(tensor.scalar_type()) ||
        attached_for(tensor, send)) {
      continue;
    }
    if (tensor.requires_grad()) {
      return absl::InvalidArgumentError(absl::StrCat(send.to_string(), ": tensor ", slot,
                                                     " is already part of an autograd graph"));
    }
    // After an in-place operation, LibTorch would compute a view's grad_fn anew from its base.
    if (tensor.is_view() || tensor.is_inference()) tensor = tensor.variable_data();
    std::shared_ptr<RecvNode> node(new RecvNode(send, slot, tensors.size()),
                                   torch::autograd::deleteNode);
    const uint32_t input = node->add_input_metadata(tensor);
    torch::autograd::impl::set_gradient_edge(tensor, {node, input});
  }
  return absl::OkStatus();
}

}  // namespace weft::dist_autograd_internal
