#include "weft/rref/aten.h"

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/context.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace aten_test {

using ::testing::HasSubstr;
using weft::aten;
using weft::Future;
using weft::Ran;
using weft::RpcError;
using weft::WorkerOptions;
using weft::testing::error_of;
using weft::testing::WorkerWorld;

// Worker 1 allows the operators that the tests call. Worker 0 allows none.
void allow(size_t rank, WorkerOptions& options) {
  if (rank != 1) return;
  options.allow_operators = {"aten::add.Tensor",   "aten::mul.Tensor",   "aten::sum",
                             "aten::sort",         "aten::cat",          "aten::div.Tensor_mode",
                             "aten::index.Tensor", "aten::avg_pool2d",   "aten::equal",
                             "aten::split.Tensor", "aten::to.dtype",     "aten::matmul",
                             "aten::add_.Tensor",  "aten::_assert_async"};
}

class AtenTest : public ::testing::Test {
 protected:
  ~AtenTest() override {
    scope_.reset();
    world_.shutdown_all();  // the worker is alive, and nothing is left
  }
  WorkerWorld world_{2, allow};
  std::optional<weft::WorkerScope> scope_{std::in_place, world_[0]};
  const at::Tensor a_ = at::arange(6, at::dtype(at::kFloat)).view({2, 3});
  const at::Tensor b_ = at::ones({2, 3});
};

TEST_F(AtenTest, RunsAnOperatorThereWithDefaultsForWhatIsLeftOut) {
  EXPECT_TRUE(at::equal(weft::rpc_sync("worker1", aten("aten::add.Tensor"), a_, b_), a_.add(b_)));
  // With the argument alpha.
  EXPECT_TRUE(
      at::equal(weft::rpc_sync("worker1", aten("aten::add.Tensor"), a_, b_, 2), a_.add(b_, 2)));
  Future<at::Tensor> future = weft::rpc_async("worker1", aten("aten::sum"), a_);
  EXPECT_EQ(future.wait().item<float>(), 15.0f);
}

TEST_F(AtenTest, TakesAndGivesWhatOperatorsDo) {
  const auto [values, indices] = weft::rpc_sync(
      "worker1", aten<std::tuple<at::Tensor, at::Tensor>>("aten::sort"), a_, 1, true);
  EXPECT_EQ(values[0][0].item<float>(), 2.0f);
  EXPECT_EQ(indices[0][0].item<int64_t>(), 2);
  const auto parts =
      weft::rpc_sync("worker1", aten<std::vector<at::Tensor>>("aten::split.Tensor"), a_, 1);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(at::equal(weft::rpc_sync("worker1", aten("aten::cat"), parts), a_));
  EXPECT_TRUE(at::equal(
      weft::rpc_sync("worker1", aten("aten::div.Tensor_mode"), a_, at::full({}, 2), "floor"),
      a_.div(2, "floor")));
  EXPECT_TRUE(at::equal(weft::rpc_sync("worker1", aten("aten::index.Tensor"), a_,
                                       std::vector<at::Tensor>{at::Tensor(), at::tensor({2, 0})}),
                        a_.index_select(1, at::tensor({2, 0}))));
  EXPECT_EQ(weft::rpc_sync("worker1", aten("aten::avg_pool2d"), at::ones({1, 4, 4}), 2).numel(), 4);
  EXPECT_TRUE(weft::rpc_sync("worker1", aten<bool>("aten::equal"), a_, a_));
  EXPECT_EQ(weft::rpc_sync("worker1", aten("aten::to.dtype"), a_, at::kDouble).scalar_type(),
            at::kDouble);
  weft::rpc_sync("worker1", aten<void>("aten::_assert_async"), at::ones({}));
}

TEST_F(AtenTest, AnOperatorThatWritesToItsArgumentWritesToTheCalleesCopy) {
  EXPECT_TRUE(at::equal(weft::rpc_sync("worker1", aten("aten::add_.Tensor"), a_, b_),
                        at::arange(1, 7, at::dtype(at::kFloat)).view({2, 3})));
  EXPECT_EQ(a_.sum().item<float>(), 15.0f);
}

TEST_F(AtenTest, RemoteLeavesTheResultThere) {
  const weft::RRef<at::Tensor> sum = weft::remote("worker1", aten("aten::add.Tensor"), a_, b_, 2);
  EXPECT_EQ(sum.owner(), world_[1].id());
  EXPECT_TRUE(at::equal(sum.to_here(), a_.add(b_, 2)));
  const auto sorted =
      weft::remote("worker1", aten<std::tuple<at::Tensor, at::Tensor>>("aten::sort"), a_, 1, true);
  EXPECT_EQ(std::get<1>(sorted.to_here())[0][0].item<int64_t>(), 2);
  const auto parts =
      weft::remote("worker1", aten<std::vector<at::Tensor>>("aten::split.Tensor"), a_, 1);
  EXPECT_EQ(parts.to_here().size(), 2u);
  EXPECT_TRUE(weft::remote("worker1", aten<bool>("aten::equal"), a_, a_).to_here());
  weft::remote("worker1", aten<void>("aten::_assert_async"), at::ones({})).to_here();
  // On the worker itself.
  weft::WorkerScope there(world_[1]);
  const weft::RRef<at::Tensor> own = weft::remote("worker1", aten("aten::sum"), a_);
  EXPECT_EQ(own.local_value().item<float>(), 15.0f);
}

TEST_F(AtenTest, EachUseOfARemoteResultTellsWhatIsWrong) {
  const auto error = [&](const auto& rref) { return error_of([&] { rref.to_here(); }); };
  const absl::Status denied = error(weft::remote("worker1", aten("aten::sub.Tensor"), a_, b_));
  EXPECT_EQ(denied.code(), absl::StatusCode::kPermissionDenied) << denied;
  EXPECT_FALSE(weft::is_rref_lost(denied));
  EXPECT_EQ(error(weft::remote("worker1", aten("aten::add.Tensor"), a_)).code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status threw =
      error(weft::remote("worker1", aten("aten::matmul"), at::ones({2, 3}), at::ones({2, 3})));
  EXPECT_EQ(threw.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(threw.message()), HasSubstr("shapes cannot be multiplied"));
  const absl::Status other = error(weft::remote("worker1", aten<int64_t>("aten::sum"), a_));
  EXPECT_EQ(other.code(), absl::StatusCode::kInternal) << other;
}

TEST_F(AtenTest, GradientsFlowThroughARemoteResult) {
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  weft::dist_autograd::Context context;
  const weft::RRef<at::Tensor> product = weft::remote("worker1", aten("aten::mul.Tensor"), x, a_);
  context.backward({product.to_here().sum()});
  EXPECT_TRUE(at::equal(context.gradient(x), a_));
}

TEST_F(AtenTest, NothingRunsThatTheCalleeDoesNotAllow) {
  weft::WorkerScope here(world_[1]);
  const absl::Status nothing_allowed =
      error_of([&] { return weft::rpc_sync("worker0", aten("aten::add.Tensor"), a_, b_); });
  const absl::Status another =
      error_of([&] { return weft::rpc_sync("worker1", aten("aten::sub.Tensor"), a_, b_); });
  const absl::Status no_operator =
      error_of([&] { return weft::rpc_sync("worker1", aten("no::such"), a_, b_); });
  for (const absl::Status& status : {nothing_allowed, another, no_operator}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  }
  EXPECT_THAT(std::string(another.message()), HasSubstr("'aten::sub.Tensor'"));
}

TEST_F(AtenTest, ArgumentsThatDoNotFitTheSchemaAreNamedAndNothingRuns) {
  const auto refused = [&](auto... argument) {
    const absl::Status status =
        error_of([&] { return weft::rpc_sync("worker1", aten("aten::add.Tensor"), argument...); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(weft::ran_of(status), Ran::kNo);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(a_), HasSubstr("argument 2 of 'aten::add.Tensor', Tensor other, is missing"));
  EXPECT_THAT(refused(a_, 2.0), HasSubstr("argument 2 of 'aten::add.Tensor', Tensor other, has"));
  EXPECT_THAT(refused(a_, b_, "two"), HasSubstr("argument 3"));
  EXPECT_THAT(refused(a_, std::nullopt), HasSubstr("argument 2"));
  EXPECT_THAT(refused(a_, b_, 1, 1), HasSubstr("takes 3 arguments, not 4"));
}

TEST_F(AtenTest, ANumberThatIsNoDtypeOrLayoutReachesNoKernel) {
  for (const int64_t number : {int64_t{-1}, int64_t{9999}, int64_t{1} << 40}) {
    const absl::Status status =
        error_of([&] { return weft::rpc_sync("worker1", aten("aten::to.dtype"), a_, number); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ScalarType dtype"));
  }
  EXPECT_EQ(error_of([&] {
              return weft::rpc_sync("worker1", aten("aten::to.dtype"), a_, at::kFloat, false, false,
                                    77);
            }).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(AtenTest, WhatTheOperatorThrowsReachesTheCaller) {
  const absl::Status status = error_of([&] {
    return weft::rpc_sync("worker1", aten("aten::matmul"), at::ones({2, 3}), at::ones({2, 3}));
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(weft::ran_of(status), Ran::kYes);
  EXPECT_THAT(std::string(status.message()), HasSubstr("shapes cannot be multiplied"));
}

TEST_F(AtenTest, AResultOfAnotherTypeIsAnErrorAndNoException) {
  for (const absl::Status& status :
       {weft::rpc_async("worker1", aten<int64_t>("aten::sum"), a_).result().status(),
        weft::rpc_async("worker1", aten("aten::sort"), a_).result().status(),
        weft::rpc_async("worker1", aten<void>("aten::sum"), a_).result().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(weft::ran_of(status), Ran::kYes);
  }
}

TEST_F(AtenTest, GradientsFlowThroughIt) {
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  const at::Tensor y = a_.clone().requires_grad_();
  weft::dist_autograd::Context context;
  const at::Tensor product = weft::rpc_sync("worker1", aten("aten::mul.Tensor"), x, y);
  context.backward({weft::rpc_sync("worker1", aten("aten::add.Tensor"), product, y, 3).sum()});
  EXPECT_TRUE(at::equal(context.gradient(x), a_));
  EXPECT_TRUE(at::equal(context.gradient(y), at::ones({2, 3}).add(3)));
}

TEST(AtenOptionsTest, OperatorsThatTakePathsGeneratorsOrStorageAreRefusedAlways) {
  WorkerWorld world(0);
  WorkerOptions options = world.options_of(0, 1);
  options.allow_operators = {
      "aten::add.Tensor",     "aten::from_file",           "aten::normal_",
      "aten::rand.generator", "aten::set_.source_Storage", "aten::no_such_operator",
      "prim::device"};
  try {
    weft::Worker::join(options);
    FAIL() << "joined";
  } catch (const RpcError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    const std::string text(error.status().message());
    EXPECT_THAT(text, HasSubstr("'aten::from_file' takes a path"));
    EXPECT_THAT(text, HasSubstr("'aten::normal_' takes a generator"));
    EXPECT_THAT(text, HasSubstr("'aten::rand.generator' takes a generator"));
    EXPECT_THAT(text, HasSubstr("'aten::set_.source_Storage' takes a storage"));
    EXPECT_THAT(text, HasSubstr("'aten::no_such_operator' is no operator"));
    EXPECT_THAT(text, HasSubstr("'prim::device' is no operator"));
    EXPECT_THAT(text, ::testing::Not(HasSubstr("aten::add")));
  }
}

}  // namespace aten_test
