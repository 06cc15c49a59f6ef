// Gradients, joins and buckets equal those of Python's DDP, as the golden files have them.
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "absl/strings/str_cat.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/reducer/bucket_assignment.h"
#include "weft/tests/ddp/golden.h"
#include "weft/tests/ddp/small_models.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using nlohmann::json;
using GroupPtr = std::shared_ptr<ProcessGroup>;

// Prints as its name, because a case is long.
struct Case {
  json test;
  friend std::ostream& operator<<(std::ostream& out, const Case& one) {
    return out << one.test.at("name");
  }
};

std::vector<Case> cases_of(const std::string& file, const std::string& kind = "") {
  std::vector<Case> cases;
  for (json& one : golden_cases(file)) {
    if (one.value("set_last_bucket_cap", false)) continue;  // weft has no such option
    if (kind.empty() || one.at("kind") == kind) cases.push_back({std::move(one)});
  }
  return cases;
}
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.test.at("name").get<std::string>(), "_of_",
                      info.param.test.at("world").get<int>());
}

DdpOptions options_of(const json& given) {
  DdpOptions options;
  options.gradient_as_bucket_view = given.value("gradient_as_bucket_view", false);
  options.find_unused_parameters = given.value("find_unused_parameters", false);
  options.static_graph = given.value("static_graph", false);
  options.broadcast_buffers = given.value("broadcast_buffers", true);
  if (given.contains("bucket_cap_mb")) options.bucket_cap_mb = {given.at("bucket_cap_mb")};
  if (given.contains("bucket_cap_mb_list")) {
    options.bucket_cap_mb = given.at("bucket_cap_mb_list").get<std::vector<double>>();
  }
  return options;
}

void expect_equal(const std::string& what, const at::Tensor& own, const json& golden) {
  if (golden.is_null()) {
    EXPECT_FALSE(own.defined()) << what << " " << own;
    return;
  }
  ASSERT_TRUE(own.defined()) << what;
  const at::Tensor truth = tensor_of(golden);
  const at::Tensor dense = (own.is_sparse() ? own.to_dense() : own).to(torch::kDouble);
  ASSERT_EQ(dense.sizes(), truth.sizes()) << what;
  EXPECT_LE((dense - truth).abs().max().item<double>(), 1e-12) << what << "\n" << dense << truth;
}

// Makes the model with which the rank of `mine` starts. A rank without parameters of its own starts
// with those of rank 0.
std::shared_ptr<SmallModel> model_of(const json& test, const json& mine) {
  const json& start = mine.contains("parameters") ? mine : test.at("ranks").at(0);
  auto model = std::make_shared<SmallModel>(test.at("model"));
  model->load_numbers(start.at("parameters"));
  model->load_numbers(start.at("buffers"));
  return model;
}

