#include "weft/dist_autograd/graph/send_record.h"

#include <algorithm>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::dist_autograd_internal {

size_t SendRecord::slots() const {
  return std::count_if(edges.begin(), edges.end(),
                       [](const torch::autograd::Edge& edge) { return edge.is_valid(); });
}

SendRecord record_send(SendId id, WorkerId peer, c10::ArrayRef<at::Tensor> tensors) {
  SendRecord record{.id = id, .peer = peer, .edges = {}};
  record.edges.resize(tensors.size());
  if (!c10::GradMode::is_enabled()) return record;
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    if (tensors[slot].defined() && tensors[slot].requires_grad()) {
      record.edges[slot] = torch::autograd::impl::gradient_edge(tensors[slot]);
    }
  }
  return record;
}

}  // namespace weft::dist_autograd_internal
