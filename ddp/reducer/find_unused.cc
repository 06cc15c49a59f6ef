#include "weft/ddp/reducer/find_unused.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <torch/csrc/autograd/variable.h>

namespace weft::ddp_internal {

std::vector<size_t> find_unused(const std::vector<at::Tensor>& outputs,
                                const std::vector<std::shared_ptr<torch::autograd::Node>>& leaves) {
  std::unordered_map<const torch::autograd::Node*, size_t> left;
  for (size_t i = 0; i < leaves.size(); ++i) left[leaves[i].get()] = i;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!open.empty() && !left.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    left.erase(node);
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<size_t> unused;
  for (const auto& [node, index] : left) unused.push_back(index);
  std::sort(unused.begin(), unused.end());
  return unused;
}

}  // namespace weft::ddp_internal
