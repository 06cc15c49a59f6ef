#include "weft/examples/batched_parameter_server/update_server.h"

#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/rpc_error.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

// After a step by one larger number, the gradients of all trainers could be infinite or NaN.
constexpr double kLargestGradient = 1000;

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

UpdateServer::UpdateServer(ServerMode mode, size_t trainers, double learning_rate, uint64_t seed)
    : mode_(mode),
      learning_rate_(learning_rate),
      trainers_(trainers),
      together_(
          [this](const std::vector<Tensors>& gradients, const std::vector<int64_t>& trainers) {
            return step_together(gradients, trainers);
          },
          {.name = "updates", .max_size = trainers, .max_wait = kUntilFull}) {
  for (const auto& parameter : PictureNet(seed).named_parameters()) {
    names_.push_back(parameter.key());
    live_.push_back(parameter.value().detach());
  }
  MutexLock lock(mutex_);
  model_ = live_;
}

UpdateServer::Tensors UpdateServer::fetch_model() const {
  if (mode_ == ServerMode::kHogwild) {
    Tensors copies;
    for (const at::Tensor& parameter : live_) copies.push_back(parameter.clone());
    return copies;
  }
  MutexLock lock(mutex_);
  return model_;
}

Future<UpdateServer::Tensors> UpdateServer::update_and_fetch_model(Tensors gradients,
                                                                   int64_t trainer) {
  check(gradients);  // before other trainers wait for it
  if (stop_requested()) {
    MutexLock lock(mutex_);
    counts_.stopped = true;
    return Future<Tensors>::ready(Tensors());
  }
  if (mode_ == ServerMode::kBatched) return together_(std::move(gradients), trainer);
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
    const at::Tensor& parameter = live_[i];
    const auto text = [](const at::Tensor& tensor) {
      if (!tensor.defined()) return std::string("nothing");
      return absl::StrCat("[", absl::StrJoin(tensor.sizes(), ", "), "] of ",
                          c10::toString(tensor.scalar_type()),
                          tensor.layout() == at::kStrided ? "" : ", not dense");
    };
    if (!gradient.defined() || gradient.layout() != at::kStrided ||
        gradient.sizes() != parameter.sizes() ||
        gradient.scalar_type() != parameter.scalar_type()) {
      throw refuse(absl::StrCat("the gradient of ", names_[i], " must be ", text(parameter),
                                ", but it is ", text(gradient)));
    }
    // Written with `!` because NaN compares false and must be refused too.
    if (const auto largest = gradient.abs().max().item<double>(); !(largest <= kLargestGradient)) {
      throw refuse(absl::StrCat("the gradient of ", names_[i], " holds ", largest, "; up to ",
                                kLargestGradient, " it is taken for learning"));
    }
  }
}

void UpdateServer::one_trainer_less() {
  MutexLock lock(trainers_mutex_);
  if (trainers_ > 1) together_.set_max_size(--trainers_);
}

UpdateServer::Tensors UpdateServer::step(const Tensors& sum, size_t updates) {
  if (mode_ == ServerMode::kHogwild) {
    for (size_t i = 0; i < sum.size(); ++i) live_[i].add_(sum[i], -learning_rate_);
  }
  {
    MutexLock lock(mutex_);
    ++counts_.steps;
    counts_.updates += updates;
    if (mode_ != ServerMode::kHogwild) {
      for (size_t i = 0; i < sum.size(); ++i) model_[i] = model_[i].add(sum[i], -learning_rate_);
      return model_;
    }
  }
  return fetch_model();
}

std::vector<UpdateServer::Tensors> UpdateServer::step_together(
    const std::vector<Tensors>& gradients, const std::vector<int64_t>& trainers) {
  std::multimap<int64_t, const Tensors*> in_order;
  for (size_t i = 0; i < gradients.size(); ++i) in_order.emplace(trainers[i], &gradients[i]);
  Tensors sum = *in_order.begin()->second;
  for (auto update = std::next(in_order.begin()); update != in_order.end(); ++update) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + (*update->second)[i];
  }
  return std::vector<Tensors>(gradients.size(), step(sum, gradients.size()));
}

}  // namespace weft::examples
