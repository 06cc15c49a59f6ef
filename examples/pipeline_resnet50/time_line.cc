#include "weft/examples/pipeline_resnet50/time_line.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

namespace weft::examples {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

struct TellEnd final : torch::autograd::FunctionPostHook {
  explicit TellEnd(std::function<void()> tell) : tell(std::move(tell)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    tell();
    return outputs;
  }
  const std::function<void()> tell;
};

}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void TimeLine::add(const Span& span) {
  MutexLock lock(mutex_);
  spans_.push_back(span);
}

void TimeLine::backward_at(int64_t micro_batch, double when) {
  MutexLock lock(mutex_);
  // The last span of a micro-batch is its newest one.
  const auto last = std::find_if(spans_.rbegin(), spans_.rend(),
                                 [&](const Span& span) { return span.micro_batch == micro_batch; });
  if (last != spans_.rend() && last->backward) {
    last->end = when;
  } else {
    spans_.push_back({micro_batch, true, when, when});
  }
}

void TimeLine::watch_backward(const at::Tensor& output, int64_t micro_batch) {
  if (output.grad_fn() == nullptr) return;
  const auto tell = [self = shared_from_this(), micro_batch] {
    self->backward_at(micro_batch, seconds_now());
  };
  output.register_hook([tell](const at::Tensor&) { tell(); });
  // Watch inner nodes only. Nodes at the edge (leaves, received tensors) compute nothing.
  std::set<Node*> seen;
  std::vector<Node*> left{output.grad_fn().get()};
  while (!left.empty()) {
    Node* const node = left.back();
    left.pop_back();
    if (node->num_outputs() == 0 || !seen.insert(node).second) continue;
    node->add_post_hook(std::make_unique<TellEnd>(tell));
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.is_valid()) left.push_back(edge.function.get());
    }
  }
}

std::vector<Span> TimeLine::take() {
  MutexLock lock(mutex_);
  return std::exchange(spans_, {});
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double ideal_seconds(const std::vector<StageTime>& stages, int64_t micro_batches) {
  double sum = 0, slowest = 0;
  for (const StageTime& stage : stages) {
    sum += stage.both();
    slowest = std::max(slowest, stage.both());
  }
  return sum + static_cast<double>(micro_batches - 1) * slowest;
}

}  // namespace weft::examples
