#include "weft/examples/parameter_server/trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include <ATen/ops/nll_loss.h>
#include <c10/core/GradMode.h>
#include <torch/optim/adam.h>

#include "absl/strings/str_cat.h"
#include "weft/dist_autograd/context.h"
#include "weft/examples/support/must.h"

namespace weft::examples {
namespace {

constexpr int64_t kEvaluationBatch = 500;

// Falls from 1 to 0 along half a cosine.
double cosine(double progress) { return (1 + std::cos(std::numbers::pi * progress)) / 2; }

}  // namespace

Trainer::Trainer(const Worker& worker, const JobOptions& options, size_t trainers)
    : options_(options),
      scope_(worker),
      classifier_(find_classifier(kServerName)),
      layers_(options.seed),
      own_(ParameterSet::of(layers_)),
      learning_rate_(options.learning_rate(trainers)),
      ledger_(options.ledger, worker.name(), worker.id().incarnation),
      optimizer_(make_optimizer()) {
  stand_at({});
}

// The trainers share the Adam state of the server's parameters.
Trainer::Optimizer Trainer::make_optimizer() const {
  return Optimizer({make_rref(own_), classifier_.parameters()},
                   torch::optim::AdamOptions(learning_rate_), {.shared_name = "adam"});
}

double Trainer::step(const Batch& batch, double progress, const Position& then) {
  expected_ = then;
  dist_autograd::Context context;
  const at::Tensor answer = classifier_.forward(layers_.forward(batch.images));
  const at::Tensor loss = at::nll_loss(answer, batch.labels);
  context.backward({loss});
  const StepResult result = optimizer_->step(context, {.lr = learning_rate_ * cosine(progress)});
  ledger_.applied(result);
  step_ = result.number;
  keep_moment(then);
  return loss.item<double>();
}

void Trainer::keep_moment(const Position& position) {
  if (!options_.server_keeps_itself()) return;
  moments_[step_] = {position, own_->state(), optimizer_->set_state(0)};
  // With the server one checkpoint interval is lost, and more if its disk has failed. With durable
  // steps only the step under way is lost.
  const uint64_t reach =
      options_.every_step_durable ? 2 : 2 * static_cast<uint64_t>(options_.checkpoint_every);
  while (moments_.begin()->first + reach < step_) {
    moments_.erase(moments_.begin());
    knows_all_ = false;
  }
}

void Trainer::stand_at(const Position& position) {
  moments_.clear();
  knows_all_ = true;
  keep_moment(position);
}

Position Trainer::reconnect() {
  const uint64_t last = moments_.rbegin()->first;
  optimizer_.reset();
  classifier_ = find_classifier(kServerName);
  optimizer_.emplace(make_optimizer());
  step_ = optimizer_->resume();
  if (step_ == last + 1) {  // the server applied it, but the answer was lost
    Moment alone = moments_.at(last);
    alone.position = expected_;
    moments_[step_] = std::move(alone);
  } else if (step_ < moments_.begin()->first && knows_all_) {
    auto first = moments_.extract(moments_.begin());
    first.key() = step_;
    moments_.insert(std::move(first));
  }
  const auto moment = moments_.find(step_);
  if (moment == moments_.end()) {
    throw RpcError(absl::DataLossError(absl::StrCat("the server came back after step ", step_,
                                                    ", of which nothing is kept here")));
  }
  must(own_->load_state(moment->second.layers));
  optimizer_->load_set_state(0, moment->second.adam);
  moments_.erase(std::next(moment), moments_.end());
  ledger_.resumed(step_);
  return moment->second.position;
}

void Trainer::come_back() {
  step_ = optimizer_->resume();
  ledger_.resumed(step_);
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
  return {own_->state(), classifier_.state(), optimizer_->state_dict()};
}

void Trainer::load_state(const State& state) {
  must(own_->load_state(state.trainer));
  classifier_.load_state(state.server);
  optimizer_->load_state_dict(state.optimizer);
  ledger_.loaded(step_);
}

}  // namespace weft::examples
