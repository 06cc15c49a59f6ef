// A caller dies at every point between the first PREPARE and the last COMMIT.
//
// Its owners must decide the step together: all of them apply it exactly once, or none does.
#include <array>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "weft/tests/dist_optim/optimizer_world.h"

namespace dead_caller_test {

using weft::RRef;
using weft::dist_autograd::Context;
using weft::dist_optim_internal::OptimizerShard;
using weft::dist_optim_internal::ShardGroup;
using weft::dist_optim_internal::StepId;
using weft::dist_optim_internal::StepRequest;
using weft::testing::eventually;
using weft::testing::RuntimeWorld;

constexpr size_t kOwners = 3;
constexpr size_t kCaller = kOwners;
constexpr double kRate = 0.5;

// The owners' parameters; the test can read them after the objects are gone.
std::array<std::shared_ptr<weft::ParameterSet>, kOwners> seen;
double value_at(size_t owner) { return seen.at(owner)->state().at("weight").item<double>(); }

// One parameter w of value 2. The loss is w * x, so its gradient is x.
class Model {
 public:
  explicit Model(int64_t owner) {
    const at::Tensor weight = at::full({1}, 2.0, at::kDouble).requires_grad_(true);
    set_ =
        std::make_shared<weft::ParameterSet>(std::vector<weft::NamedParameter>{{"weight", weight}});
    seen.at(static_cast<size_t>(owner)) = set_;
  }
  at::Tensor forward(const at::Tensor& x) {
    return set_->read(weft::CallScope::current().context)[0] * x;
  }
  std::shared_ptr<weft::ParameterSet> parameters() { return set_; }

 private:
  std::shared_ptr<weft::ParameterSet> set_;
};
WEFT_REGISTER_CLASS(Model, weft::constructor<int64_t>(), &Model::forward, &Model::parameters);

struct Death {
  std::string name;
  std::vector<size_t> prepared, committed;
};

void PrintTo(const Death& death, std::ostream* out) { *out << death.name; }

class DeadCallerTest : public ::testing::TestWithParam<Death> {
 protected:
  RuntimeWorld world_{weft::testing::with_autograd(kOwners + 1)};
};
INSTANTIATE_TEST_SUITE_P(Points, DeadCallerTest,
                         ::testing::Values(Death{"BeforeTheLastPrepare", {0, 1}, {}},
                                           Death{"BeforeTheFirstCommit", {0, 1, 2}, {}},
                                           Death{"AfterTheFirstCommit", {0, 1, 2}, {0}},
                                           Death{"AfterTheLastOwnersCommit", {0, 1, 2}, {2}},
                                           Death{"BeforeTheLastCommit", {0, 1, 2}, {1, 2}},
                                           Death{"AfterTheLastCommit", {0, 1, 2}, {0, 1, 2}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeadCallerTest, ItsOwnersApplyTheStepAllOrNone) {
  {
    weft::CallScopeGuard guard(world_.scope(kCaller));
    std::vector<RRef<Model>> models;
    std::vector<RRef<OptimizerShard>> shards;
    const std::vector<ShardGroup> groups{{{}, weft::SgdSettings{.lr = kRate}}};
    for (size_t i = 0; i < kOwners; ++i) {
      models.push_back(weft::remote<Model>(world_.id(i), static_cast<int64_t>(i)));
      shards.push_back(models[i]
                           .remote(&Model::parameters)
                           .remote(&weft::dist_optim_internal::make_optimizer_shard, groups,
                                   weft::UpdateMode::kLocked, ""));
    }
    for (size_t i = 0; i < kOwners; ++i) {
      std::vector<RRef<OptimizerShard>> others = shards;
      others.erase(others.begin() + static_cast<int64_t>(i));
      shards[i].rpc_sync(&OptimizerShard::meet, uint64_t{1}, others);
    }
    Context context;
    at::Tensor loss;
    for (size_t i = 0; i < kOwners; ++i) {
      const at::Tensor x = at::full({1}, static_cast<double>(i + 1), at::kDouble);
      const at::Tensor part = models[i].rpc_sync(&Model::forward, x);
      loss = loss.defined() ? loss + part : part;
    }
    context.backward({loss.sum()});
    StepRequest request;
    request.step = StepId{{world_.id(kCaller), 1}, 1};
    request.context = context.id();
    request.update.learning_rates = {kRate};
    for (const size_t i : GetParam().prepared)
      shards[i].rpc_sync(&OptimizerShard::prepare, request);
    request.update.clip = 0.5;
    for (const size_t i : GetParam().committed) {
      shards[i].rpc_sync(&OptimizerShard::commit, request.step, request.update);
    }
    world_.kill(kCaller);
  }
  const bool applied = !GetParam().committed.empty();
  for (size_t i = 0; i < kOwners; ++i) {
    const double expected = applied ? 2.0 - kRate * 0.5 * static_cast<double>(i + 1) : 2.0;
    EXPECT_TRUE(eventually([&] { return value_at(i) == expected; }))
        << "owner " << i << " has " << value_at(i) << ", not " << expected;
  }
  // Once nothing of the caller is left, nothing changes any more.
  EXPECT_TRUE(world_.nothing_left());
  for (size_t i = 0; i < kOwners; ++i) {
    const double expected = applied ? 2.0 - kRate * 0.5 * static_cast<double>(i + 1) : 2.0;
    EXPECT_EQ(value_at(i), expected) << "owner " << i;
  }
}

}  // namespace dead_caller_test
