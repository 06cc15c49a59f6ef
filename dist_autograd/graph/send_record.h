// Remembers where the gradients of one transfer of tensors enter the sender's autograd graph.
//
// A tensor's position in the message is its slot. The edges are taken when the message is sent, so
// later in-place operations on the tensors do not move them; they keep the sender's graph alive.
//
// Thread safety: a plain value. record_send may run on many threads for the same tensors.
// Lifetime: holds no pointer to a context, so context -> record -> graph is no cycle.
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
  WorkerId peer;  // where the tensors went and their gradients come from
  // One per tensor of the message; not valid for a tensor that needs no gradient.
  std::vector<torch::autograd::Edge> edges;
  // A committed pass without retain_graph has used this record: feeding it again is an error.
  bool spent = false;

  // Number of tensors that may get a gradient. None: nothing needs to be recorded for the message.
  size_t slots() const;
  // Lets go of the graph and keeps the id, so that a second backward is refused by name.
  void spend();
};

// No slots when gradient recording is off on this thread or no tensor requires a gradient.
SendRecord record_send(SendId id, WorkerId peer, c10::ArrayRef<at::Tensor> tensors);

}  // namespace weft::dist_autograd_internal
