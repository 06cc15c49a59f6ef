#include "weft/dist_autograd/graph/engine_scope.h"

#include <exception>
#include <memory>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "absl/strings/str_cat.h"

namespace weft::dist_autograd_internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::Engine;
using torch::autograd::variable_list;

// The only node of the engine's pass. It runs `body`.
class BodyNode final : public torch::autograd::Node {
 public:
  explicit BodyNode(absl::FunctionRef<absl::Status()> body) : body_(body) {}
  const absl::Status& status() const { return status_; }
  std::string name() const override { return "weft::LocalGraph"; }

 protected:
  variable_list apply(variable_list&&) override {
    status_ = body_();
    // The exception stops the engine's pass before its callbacks, which expect a complete pass.
    if (!status_.ok()) throw std::runtime_error("the distributed backward pass failed");
    return {};
  }

 private:
  absl::FunctionRef<absl::Status()> body_;
  absl::Status status_;
};

}  // namespace

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

absl::Status run_in_engine(absl::FunctionRef<absl::Status()> body) {
  const std::shared_ptr<BodyNode> node(new BodyNode(body), torch::autograd::deleteNode);
  const at::Tensor token = at::empty({0});
  node->add_input_metadata(token);
  try {
    Engine::get_default_engine().execute({Edge(node, 0)}, {token}, /*keep_graph=*/true,
                                         /*create_graph=*/false, /*accumulate_grad=*/true, {});
  } catch (...) {
    if (!node->status().ok()) return node->status();
    return absl::UnknownError(
        absl::StrCat("a callback at the end of backward: ", text_of_current_exception()));
  }
  return absl::OkStatus();
}

}  // namespace weft::dist_autograd_internal
