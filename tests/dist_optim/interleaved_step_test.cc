// One trainer's forward, then another's step, then the first one's backward.
//
// The gradients must be exact at the weights that the forward read, over every transport. If
// forwards read the parameters themselves, the backward must be an error.
#include <memory>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/tests/dist_optim/optimizer_world.h"

namespace interleaved_step_test {

using torch::optim::SGD;
using torch::optim::SGDOptions;
using weft::DistributedOptimizer;
using weft::ParameterSet;
using weft::RRef;
using weft::dist_autograd::Context;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;

constexpr double kRate = 0.1;

at::Tensor initial() { return at::arange(6, at::kDouble).reshape({3, 2}).sin(); }
at::Tensor batch(int64_t number) {
  return at::arange(12, at::kDouble).add(static_cast<double>(number)).reshape({4, 3}).cos();
}
at::Tensor model(const at::Tensor& x, const at::Tensor& weight) {
  return x.matmul(weight.mul(weight)).tanh();
}

// A model on its owner. Its forwards read versions, or the parameter itself.
class Model {
 public:
  explicit Model(bool versions)
      : set_(std::make_shared<ParameterSet>(
            std::vector<weft::NamedParameter>{{"weight", initial().requires_grad_(true)}},
            versions ? ParameterSet::Reading::kVersions : ParameterSet::Reading::kLeaves)) {}
  at::Tensor forward(const at::Tensor& x) {
    return model(x, set_->read(weft::CallScope::current().context)[0]);
  }
  std::shared_ptr<ParameterSet> parameters() { return set_; }
  at::Tensor weight() { return set_->read({})[0].detach(); }

 private:
  const std::shared_ptr<ParameterSet> set_;
};
WEFT_REGISTER_CLASS(Model, weft::constructor<bool>(), &Model::forward, &Model::parameters,
                    &Model::weight);

// Runs a whole step of a trainer.
void train_once(RRef<Model> remote_model, int64_t number) {
  DistributedOptimizer<SGD> optimizer({remote_model.remote(&Model::parameters)}, SGDOptions(kRate));
  Context context;
  context.backward({remote_model.rpc_sync(&Model::forward, batch(number)).sum()});
  optimizer.step(context);
}
WEFT_REGISTER_FUNCTION(train_once);

class InterleavedStep : public ::testing::TestWithParam<TransportKind> {
 protected:
  static RuntimeWorld::Options options() {
    RuntimeWorld::Options options = weft::testing::with_autograd(3);
    options.kind = GetParam();
    return options;
  }
  // A step of the other trainer, on worker 2, outside this thread's context.
  void step_of_the_other(const RRef<Model>& remote_model) {
    std::thread([&, scope = world_.scope(0)] {
      weft::CallScopeGuard outside(scope);
      weft::rpc_sync(world_.id(2), train_once, remote_model, 1);
    }).join();
  }

  RuntimeWorld world_{options()};
  weft::CallScopeGuard guard_{world_.scope(0)};
};
INSTANTIATE_TEST_SUITE_P(Transport, InterleavedStep,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

TEST_P(InterleavedStep, BackwardIsThatOfOneProcessAtTheOldWeights) {
  const auto remote_model = weft::remote<Model>(world_.id(1), true);
  DistributedOptimizer<SGD> optimizer({remote_model.remote(&Model::parameters)}, SGDOptions(kRate));
  {
    Context context;
    const at::Tensor loss = remote_model.rpc_sync(&Model::forward, batch(0)).square().sum();
    step_of_the_other(remote_model);
    context.backward({loss});
    optimizer.step(context);
  }
  const at::Tensor old = initial().requires_grad_(true);
  const auto gradient = [&](const at::Tensor& loss) {
    return torch::autograd::grad({loss}, {old}).at(0);
  };
  const at::Tensor expected = initial() - kRate * gradient(model(batch(1), old).sum()) -
                              kRate * gradient(model(batch(0), old).square().sum());
  EXPECT_TRUE(at::allclose(remote_model.rpc_sync(&Model::weight), expected, 1e-10, 1e-12));
}

TEST_P(InterleavedStep, BackwardFailsWhereForwardsReadTheParametersThemselves) {
  const auto remote_model = weft::remote<Model>(world_.id(1), false);
  Context context;
  const at::Tensor loss = remote_model.rpc_sync(&Model::forward, batch(0)).square().sum();
  step_of_the_other(remote_model);
  const absl::Status failed = context.backward_async({loss}).result().status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown) << failed;
  EXPECT_THAT(std::string(failed.message()),
              ::testing::HasSubstr("modified by an inplace operation"));
}

}  // namespace interleaved_step_test
