// Remembers where the gradients of one transfer of tensors enter the sender's autograd graph.
//
// A tensor's index in the message is its slot. The edges are taken when the message is sent, so
// later in-place operations on the tensors do not change them. The edges keep the sender's graph
// alive.
//
// Thread safety: a plain value. record_send may run on many threads for the same tensors.
// Lifetime: it holds no pointer to a context, so context -> record -> graph is no cycle.
// Protocol: docs/backward_protocol.md.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/edge.h>

#include "weft/base/ids.h"

namespace weft::dist_autograd_internal {

struct SendRecord {
  SendId id;
  WorkerId peer;  // the tensors went to this worker, and their gradients come from it
  // One per tensor of the message; not valid for a tensor that needs no gradient.
  std::vector<torch::autograd::Edge> edges;

  // Number of tensors that may get a gradient. If it is 0, the message needs no record.
  size_t slots() const;
};

// The record has no slots if gradient recording is off on this thread, or if no tensor requires a
// gradient.
SendRecord record_send(SendId id, WorkerId peer, c10::ArrayRef<at::Tensor> tensors);

}  // namespace weft::dist_autograd_internal
