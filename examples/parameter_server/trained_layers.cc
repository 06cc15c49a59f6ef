#include "weft/examples/parameter_server/trained_layers.h"

#include <numeric>
#include <utility>

#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"

namespace weft::examples {
namespace {

constexpr std::string_view kAdamPrefix = "adam/";

void must(const absl::Status& status) {
  if (!status.ok()) throw RpcError(status);
}
template <class T>
T must(absl::StatusOr<T> result) {
  must(result.status());
  return *std::move(result);
}

std::shared_ptr<ParameterSet> parameters_of(const torch::nn::Module& layers,
                                            ParameterSet::Reading reading) {
  std::vector<NamedParameter> named;
  for (const auto& item : layers.named_parameters()) named.push_back({item.key(), item.value()});
  return std::make_shared<ParameterSet>(std::move(named), reading);
}

std::shared_ptr<internal::ShardStepper> adam_over(const std::shared_ptr<ParameterSet>& set) {
  std::vector<size_t> all(set->size());
  std::iota(all.begin(), all.end(), size_t{0});
  // Every commit brings its own rate.
  return must(internal::ShardStepper::make(
      set, {{std::move(all), settings_of(torch::optim::AdamOptions(1e-3))}}, UpdateMode::kLocked));
}

}  // namespace

TrainedLayers::TrainedLayers(const torch::nn::Module& layers, ParameterSet::Reading reading)
    : parameters_(parameters_of(layers, reading)), adam_(adam_over(parameters_)) {}

void TrainedLayers::prepare(const StepId& step, const ContextId& context) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : parameters_->leaves(context)) {
    gradients.push_back(dist_autograd::gradient(context, leaf));
  }
  must(adam_->prepare(step, std::move(gradients)).status());
}

void TrainedLayers::commit(const StepId& step, double learning_rate) {
  must(adam_->commit(step, {.learning_rates = {learning_rate}}));
}

void TrainedLayers::abort(const StepId& step) { must(adam_->abort(step)); }

TensorMap TrainedLayers::state() const {
  TensorMap state = parameters_->state();
  for (auto& [name, value] : adam_->state()) {
    state[absl::StrCat("adam/", name)] = value;
  }
  return state;
}

void TrainedLayers::load_state(const TensorMap& state) {
  TensorMap parameters;
  TensorMap adam;
  for (const auto& [name, value] : state) {
    if (name.starts_with(kAdamPrefix)) {
      adam[name.substr(kAdamPrefix.size())] = value;
    } else {
      parameters[name] = value;
    }
  }
  must(parameters_->load_state(parameters));
  must(adam_->load_state(adam));
}

}  // namespace weft::examples
