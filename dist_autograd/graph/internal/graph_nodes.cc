#include "weft/dist_autograd/graph/internal/graph_nodes.h"

#include <algorithm>
#include <typeinfo>
#include <utility>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "weft/dist_autograd/graph/recv_node.h"

namespace weft::dist_autograd_internal {
namespace {

constexpr size_t kSmallGraph = 14;  // number of nodes that a flat_hash_map of 16 slots holds

}  // namespace

GraphNodes::GraphNodes(RecvAnswers& answers) : answers_(answers) {
  nodes_.reserve(kSmallGraph);
  index_.reserve(kSmallGraph);
  targets_.reserve(kSmallGraph);
}

uint32_t GraphNodes::add(const torch::autograd::Edge& edge) {
  if (!edge.is_valid()) return kNoTarget;
  const auto [it, is_new] = index_.try_emplace(edge.function.get(), nodes_.size());
  if (is_new) classify(nodes_.emplace_back(NodeState{.node = edge.function.get()}));
  ++nodes_[it->second].dependencies;
  return it->second;
}

void GraphNodes::classify(NodeState& state) {
  if (!state.node->device().is_cpu() && foreign_ == nullptr) foreign_ = state.node;
  if (state.node->num_outputs() != 0) return;
  if (typeid(*state.node) == typeid(torch::autograd::AccumulateGrad)) {
    state.kind = NodeKind::kLeaf;
    hooked_leaf_ =
        hooked_leaf_ || !state.node->pre_hooks().empty() || !state.node->post_hooks().empty();
  } else if (typeid(*state.node) == typeid(RecvNode)) {
    state.kind = NodeKind::kRecv;
    state.answer = answers_.expect(static_cast<const RecvNode&>(*state.node));
  }
}

// Breadth first: `nodes_` is its own queue, so the depth of the graph costs no stack.
void GraphNodes::walk() {
  for (uint32_t index = 0; index < nodes_.size(); ++index) {
    nodes_[index].first_target = targets_.size();
    for (const torch::autograd::Edge& edge : nodes_[index].node->next_edges()) {
      targets_.push_back(add(edge));
    }
  }
  index_ = {};
}

// Sequence numbers count the nodes of one thread.
torch::autograd::Node* GraphNodes::oldest() const {
  torch::autograd::Node* oldest = nullptr;
  for (const NodeState& state : nodes_) {
    if (state.kind == NodeKind::kLeaf) continue;
    if (state.node->thread_id() != at::RecordFunction::currentThreadId()) continue;
    if (oldest == nullptr || state.node->sequence_nr() < oldest->sequence_nr()) oldest = state.node;
  }
  return oldest;
}

void GraphNodes::mark_for_inputs() {
  std::vector<std::vector<uint32_t>> from(nodes_.size());
  std::vector<uint32_t> open;
  for (uint32_t index = 0; index < nodes_.size(); ++index) {
    NodeState& state = nodes_[index];
    state.for_inputs = state.kind == NodeKind::kRecv;
    if (state.for_inputs) open.push_back(index);
    for (uint32_t edge = 0; edge < state.node->num_outputs(); ++edge) {
      if (target(state, edge) != kNoTarget) from[target(state, edge)].push_back(index);
    }
  }
  while (!open.empty()) {
    const uint32_t index = open.back();
    open.pop_back();
    for (const uint32_t each : from[index]) {
      if (!std::exchange(nodes_[each].for_inputs, true)) open.push_back(each);
    }
  }
}

void GraphNodes::resolve(uint32_t index) {
  NodeState& state = nodes_[index];
  if (--state.dependencies > 0) return;
  ready_.push_back({state.node->sequence_nr(), index});
  std::push_heap(ready_.begin(), ready_.end());
}

uint32_t GraphNodes::take_ready() {
  std::pop_heap(ready_.begin(), ready_.end());
  const uint32_t index = ready_.back().index;
  ready_.pop_back();
  return index;
}

void GraphNodes::clear_inputs() {
  ready_.clear();
  for (NodeState& state : nodes_) state.inputs.clear();
}

std::vector<SendId> GraphNodes::reach(const std::vector<uint32_t>& targets) {
  std::vector<SendId> found;
  std::vector<uint32_t> open;
  const auto enter = [&](uint32_t index) {
    if (index == kNoTarget || std::exchange(nodes_[index].reached, true)) return;
    open.push_back(index);
  };
  for (const uint32_t each : targets) enter(each);
  while (!open.empty()) {
    const NodeState& state = nodes_[open.back()];
    open.pop_back();
    if (state.kind == NodeKind::kRecv && answers_.reach(state.answer)) {
      found.push_back(static_cast<const RecvNode&>(*state.node).send());
    }
    for (uint32_t edge = 0; edge < state.node->num_outputs(); ++edge) enter(target(state, edge));
  }
  return found;
}

}  // namespace weft::dist_autograd_internal
