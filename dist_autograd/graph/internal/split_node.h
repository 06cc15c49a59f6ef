// Runs a node of LibTorch for some of its edges only.
//
// A node computes the gradient of output i if and only if its next edge i is valid and no GraphTask
// of LibTorch's engine says otherwise (task_should_compute_output in
// torch/csrc/autograd/function.h). So a node whose edges are emptied for a while computes less. So
// a convolution or a matrix product can compute the gradients of its inputs and of its weights in
// two runs. Together they take as long as one run and give the same bits (docs/pipeline.md). A pass
// that uses an engine scope (engine_scope.h) is no exception: the GraphTask there lists no outputs.
//
// Thread safety: none. One thread at a time may run a node or change its edges.
#pragma once

#include <vector>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "absl/functional/function_ref.h"

namespace weft::dist_autograd_internal {

// Whether running the node in two parts costs nothing: its gradients are computed independently,
// and no hook wants to see all of them at once.
bool can_split(const torch::autograd::Node& node);

// Empties the edges for which `keep` is false, and restores them when it is destroyed.
class EmptiedEdges {
 public:
  EmptiedEdges(torch::autograd::Node& node, absl::FunctionRef<bool(size_t edge)> keep);
  ~EmptiedEdges();
  EmptiedEdges(const EmptiedEdges&) = delete;
  EmptiedEdges& operator=(const EmptiedEdges&) = delete;

 private:
  struct Emptied {
    size_t index;
    torch::autograd::Edge edge;
  };
  torch::autograd::Node& node_;
  std::vector<Emptied> emptied_;
};

}  // namespace weft::dist_autograd_internal
