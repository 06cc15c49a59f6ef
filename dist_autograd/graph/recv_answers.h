// Gathers a pass's gradients by received message until all tensors of a message are resolved.
//
// Thread safety: none.
// Protocol: docs/backward_protocol.md, I3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/container/flat_hash_map.h"
#include "weft/base/ids.h"

namespace weft::dist_autograd_internal {

class RecvNode;

// The answer to one received message. Even an answer without any gradient must be sent: it tells
// the sender of the message that none will come.
struct RecvAnswer {
  SendId send;                        // the answer goes to the worker send.creator
  std::vector<at::Tensor> gradients;  // one per tensor of the message; undefined: no gradient

  bool empty() const;
  size_t bytes() const;
};

class RecvAnswers {
 public:
  // A received tensor is in the graph, so the answer to its message waits for it. Returns the
  // number of the answer.
  uint32_t expect(const RecvNode& node);
  // Notes that a source leads to the message. Returns false if it was noted before.
  bool reach(uint32_t answer);
  // From now on, a message is not answered if it has no gradient and no source has reached it.
  void source_cancelled() { any_cancelled_ = true; }
  // Resolves an expected tensor: `gradient`, which may be undefined, is the last one for it. If
  // this was the message's last tensor and the message is to be answered, returns the answer.
  std::optional<RecvAnswer> resolve(uint32_t answer, uint32_t slot, at::Tensor gradient);
  // The number of answers that have a gradient and wait for other tensors.
  size_t held() const { return held_; }
  // Frees all gradients. Nothing may be resolved afterwards.
  void clear();

 private:
  struct Pending {
    RecvAnswer answer;
    uint32_t unresolved = 0;  // tensors in the graph that resolve() has not resolved
    bool holds_gradient = false;
    bool reached = false;
  };

  std::vector<Pending> pending_;
  absl::flat_hash_map<SendId, uint32_t> index_;
  size_t held_ = 0;
  bool any_cancelled_ = false;
};

}  // namespace weft::dist_autograd_internal
