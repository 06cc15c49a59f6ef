#include "weft/examples/pipeline_resnet50/local_resnet50.h"

#include <atomic>
#include <exception>
#include <utility>

#include <ATen/Parallel.h>

#include "weft/async/future.h"

namespace weft::examples {

// The state of one step.
struct LocalResNet50::Pass {
  Pass(std::vector<Pictures> parts, size_t stages, Loss loss)
      : pictures(std::move(parts)), loss(std::move(loss)), left(pictures.size()) {
    inputs.resize(stages, std::vector<at::Tensor>(pictures.size()));
    outputs = inputs;
  }
  // Runs code that may throw. The first error stops the step.
  template <class Code>
  void guarded(const Code& code) {
    try {
      if (!failed) code();
    } catch (...) {
      if (!failed.exchange(true)) done.set(std::current_exception());
    }
  }
  void one_is_through() {
    if (--left == 0) done.set(std::exception_ptr());
  }

  const std::vector<Pictures> pictures;
  const Loss loss;
  std::vector<std::vector<at::Tensor>> inputs, outputs;  // [stage][micro-batch]
  double total_loss = 0;                                 // only the last stage's thread adds to it
  std::atomic<size_t> left;
  std::atomic<bool> failed{false};
  Promise<std::exception_ptr> done{nullptr};
};

LocalResNet50::LocalResNet50(const Cuts& cuts, int64_t classes, uint64_t seed) {
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    parts_.push_back(std::make_shared<ResNet50Part>(cuts[i], cuts[i + 1], classes, seed));
  }
  if (parts_.size() < 2) return;
  for (size_t i = 0; i < parts_.size(); ++i) {
    threads_.push_back(std::make_unique<SerialThread>());
    threads_.back()->run([] { at::set_num_threads(1); });
  }
}

double LocalResNet50::backward(const Pictures& batch, int64_t micro_batches, const Loss& loss) {
  const std::vector<Pictures> parts = split(batch, micro_batches);
  if (parts_.size() == 1) {
    double total = 0;
    for (const Pictures& part : parts) {
      const at::Tensor share =
          loss(parts_[0]->forward(part.images), part.labels) / static_cast<double>(micro_batches);
      share.backward();
      total += share.item<double>();
    }
    return total;
  }
  const auto pass = std::make_shared<Pass>(parts, parts_.size(), loss);
  for (size_t i = 0; i < parts.size(); ++i) forward_through(pass, 0, i, parts[i].images);
  const std::exception_ptr error = pass->done.future().wait();
  if (error == nullptr) return pass->total_loss;
  // Tasks that have not begun do nothing now. Wait for those that run.
  for (const auto& thread : threads_) {
    Promise<void> idle(nullptr);
    thread->run([&idle] { idle.set_value(); });
    idle.future().wait();
  }
  std::rethrow_exception(error);
}

// Each thread runs tasks in the order in which they arrive. So the first stage runs all forwards
// before its first backward, and the last one runs each backward right after its forward.
void LocalResNet50::forward_through(const std::shared_ptr<Pass>& pass, size_t part,
                                    size_t micro_batch, const at::Tensor& x) {
  threads_[part]->run([=, this] {
    pass->guarded([&] {
      const at::Tensor input = x.detach().requires_grad_(part > 0);
      const at::Tensor output = parts_[part]->forward(input);
      pass->inputs[part][micro_batch] = input;
      if (part + 1 < parts_.size()) {
        pass->outputs[part][micro_batch] = output;
        forward_through(pass, part + 1, micro_batch, output);
        return;
      }
      const at::Tensor share = pass->loss(output, pass->pictures[micro_batch].labels) /
                               static_cast<double>(pass->pictures.size());
      share.backward();
      pass->total_loss += share.item<double>();
      backward_through(pass, part - 1, micro_batch, input.grad());
    });
  });
}

void LocalResNet50::backward_through(const std::shared_ptr<Pass>& pass, size_t part,
                                     size_t micro_batch, const at::Tensor& gradient) {
  threads_[part]->run([=, this] {
    pass->guarded([&] {
      pass->outputs[part][micro_batch].backward(gradient);
      pass->outputs[part][micro_batch].reset();  // frees the memory of its graph
      if (part > 0) {
        backward_through(pass, part - 1, micro_batch, pass->inputs[part][micro_batch].grad());
      } else {
        pass->one_is_through();
      }
    });
  });
}

std::vector<at::Tensor> LocalResNet50::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& part : parts_) {
    for (const at::Tensor& one : part->parameters()) parameters.push_back(one);
  }
  return parameters;
}

}  // namespace weft::examples
