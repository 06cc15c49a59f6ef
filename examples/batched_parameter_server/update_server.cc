#include "weft/examples/batched_parameter_server/update_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"

namespace weft::examples {
namespace {

RpcError refuse(const std::string& why) { return RpcError(absl::InvalidArgumentError(why)); }

}  // namespace

PictureNet::PictureNet(uint64_t seed)
    : features_(register_module("features", std::make_shared<FeatureLayers>(seed))),
      classifier_(
          register_module("classifier", std::make_shared<ClassifierLayers>(seed, /*dropout=*/0))) {}

void PictureNet::use(const std::vector<at::Tensor>& model) {
  std::vector<at::Tensor> own = parameters();
  for (size_t i = 0; i < own.size(); ++i) own[i].set_data(model.at(i));
}

UpdateServer::UpdateServer(UpdateOrder order, size_t trainers, double learning_rate, uint64_t seed)
    : order_(order),
      learning_rate_(learning_rate),
      together_(
          [this](std::vector<Tensors> gradients) { return step_together(std::move(gradients)); },
          {.name = "updates", .max_size = trainers, .max_wait = kUntilFull}) {
  for (const auto& parameter : PictureNet(seed).named_parameters()) {
    names_.push_back(parameter.key());
    first_.push_back(parameter.value().detach());
  }
  MutexLock lock(mutex_);
  model_ = first_;
}

UpdateServer::Tensors UpdateServer::fetch_model() const {
  if (order_ == UpdateOrder::kHogwild) {
    Tensors copies;
    for (const at::Tensor& parameter : first_) copies.push_back(parameter.clone());
    return copies;
  }
  MutexLock lock(mutex_);
  return model_;
}

Future<UpdateServer::Tensors> UpdateServer::update_and_fetch_model(Tensors gradients) {
  check(gradients);  // before others wait for it
  if (order_ == UpdateOrder::kBatched) return together_(std::move(gradients));
  return Future<Tensors>::ready(step(gradients, 1));
}

UpdateServer::Counts UpdateServer::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

void UpdateServer::check(const Tensors& gradients) const {
  if (gradients.size() != names_.size()) {
    throw refuse(absl::StrCat("an update has ", names_.size(), " gradients, but ", gradients.size(),
                              " came"));
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    if (gradient.defined() && gradient.sizes() == first_[i].sizes() &&
        gradient.scalar_type() == first_[i].scalar_type()) {
      continue;
    }
    throw refuse(absl::StrCat("the gradient of ", names_[i], " does not fit it"));
  }
}

UpdateServer::Tensors UpdateServer::step(const Tensors& sum, size_t updates) {
  if (order_ == UpdateOrder::kHogwild) {
    for (size_t i = 0; i < sum.size(); ++i) first_[i].add_(sum[i], -learning_rate_);
  }
  {
    MutexLock lock(mutex_);
    ++counts_.steps;
    counts_.updates += updates;
    if (order_ != UpdateOrder::kHogwild) {
      for (size_t i = 0; i < sum.size(); ++i) model_[i] = model_[i].add(sum[i], -learning_rate_);
      return model_;
    }
  }
  return fetch_model();
}

std::vector<UpdateServer::Tensors> UpdateServer::step_together(std::vector<Tensors> gradients) {
  Tensors sum = gradients.front();
  for (size_t i = 0; i < sum.size(); ++i) {
    for (size_t from = 1; from < gradients.size(); ++from) sum[i] = sum[i] + gradients[from][i];
  }
  return std::vector<Tensors>(gradients.size(), step(sum, gradients.size()));
}

}  // namespace weft::examples
