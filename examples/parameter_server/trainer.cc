#include "weft/examples/parameter_server/trainer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ops/nll_loss.h>
#include <c10/core/GradMode.h>

#include "weft/dist_autograd/context.h"

namespace weft::examples {
namespace {

constexpr int64_t kEvaluationBatch = 500;

// From 1 to 0 along half a cosine.
double cosine(double progress) { return (1 + std::cos(std::numbers::pi * progress)) / 2; }

}  // namespace

Trainer::Trainer(const Worker& worker, const JobOptions& options, size_t trainers)
    : worker_(worker),
      classifier_(find_classifier(worker.to(kServerName))),
      layers_(options.seed),
      // One thread reads and steps in turn: the parameters themselves will do.
      own_(layers_, ParameterSet::Reading::kLeaves),
      learning_rate_(options.learning_rate(trainers)) {}

double Trainer::step(const Batch& batch, double progress) {
  const WorkerScope scope(worker_);
  dist_autograd::Context context;
  own_.parameters().read(context.id());
  const at::Tensor features = layers_.forward(batch.images);
  const at::Tensor answer = classifier_.rpc_sync(&Classifier::forward, features);
  const at::Tensor loss = at::nll_loss(answer, batch.labels);
  context.backward({loss});

  // Prepared here, applied there, then applied here: the server's answer decides for both.
  const StepId step{{worker_.id(), 1}, ++steps_};
  const double rate = learning_rate_ * cosine(progress);
  own_.prepare(step, context.id());
  own_.parameters().release(context.id());
  classifier_.rpc_sync(&Classifier::step,
                       ServerStep{step, context.id().creator, context.id().number, rate});
  own_.commit(step, rate);
  return loss.item<double>();
}

std::vector<at::Tensor> Trainer::own_layers() const {
  std::vector<at::Tensor> values;
  for (const auto& item : layers_.named_parameters()) values.push_back(item.value().detach());
  return values;
}

void Trainer::set_own_layers(const std::vector<at::Tensor>& values) {
  const std::vector<at::Tensor> own = own_layers();
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(values.at(i));
}

double Trainer::evaluate(const LabelledImages& data) {
  const c10::AutoGradMode no_grad(false);
  classifier_.rpc_sync(&Classifier::set_training, false);
  int64_t right = 0;
  for (int64_t begin = 0; begin < data.size(); begin += kEvaluationBatch) {
    const int64_t end = std::min(data.size(), begin + kEvaluationBatch);
    const Batch batch = make_batch(data, begin, end);
    right += count_correct(
        classifier_.rpc_sync(&Classifier::forward, layers_.forward(batch.images)), batch.labels);
  }
  classifier_.rpc_sync(&Classifier::set_training, true);
  return static_cast<double>(right) / static_cast<double>(data.size());
}

Trainer::State Trainer::state() const {
  return {own_.state(), classifier_.rpc_sync(&Classifier::state)};
}

void Trainer::load_state(const State& state, bool server_too) {
  own_.load_state(state.trainer);
  if (server_too) classifier_.rpc_sync(&Classifier::load_state, state.server);
}

}  // namespace weft::examples
