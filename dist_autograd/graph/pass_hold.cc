#include "weft/dist_autograd/graph/pass_hold.h"

#include <utility>

#include "weft/dist_autograd/graph/leaf_observer.h"

namespace weft {

PassHold::PassHold() = default;
PassHold::PassHold(std::unique_ptr<dist_autograd_internal::HeldPass> held)
    : held_(std::move(held)) {}
PassHold::PassHold(PassHold&& other) noexcept = default;

PassHold& PassHold::operator=(PassHold&& other) noexcept {
  if (this != &other) {
    fail(absl::CancelledError("a hold on a backward pass was replaced by another"));
    held_ = std::move(other.held_);
  }
  return *this;
}

PassHold::~PassHold() {
  fail(absl::CancelledError("a hold on a backward pass was dropped without being released"));
}

void PassHold::replace(const at::Tensor& variable, at::Tensor gradient) {
  if (held_ != nullptr) held_->replace(variable, std::move(gradient));
}

void PassHold::give(const at::Tensor& variable, at::Tensor gradient) {
  if (held_ != nullptr) held_->give(variable, std::move(gradient));
}

void PassHold::release() {
  if (auto held = std::move(held_)) held->end(absl::OkStatus());
}

void PassHold::fail(absl::Status why) {
  if (auto held = std::move(held_)) held->end(std::move(why));
}

}  // namespace weft
