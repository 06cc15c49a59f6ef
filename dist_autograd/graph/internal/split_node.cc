#include "weft/dist_autograd/graph/internal/split_node.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace weft::dist_autograd_internal {
namespace {

// Without the number that LibTorch appends. Other nodes compute all gradients in one kernel, or are
// so cheap that it does not matter.
constexpr std::array<std::string_view, 9> kSplittable = {
    "AddbmmBackward",      "AddmmBackward",  "AddmvBackward", "BaddbmmBackward", "BmmBackward",
    "ConvolutionBackward", "LinearBackward", "MmBackward",    "MvBackward"};

}  // namespace

bool can_split(const torch::autograd::Node& node) {
  if (!node.post_hooks().empty()) return false;
  // A user's function may have any name.
  if (dynamic_cast<const torch::autograd::TraceableFunction*>(&node) == nullptr) return false;
  const std::string numbered = node.name();
  std::string_view name = numbered;
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return std::find(kSplittable.begin(), kSplittable.end(), name) != kSplittable.end();
}

EmptiedEdges::EmptiedEdges(torch::autograd::Node& node, absl::FunctionRef<bool(size_t edge)> keep)
    : node_(node) {
  torch::autograd::edge_list& edges = node.next_edges();
  emptied_.reserve(edges.size());  // so that nothing throws while edges are empty
  for (size_t index = 0; index < edges.size(); ++index) {
    if (!edges[index].is_valid() || keep(index)) continue;
    emptied_.push_back({index, std::exchange(edges[index], torch::autograd::Edge())});
  }
}

EmptiedEdges::~EmptiedEdges() {
  for (Emptied& each : emptied_) node_.next_edges()[each.index] = std::move(each.edge);
}

}  // namespace weft::dist_autograd_internal
