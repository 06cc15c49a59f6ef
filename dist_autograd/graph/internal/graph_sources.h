// Holds the sources of a pass, through which gradients enter: its roots, and the sent messages.
//
// Thread safety: none.
// Lifetime: the edges keep the graph of the sources alive.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/ids.h"

namespace weft::dist_autograd_internal {

struct GraphSource {
  enum class State : uint8_t { kOpen, kFed, kCancelled };
  SendId send;  // invalid: the roots
  WorkerId peer;
  torch::autograd::edge_list edges;
  std::vector<uint32_t> targets = {};  // of each edge, GraphNodes::kNoTarget where there is none
  State state = State::kOpen;

  // "send 3 from worker 1", or "the roots".
  std::string origin() const;
  // InvalidArgument: a gradient does not fit its edge. Expands or sums gradients to the shape of
  // the edge's tensor, and converts them to its type, as LibTorch's engine does.
  absl::Status check(torch::autograd::variable_list& gradients) const;
};

class GraphSources {
 public:
  void reserve(size_t count) { sources_.reserve(count); }
  // Internal: a source with this send is there already.
  absl::Status add(GraphSource source);
  // NotFound: no such source. FailedPrecondition: it was fed or cancelled.
  absl::StatusOr<GraphSource*> open(SendId send);
  // Null: no such source.
  const GraphSource* find(SendId send) const;
  // The sends that are open, in the order in which they were added.
  std::vector<SendId> unanswered() const;

 private:
  std::vector<GraphSource> sources_;
  absl::flat_hash_map<SendId, size_t> index_;
};

}  // namespace weft::dist_autograd_internal
