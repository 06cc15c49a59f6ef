#include "weft/pipeline/runner/step_gradients.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::pipeline_internal {
namespace {

using torch::autograd::variable_list;

class StepGradients final : public torch::autograd::Node {
 public:
  explicit StepGradients(variable_list gradients) : gradients_(std::move(gradients)) {}

  std::string name() const override { return "weft::Pipeline"; }
  void release_variables() override { gradients_.clear(); }

 private:
  variable_list apply(variable_list&& /*inputs*/) override {
    if (gradients_.size() != num_outputs()) {
      throw std::runtime_error("the gradients of this pipeline's step were used before");
    }
    return std::exchange(gradients_, {});
  }

  variable_list gradients_;  // of each edge
};

}  // namespace

at::Tensor gradient_token(std::vector<dist_autograd_internal::LeafGradient> gradients) {
  at::Tensor token = at::zeros({});
  if (gradients.empty()) return token;
  torch::autograd::edge_list edges;
  variable_list values;
  for (dist_autograd_internal::LeafGradient& each : gradients) {
    edges.push_back(torch::autograd::impl::gradient_edge(each.variable));
    values.push_back(std::move(each.gradient));
  }
  const std::shared_ptr<StepGradients> node(new StepGradients(std::move(values)),
                                            torch::autograd::deleteNode);
  node->set_next_edges(std::move(edges));
  const uint32_t input = node->add_input_metadata(token);
  torch::autograd::impl::set_gradient_edge(token, {node, input});
  return token;
}

}  // namespace weft::pipeline_internal