class GoldenGradients : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenGradients, EqualPythons) {
  json test = GetParam().test;
  if (test.at("name") == "unused_old_gradients_bucket_view") {
    // If no rank used a parameter, Python keeps its old gradient without bucket views and averages
    // it with them. Weft keeps it in both cases.
    for (const Case& one : cases_of("gradients")) {
      if (one.test.at("name") != "unused_old_gradients") continue;
      const json options = test.at("options");
      test = one.test;
      test["options"] = options;
    }
  }
  run_ranks(test.at("world"), [&](GroupPtr group) {
    const auto rank = static_cast<size_t>(group->rank());
    const json& mine = test.at("ranks").at(rank);
    const auto model = model_of(test, mine);
    model->train(test.at("training").get<bool>());
    if (mine.contains("old_gradients")) {
      for (auto& one : model->named_parameters()) {
        one.value().mutable_grad() = tensor_of(mine.at("old_gradients").at(one.key()));
      }
    }
    DistributedDataParallel ddp(model, group, options_of(test.at("options")));
    for (size_t index = 0; index < test.at("steps").size(); ++index) {
      const json& step = test.at("steps").at(index);
      const json& own = mine.at("steps").at(index);
      if (step.at("zero_grad")) ddp.zero_grad();
      const auto run = [&] {
        const at::Tensor loss =
            SmallModel::loss_of(ddp(model->input_of(own), own.value("use_side", true)), own);
        loss.backward();
      };
      if (step.at("sync")) {
        run();
      } else {
        const auto guard = ddp.no_sync();
        run();
      }
      const json& golden = step_value(test, rank, index, "gradients");
      for (const auto& one : model->named_parameters()) {
        if (!golden.contains(one.key())) continue;  // the second name of a shared parameter
        expect_equal(absl::StrCat("rank ", rank, ", step ", index, ", ", one.key()),
                     one.value().grad(), golden.at(one.key()));
      }
      if (test.at("model") != "norm") continue;
      const json& buffers = step_value(test, rank, index, "buffers");
      for (const auto& one : model->named_buffers()) {
        expect_equal(absl::StrCat("rank ", rank, ", step ", index, ", ", one.key()), one.value(),
                     buffers.at(one.key()));
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Case, GoldenGradients, ::testing::ValuesIn(cases_of("gradients")),
                         name_of);

class GoldenJoin : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenJoin, EqualsPythons) {
  const json& test = GetParam().test;
  run_ranks(test.at("world"), [&](GroupPtr group) {
    const auto rank = static_cast<size_t>(group->rank());
    const json& mine = test.at("ranks").at(rank);
    const auto model = model_of(test, mine);
    DistributedDataParallel ddp(model, group, options_of(test.at("options")));
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(test.at("lr")));
    JoinOptions options;
    options.divide_by_initial_world_size = test.at("divide_by_initial_world_size");
    options.throw_on_early_termination = test.at("throw_on_early_termination");
    size_t step = 0;
    bool threw = false;
    try {
      ddp.join(
          [&] {
            for (const json& batch : mine.at("batches")) {
              optimizer.zero_grad();
              SmallModel::loss_of(ddp(model->input_of(batch), batch.value("use_side", true)), batch)
                  .backward();
              optimizer.step();
              const json& golden = step_value(test, rank, step, "parameters");
              for (const auto& one : model->named_parameters()) {
                expect_equal(absl::StrCat("rank ", rank, ", step ", step, ", ", one.key()),
                             one.value().detach(), golden.at(one.key()));
              }
              ++step;
            }
          },
          options);
    } catch (const c10::Error&) {
      threw = true;
    }
    const json& error = mine.contains("error") ? mine.at("error") : test.at("error");
    EXPECT_EQ(threw, !error.is_null());
    const json& after = mine.contains("parameters_after") ? mine : test;
    for (const auto& one : model->named_parameters()) {
      expect_equal(absl::StrCat("rank ", rank, ", after, ", one.key()), one.value().detach(),
                   after.at("parameters_after").at(one.key()));
    }
    for (const auto& one : model->named_buffers()) {
      const json& buffers = mine.contains("buffers_after") ? mine : test;
      expect_equal(absl::StrCat("rank ", rank, ", after, ", one.key()), one.value(),
                   buffers.at("buffers_after").at(one.key()));
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Case, GoldenJoin, ::testing::ValuesIn(cases_of("join")), name_of);

class GoldenAssignment : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenAssignment, EqualsPythons) {
  const json& test = GetParam().test;
  const auto limits = test.at("limits").get<std::vector<uint64_t>>();
  const auto order = test.at("order").get<std::vector<size_t>>();
  const json& listed = test.at("parameters");
  std::vector<ddp_internal::ParameterSize> parameters(listed.size());
  for (size_t i = 0; i < listed.size(); ++i) {
    // Python takes the parameters in the given order, but looks up by index whether one is sparse.
    const std::string dtype = listed[i].at("dtype");
    const size_t index = order.empty() ? i : order[i];
    parameters[index] = {listed[i].at("bytes"),
                         static_cast<int64_t>(std::hash<std::string>()(dtype)),
                         listed[index].at("sparse")};
  }
  const auto golden = test.at("buckets").get<ddp_internal::Buckets>();
  ddp_internal::Buckets own =
      order.empty() ? ddp_internal::assign_buckets(parameters, limits)
                    : ddp_internal::assign_buckets_in_order(parameters, order, limits);
  // Python's DDP reverses the list itself.
  if (order.empty()) std::reverse(own.begin(), own.end());
  if (test.at("name") == "ready_order_with_dtypes") {
    // Python's order of the remaining buckets comes from a hash table.
    EXPECT_THAT(own, ::testing::UnorderedElementsAreArray(golden));
    return;
  }
  EXPECT_EQ(own, golden);
}
INSTANTIATE_TEST_SUITE_P(Case, GoldenAssignment,
                         ::testing::ValuesIn(cases_of("buckets", "assignment")), name_of);

// Square linear layers l0, l1, ... that run in a given order. If `rows` is not 0, a sparse table
// comes first.
struct Chain : torch::nn::Module {
  Chain(const json& test, std::vector<size_t> run_order)
      : width(test.at("width")), order(std::move(run_order)) {
    if (const int64_t rows = test.at("rows"); rows > 0) {
      table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, width).sparse(true)));
    }
    for (const json& dtype : test.at("dtypes")) {
      layers.push_back(
          register_module(absl::StrCat("l", layers.size()), torch::nn::Linear(width, width)));
      layers.back()->to(dtype == "float64" ? torch::kDouble : torch::kFloat);
    }
  }
  at::Tensor forward() {
    at::Tensor x =
        table.is_empty() ? torch::ones({2, width}) : table(torch::tensor({0, 1}, torch::kLong));
    for (const size_t index : order) x = layers[index](x.to(layers[index]->weight.scalar_type()));
    return x;
  }
  const int64_t width;
  const std::vector<size_t> order;
  torch::nn::Embedding table = nullptr;
  std::vector<torch::nn::Linear> layers;
};

class GoldenBuckets : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenBuckets, EqualPythons) {
  const json& test = GetParam().test;
  run_ranks(test.at("world"), [&](GroupPtr group) {
    const auto rank = static_cast<size_t>(group->rank());
    auto model =
        std::make_shared<Chain>(test, test.at("rank_orders").at(rank).get<std::vector<size_t>>());
    DistributedDataParallel ddp(model, group, options_of(test.at("options")));
    const json& iterations = test.at("ranks").at(rank).at("iterations");
    DdpLogging own = ddp.logging_data();
    const std::vector<uint64_t> first = own.bucket_bytes;
    for (size_t index = 0; index < 5; ++index) {
      const at::Tensor output = ddp();
      ddp.zero_grad();
      output.sum().backward();
      // At the end of a pass Python logs the state with which the pass began.
      const DdpLogging before = std::exchange(own, ddp.logging_data());
      const json& golden = iterations.at(index);
      EXPECT_EQ(first, golden.at("bucket_sizes").get<std::vector<uint64_t>>());
      const auto rebuilt = golden.at("rebuilt_bucket_sizes").get<std::vector<uint64_t>>();
      EXPECT_EQ(before.has_rebuilt_buckets, !rebuilt.empty()) << index;
      if (rebuilt.empty()) continue;
      EXPECT_EQ(before.bucket_bytes, rebuilt);
      EXPECT_EQ(
          before.bucket_parameters,
          golden.at("rebuilt_per_bucket_param_indices").get<std::vector<std::vector<size_t>>>());
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Case, GoldenBuckets, ::testing::ValuesIn(cases_of("buckets", "chain")),
                         name_of);

}  // namespace
}  // namespace weft::testing
