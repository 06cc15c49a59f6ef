// Gathers the gradients of one pass by received message until all tensors of a message are settled.
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

// What goes back for one received message. Without any gradient it still has to go: it tells the
// sender that none will come.
struct RecvAnswer {
  SendId send;                        // send.creator is the worker it goes to
  std::vector<at::Tensor> gradients;  // one per tensor of the message, undefined: no gradient

  bool empty() const;
  size_t bytes() const;
};

class RecvAnswers {
 public:
  // A received tensor stands in the graph: its message's answer waits for it. Returns the number of
  // the answer.
  uint32_t expect(const RecvNode& node);
  // A source leads to the message. False: an earlier call has said so.
  bool reach(uint32_t answer);
  // From now on a message that no source has reached and that has no gradient is not answered.
  void source_cancelled() { any_cancelled_ = true; }
  // Nothing more comes for an expected tensor but `gradient`, if that is defined. Returns the
  // answer if this tensor was the last and the message is answered.
  std::optional<RecvAnswer> resolve(uint32_t answer, uint32_t slot, at::Tensor gradient);
  // Answers that have a gradient and wait for other tensors.
  size_t held() const { return held_; }
  // Lets all gradients go. Nothing may be resolved afterwards.
  void clear();

 private:
  struct Pending {
    RecvAnswer answer;
    uint32_t unresolved = 0;  // tensors in the graph whose node has neither run nor died
    bool holds_gradient = false;
    bool reached = false;
  };

  std::vector<Pending> pending_;
  absl::flat_hash_map<SendId, uint32_t> index_;
  size_t held_ = 0;
  bool any_cancelled_ = false;
};

}  // namespace weft::dist_autograd_internal
