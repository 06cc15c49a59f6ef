#include "weft/examples/pipeline_resnet50/shard.h"

#include <utility>

#include <torch/torch.h>

#include "weft/dist_autograd/context.h"

namespace weft::examples {
namespace {

constexpr int kLeastRepeats = 3;

// Times one forward and one backward with a gradient of the output's shape. Returns the output.
template <class Forward>
at::Tensor time_once(const Forward& forward, const at::Tensor& x, bool first, StageTime& time) {
  const at::Tensor input = x.detach().requires_grad_(!first);  // a picture needs no gradient
  const double begun = seconds_now();
  const at::Tensor output = forward(input);
  const double there = seconds_now();
  output.backward(torch::ones_like(output));
  time = {there - begun, seconds_now() - there};
  return output.detach();
}

}  // namespace

ResNetShard::ResNetShard(int64_t first, int64_t last, int64_t classes, uint64_t seed)
    : layers_(first, last, classes, seed),
      first_(first == 0),
      set_(ParameterSet::of(layers_)),
      times_(std::make_shared<TimeLine>()) {}

Future<at::Tensor> ResNetShard::forward(const RRef<at::Tensor>& x, int64_t micro_batch) {
  const auto run = [self = shared_from_this(), micro_batch](const Future<at::Tensor>& input) {
    return self->run(input.wait(), micro_batch);
  };
  MutexLock lock(order_mutex_);
  const Future<at::Tensor> output =
      last_.then([input = x.to_here_async(), run](const Future<void>&) { return input.then(run); });
  last_ = output.then([](const Future<at::Tensor>&) {});
  return output;
}

at::Tensor ResNetShard::run(const at::Tensor& x, int64_t micro_batch) {
  // Without a context no caller asks for a backward pass, so no graph is recorded.
  const c10::AutoGradMode records(dist_autograd::current_context().valid());
  MutexLock lock(mutex_);
  const double begun = seconds_now();
  at::Tensor output = layers_.forward(x);
  if (tracing_) {
    times_->add({micro_batch, false, begun, seconds_now()});
    times_->watch_backward(output, micro_batch);
  }
  return output;
}

void ResNetShard::train(bool on) {
  MutexLock lock(mutex_);
  layers_.train(on);
}

TensorMap ResNetShard::state() const { return set_->state(); }

TensorMap ResNetShard::gradients() const {
  TensorMap gradients;
  const ContextId context = dist_autograd::current_context();
  for (size_t i = 0; i < set_->size(); ++i) {
    gradients[set_->names()[i]] = dist_autograd::gradient(context, set_->live()[i]);
  }
  return gradients;
}

std::vector<Span> ResNetShard::trace(bool on) {
  MutexLock lock(mutex_);
  tracing_ = on;
  return times_->take();
}

StageTime ResNetShard::measure(const at::Tensor& x, double seconds) {
  MutexLock lock(mutex_);
  std::vector<double> forward, backward;
  const double begun = seconds_now();
  while (static_cast<int>(forward.size()) < kLeastRepeats || seconds_now() - begun < seconds) {
    StageTime time;
    // Runs inside time_once, so under the lock.
    const auto run = [&](const at::Tensor& in)
                         ABSL_NO_THREAD_SAFETY_ANALYSIS { return layers_.forward(in); };
    time_once(run, x, first_, time);
    forward.push_back(time.forward);
    backward.push_back(time.backward);
  }
  layers_.zero_grad();
  return {median(forward), median(backward)};
}

std::vector<double> ResNetShard::profile(const at::Tensor& x, double seconds) {
  MutexLock lock(mutex_);
  std::vector<std::vector<double>> times(layers_.layers().size());
  const double begun = seconds_now();
  while (static_cast<int>(times[0].size()) < kLeastRepeats || seconds_now() - begun < seconds) {
    at::Tensor input = x;
    for (size_t i = 0; i < times.size(); ++i) {
      StageTime time;
      const auto run = [&](const at::Tensor& in) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return layers_.layers()[i]->forward(in);
      };
      input = time_once(run, input, first_ && i == 0, time);
      times[i].push_back(time.both());
    }
  }
  layers_.zero_grad();
  std::vector<double> medians;
  for (const auto& one : times) medians.push_back(median(one));
  return medians;
}

}  // namespace weft::examples
