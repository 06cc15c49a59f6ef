#include "weft/ddp/internal/output_sink.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace weft::ddp_internal {
namespace {

struct Sink final : torch::autograd::Node {
  explicit Sink(std::function<void()> begins) : backward_begins(std::move(begins)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    backward_begins();
    return std::move(gradients);
  }
  std::string name() const override { return "DistributedDataParallelSink"; }
  const std::function<void()> backward_begins;
};

}  // namespace

std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, bool clone,
                                     std::function<void()> backward_begins) {
  const auto sink =
      std::shared_ptr<Sink>(new Sink(std::move(backward_begins)), torch::autograd::deleteNode);
  sink->set_next_edges(torch::autograd::collect_next_edges(outputs));
  std::vector<at::Tensor> results;
  for (const at::Tensor& output : outputs) {
    at::Tensor result = [&] {
      const at::NoGradGuard no_grad;
      return clone ? output.clone() : output.detach();
    }();
    torch::autograd::create_gradient_edge(result, sink);
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace weft::ddp_internal
