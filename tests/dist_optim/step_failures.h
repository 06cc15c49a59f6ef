// Shared parts of the tests of failing steps: models on the owners, and how their parameters
// changed.
//
// Thread safety: free functions. `seen` is filled while a Model is constructed on its owner.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/registry.h"
#include "weft/tests/dist_optim/optimizer_world.h"

namespace step_failures_test {

using ::testing::HasSubstr;
using weft::ParameterSet;
using weft::RRef;
using weft::StepResult;
using weft::TensorMap;
using weft::dist_optim_internal::ShardStepper;
using Outcome = StepResult::Outcome;
using Sgd = weft::DistributedOptimizer<torch::optim::SGD>;

inline constexpr size_t kCaller = 0;  // the owners are workers 1 and 2
inline constexpr double kRate = 0.5;
inline constexpr char kShared[] =
    "twin";  // a shared_name, for tests that look into the owners' shards

// The rate times these values is exact, so results can be compared bit for bit.
inline at::Tensor start() { return at::full({2}, 0.1, at::kDouble); }
inline at::Tensor input(size_t owner) {
  return at::full({2}, static_cast<double>(1 << owner), at::kDouble);
}

// The owners' parameters, by worker; the test can read them after the owners are gone.
inline std::array<std::shared_ptr<ParameterSet>, 3> seen;

// The loss is the sum of weight * x + bias.
class Model {
 public:
  explicit Model(int64_t owner)
      : set_(std::make_shared<ParameterSet>(std::vector<weft::NamedParameter>{
            {"weight", start().requires_grad_(true)}, {"bias", start().requires_grad_(true)}})) {
    seen.at(static_cast<size_t>(owner)) = set_;
  }
  at::Tensor forward(const at::Tensor& x) {
    const std::vector<at::Tensor> read = set_->read(weft::CallScope::current().context);
    return read[0] * x + read[1];
  }
  std::shared_ptr<ParameterSet> parameters() { return set_; }

 private:
  const std::shared_ptr<ParameterSet> set_;
};
WEFT_REGISTER_CLASS(Model, weft::constructor<int64_t>(), &Model::forward, &Model::parameters);

// A model on each of these workers.
struct Models {
  explicit Models(const std::vector<weft::WorkerId>& owners) {
    for (const weft::WorkerId owner : owners) {
      models.push_back(weft::remote<Model>(owner, static_cast<int64_t>(owner.index)));
      sets.push_back(models.back().remote(&Model::parameters));
      (void)forward(models.size() - 1);  // returns when the model exists
    }
  }
  at::Tensor forward(size_t place) const {
    const RRef<Model>& model = models[place];
    return model.rpc_sync(&Model::forward, input(model.owner().index));
  }
  at::Tensor loss() const {
    at::Tensor sum;
    for (size_t i = 0; i < models.size(); ++i) sum = i == 0 ? forward(i) : sum + forward(i);
    return sum.sum();
  }
  std::vector<RRef<Model>> models;
  std::vector<RRef<ParameterSet>> sets;
};

// Returns how many plain steps (at most 3) lead from the start to the owner's values, bit for bit.
// -1: no number of steps does.
inline int steps_applied(size_t owner) {
  const TensorMap now = seen.at(owner)->state();
  at::Tensor weight = start(), bias = start();
  for (int steps = 0; steps < 4; ++steps) {
    if (at::equal(now.at("weight"), weight) && at::equal(now.at("bias"), bias)) return steps;
    weight = weight - input(owner) * kRate;
    bias = bias - at::ones_like(bias) * kRate;
  }
  return -1;
}

// Counts the steps of the optimizers named kShared that are prepared and undecided on this owner.
inline size_t undecided(size_t owner) {
  const auto stepper = std::static_pointer_cast<ShardStepper>(
      seen.at(owner)->shared(kShared, [] { return std::shared_ptr<void>(); }));
  return stepper == nullptr ? 0 : stepper->undecided().size();
}

inline std::string text_of(const StepResult& result) {
  return std::string(result.status.message());
}

inline void expect_not_applied(const StepResult& result, absl::StatusCode code,
                               const std::string& named) {
  EXPECT_EQ(result.outcome, Outcome::kNotApplied) << result.status;
  EXPECT_EQ(result.status.code(), code) << result.status;
  EXPECT_THAT(text_of(result), HasSubstr(named));
}

}  // namespace step_failures_test
