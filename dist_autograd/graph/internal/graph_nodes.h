// Holds the nodes of LibTorch that can be reached from the sources of a pass, and how far each is.
//
// A node is a number here, and so is the target of each edge, so running the graph needs no
// look-up.
//
// Thread safety: none.
// Lifetime: the edges of the sources keep the nodes alive.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "absl/container/flat_hash_map.h"
#include "weft/base/ids.h"
#include "weft/dist_autograd/graph/recv_answers.h"

namespace weft::dist_autograd_internal {

enum class NodeKind : uint8_t { kOperation, kLeaf, kRecv };

struct NodeState {
  torch::autograd::Node* node;
  uint32_t dependencies = 0;  // edges into it, of nodes and sources, not yet resolved
  uint32_t first_target = 0;  // index of its first edge among all targets
  uint32_t answer = 0;        // kRecv: number in RecvAnswers
  NodeKind kind = NodeKind::kOperation;
  bool present = false;   // an input came; a node that ran may have given an undefined gradient
  bool reached = false;   // by reach()
  bool promised = false;  // in a split backward: run_weights() may bring an input
  bool for_inputs =
      true;  // a received tensor can be reached from it; known after mark_for_inputs()
  torch::autograd::variable_list inputs{};  // sized when the first gradient enters
};

class GraphNodes {
 public:
  static constexpr uint32_t kNoTarget = std::numeric_limits<uint32_t>::max();

  explicit GraphNodes(RecvAnswers& answers);

  // An edge of a source. Returns the node to which it leads, or kNoTarget if it is not valid.
  uint32_t add(const torch::autograd::Edge& edge);
  // After all sources: finds the other nodes.
  void walk();
  // Sets NodeState::for_inputs of all nodes.
  void mark_for_inputs();

  size_t size() const { return nodes_.size(); }
  NodeState& operator[](uint32_t index) { return nodes_[index]; }
  // The node to which an edge of this node leads, or kNoTarget.
  uint32_t target(const NodeState& state, size_t edge) const {
    return targets_[state.first_target + edge];
  }
  // Whether this edge leads to weights only, so that a split backward leaves its gradient for
  // later.
  bool to_weights(const NodeState& state, size_t edge) const {
    const uint32_t index = target(state, edge);
    return index != kNoTarget && !nodes_[index].for_inputs;
  }
  // One edge into this node will bring nothing more. The node is ready when that is true of all.
  void resolve(uint32_t index);
  bool has_ready() const { return !ready_.empty(); }
  // Takes the next ready node: later operations first, as in LibTorch, and ties as they were found
  // from the sources.
  uint32_t take_ready();
  // The pass has failed: frees all inputs. No node is ready any more.
  void clear_inputs();

  // Returns the sends of the received messages to which these nodes lead, without those that were
  // returned before.
  std::vector<SendId> reach(const std::vector<uint32_t>& targets);

  // The node that this thread has recorded first, without leaves; null if it has recorded none.
  torch::autograd::Node* oldest() const;
  // A node on another device than the CPU, or null.
  torch::autograd::Node* foreign() const { return foreign_; }
  // Whether a leaf has hooks, which may use LibTorch's engine.
  bool has_hooked_leaf() const { return hooked_leaf_; }

 private:
  struct Ready {
    uint64_t sequence;
    uint32_t index;
    bool operator<(const Ready& other) const {
      return sequence != other.sequence ? sequence < other.sequence : index > other.index;
    }
  };

  void classify(NodeState& state);

  RecvAnswers& answers_;
  std::vector<NodeState> nodes_;
  std::vector<uint32_t> targets_;                                // of the edges of all nodes
  absl::flat_hash_map<torch::autograd::Node*, uint32_t> index_;  // dropped after walk()
  std::vector<Ready> ready_;                                     // heap
  torch::autograd::Node* foreign_ = nullptr;
  bool hooked_leaf_ = false;
};

}  // namespace weft::dist_autograd_internal
