#include "weft/dist_autograd/graph/recv_answers.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>

#include "weft/dist_autograd/graph/recv_node.h"

namespace weft::dist_autograd_internal {

bool RecvAnswer::empty() const {
  return std::none_of(gradients.begin(), gradients.end(),
                      [](const at::Tensor& gradient) { return gradient.defined(); });
}

size_t RecvAnswer::bytes() const {
  size_t bytes = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) bytes += gradient.numel() * gradient.element_size();
  }
  return bytes;
}

uint32_t RecvAnswers::expect(const RecvNode& node) {
  const auto [it, is_new] = index_.try_emplace(node.send(), pending_.size());
  if (is_new) {
    pending_.push_back({.answer = {node.send(), std::vector<at::Tensor>(node.slots())}});
  }
  ++pending_[it->second].unresolved;
  return it->second;
}

bool RecvAnswers::reach(uint32_t answer) { return !std::exchange(pending_[answer].reached, true); }

std::optional<RecvAnswer> RecvAnswers::resolve(uint32_t answer, uint32_t slot,
                                               at::Tensor gradient) {
  Pending& pending = pending_[answer];
  if (gradient.defined()) {
    held_ += !std::exchange(pending.holds_gradient, true);
    at::Tensor& sum = pending.answer.gradients.at(slot);
    sum = sum.defined() ? sum + gradient : std::move(gradient);
  }
  if (--pending.unresolved > 0) return std::nullopt;
  held_ -= pending.holds_gradient;
  // If no active source leads to a message, its sender may have cancelled the send too. Nobody may
  // feed a cancelled send, not even with an empty answer (I3).
  if (!pending.holds_gradient && any_cancelled_ && !pending.reached) return std::nullopt;
  return std::move(pending.answer);
}

void RecvAnswers::clear() {
  for (Pending& pending : pending_) pending.answer.gradients.clear();
  held_ = 0;
}

}  // namespace weft::dist_autograd_internal
