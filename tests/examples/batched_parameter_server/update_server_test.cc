// The server of batched updates: its steps, its answers, and which callers a mistake reaches.
#include "weft/examples/batched_parameter_server/update_server.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rref/rref.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/runtime_world.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using weft::testing::eventually;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;
using Tensors = UpdateServer::Tensors;

constexpr double kRate = 0.5;

// The trainers are on two workers, the server is on the third.
class UpdateServerTest : public ::testing::Test {
 protected:
  RRef<UpdateServer> serve(ServerMode mode, size_t trainers) {
    const CallScopeGuard scope(world_.scope(0));
    return make_rref(std::make_unique<UpdateServer>(mode, trainers, kRate, /*seed=*/3));
  }
  // The reference as a worker has it to which it was sent.
  template <class F>
  auto on(size_t worker, const F& code) {
    const CallScopeGuard scope(world_.scope(worker));
    return code();
  }
  static Tensors gradients(double value) {
    Tensors gradients;
    for (const auto& parameter : PictureNet(3).parameters()) {
      gradients.push_back(at::full_like(parameter, value).detach());
    }
    return gradients;
  }
  static void expect_model(const Tensors& model, double moved) {
    const auto first = PictureNet(3).parameters();
    ASSERT_EQ(model.size(), first.size());
    for (size_t i = 0; i < model.size(); ++i) {
      EXPECT_TRUE(at::allclose(model[i], first[i] - moved, 1e-5, 1e-5)) << "parameter " << i;
    }
  }

  RuntimeWorld world_{TransportKind::kInproc, 3};
};

TEST_F(UpdateServerTest, ABatchedUpdateIsOneStepBySumOfAllAndEveryoneGetsTheSame) {
  const auto server = serve(ServerMode::kBatched, 2);
  UpdateServer& local = server.local_value();
  const Future<Tensors> one = on(0, [&] { return local.update_and_fetch_model(gradients(1), 1); });
  EXPECT_FALSE(one.done());
  const Future<Tensors> other =
      on(0, [&] { return local.update_and_fetch_model(gradients(3), 3); });
  expect_model(one.wait(), kRate * 4);
  const Tensors model = other.wait();
  for (size_t i = 0; i < model.size(); ++i) EXPECT_TRUE(model[i].is_same(one.wait()[i]));
  EXPECT_EQ(local.counts().steps, 1u);
  EXPECT_EQ(local.counts().updates, 2u);
  expect_model(local.fetch_model(), kRate * 4);
}

TEST_F(UpdateServerTest, WithoutWaitingEachUpdateIsAStep) {
  for (const ServerMode mode : {ServerMode::kLocked, ServerMode::kHogwild}) {
    const auto server = serve(mode, 2);
    UpdateServer& local = server.local_value();
    const Tensors before = local.fetch_model();
    expect_model(local.update_and_fetch_model(gradients(1), 1).wait(), kRate);
    expect_model(local.update_and_fetch_model(gradients(2), 2).wait(), kRate * 3);
    EXPECT_EQ(local.counts().steps, 2u);
    expect_model(before, 0);  // tensors that were returned are not written
  }
}

TEST_F(UpdateServerTest, AGradientThatDoesNotFitIsRefusedBeforeOthersWaitForIt) {
  const auto server = serve(ServerMode::kBatched, 2);
  UpdateServer& local = server.local_value();
  const auto refusal = [&](Tensors wrong) {
    return on(0, [&] {
      return testing::error_of([&] { (void)local.update_and_fetch_model(std::move(wrong), 7); });
    });
  };
  const Future<Tensors> waits =
      on(0, [&] { return local.update_and_fetch_model(gradients(1), 1); });
  EXPECT_THAT(refusal({}).message(), HasSubstr("8 gradients, but 0 came"));
  for (const at::Tensor& wrong : {at::ones({3}), at::ones({16, 1, 3, 3}, at::kLong), at::Tensor(),
                                  at::full({16, 1, 3, 3}, NAN), at::full({16, 1, 3, 3}, 1e30)}) {
    Tensors update = gradients(1);
    update[0] = wrong;
    EXPECT_EQ(refusal(update).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refusal(update).message(), HasSubstr("features.first.weight"));
  }
  EXPECT_FALSE(waits.done());
  on(0, [&] { return local.update_and_fetch_model(gradients(1), 1); }).wait();
  expect_model(waits.wait(), kRate * 2);
}

// In float, (900 - 900) + 1e-5 is not (1e-5 - 900) + 900.
TEST_F(UpdateServerTest, TheSumDoesNotDependOnWhoComesFirst) {
  const std::vector<double> values{0, 900, -900, 1e-5};  // by trainer
  std::vector<Tensors> models;
  for (const std::vector<int>& order : {std::vector{1, 2, 3}, {3, 2, 1}, {2, 3, 1}}) {
    const auto server = serve(ServerMode::kBatched, 3);
    std::vector<Future<Tensors>> futures;
    for (const int trainer : order) {
      futures.push_back(on(0, [&] {
        return server.local_value().update_and_fetch_model(
            gradients(values[static_cast<size_t>(trainer)]), trainer);
      }));
    }
    models.push_back(futures.front().wait());
  }
  for (size_t i = 0; i < models[0].size(); ++i) {
    EXPECT_TRUE(models[0][i].equal(models[1][i])) << i;
    EXPECT_TRUE(models[0][i].equal(models[2][i])) << i;
  }
}

TEST_F(UpdateServerTest, WhoIsLeftDoesNotWaitForTheDead) {
  const auto server = serve(ServerMode::kBatched, 3);
  UpdateServer& local = server.local_value();
  const auto update = [&] { return local.update_and_fetch_model(gradients(1), 1); };
  const Future<Tensors> one = on(0, update), other = on(0, update);
  EXPECT_FALSE(one.done());
  local.one_trainer_less();
  expect_model(one.wait(), kRate * 2);
  expect_model(other.wait(), kRate * 2);
}

}  // namespace
}  // namespace weft::examples
