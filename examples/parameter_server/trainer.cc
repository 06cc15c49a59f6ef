#include "weft/examples/parameter_server/trainer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ops/nll_loss.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>

#include "weft/dist_autograd/context.h"

namespace weft::examples {
namespace {

constexpr int64_t kEvaluationBatch = 500;

// From 1 to 0 along half a cosine.
double cosine(double progress) { return (1 + std::cos(std::numbers::pi * progress)) / 2; }

// One thread reads and steps in turn: the parameters themselves will do.
std::shared_ptr<ParameterSet> parameters_of(const torch::nn::Module& layers) {
  std::vector<NamedParameter> named;
  for (const auto& item : layers.named_parameters()) named.push_back({item.key(), item.value()});
  return std::make_shared<ParameterSet>(std::move(named), ParameterSet::Reading::kLeaves);
}

}  // namespace

Trainer::Trainer(const Worker& worker, const JobOptions& options, size_t trainers)
    : scope_(worker),
      classifier_(find_classifier(kServerName)),
      layers_(options.seed),
      own_(parameters_of(layers_)),
      learning_rate_(options.learning_rate(trainers)),
      // The trainers share what Adam remembers of the server's parameters.
      optimizer_({make_rref(own_), classifier_.parameters()},
                 torch::optim::AdamOptions(learning_rate_), {.shared_name = "adam"}) {}

double Trainer::step(const Batch& batch, double progress) {
  dist_autograd::Context context;
  const at::Tensor answer = classifier_.forward(layers_.forward(batch.images));
  const at::Tensor loss = at::nll_loss(answer, batch.labels);
  context.backward({loss});
  optimizer_.step(context, {.lr = learning_rate_ * cosine(progress)});
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
  classifier_.eval();
  int64_t right = 0;
  for (int64_t begin = 0; begin < data.size(); begin += kEvaluationBatch) {
    const int64_t end = std::min(data.size(), begin + kEvaluationBatch);
    const Batch batch = make_batch(data, begin, end);
    right += count_correct(classifier_.forward(layers_.forward(batch.images)), batch.labels);
  }
  classifier_.train();
  return static_cast<double>(right) / static_cast<double>(data.size());
}

Trainer::State Trainer::state() const {
  return {own_->state(), classifier_.state(), optimizer_.state_dict()};
}

void Trainer::load_state(const State& state) {
  if (absl::Status status = own_->load_state(state.trainer); !status.ok()) throw RpcError(status);
  classifier_.load_state(state.server);
  optimizer_.load_state_dict(state.optimizer);
}

}  // namespace weft::examples
