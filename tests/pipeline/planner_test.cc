// plan_layers(): layers are measured on the workers, and the plan makes a pipeline that trains.
#include "weft/pipeline/planner.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/pipeline/profile/allocated_bytes.h"
#include "weft/pipeline/profile/layer_profile.h"
#include "weft/pipeline/stage/stage_loss.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace planner_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::Pipeline;
using weft::PipelinePlan;
using weft::PlannerOptions;
using weft::StageCosts;
using weft::dist_autograd::Context;
using weft::pipeline_internal::AllocatedBytes;
using weft::testing::error_of;
using weft::testing::WorkerWorld;

constexpr int64_t kLayers = 5;

// Layers first to last-1 of a model: tanh(x w). Layer `broken` throws.
class Layers : public torch::nn::Module {
 public:
  Layers(int64_t first, int64_t last, int64_t width, int64_t broken)
      : first_(first), broken_(broken) {
    for (int64_t i = first; i < last; ++i) {
      weights_.push_back(register_parameter(
          "weight" + std::to_string(i),
          at::arange(width * width, at::kFloat).reshape({width, width}).add(i).sin().div(width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (first_ + static_cast<int64_t>(i) == broken_) throw std::runtime_error("it is broken");
      x = x.mm(weights_[i]).tanh();
    }
    return x;
  }

 private:
  const int64_t first_, broken_;
  std::vector<at::Tensor> weights_;
};
WEFT_REGISTER_MODULE(Layers, int64_t, int64_t, int64_t, int64_t);

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}
WEFT_REGISTER_FUNCTION(squared_error);

PlannerOptions options() {
  return {.workers = {"worker1", "worker2"},
          .layers = kLayers,
          .micro_batches = {2, 3},
          .loss = squared_error,
          .seconds = 0};
}

// The losses of three steps must be those of the same model in this process.
void expect_steps_as_one_process(Pipeline& pipeline, int micro_batches, const at::Tensor& x,
                                 const at::Tensor& y) {
  weft::DistributedOptimizer<torch::optim::SGD> optimizer(pipeline.parameters(),
                                                          torch::optim::SGDOptions(0.5));
  Layers model(0, kLayers, 8, -1);
  torch::optim::SGD local(model.parameters(), torch::optim::SGDOptions(0.5));
  const auto inputs = x.tensor_split(micro_batches), targets = y.tensor_split(micro_batches);
  for (int step = 0; step < 3; ++step) {
    const Context context;
    const double loss = pipeline.step(context, {x}, {y}).loss;
    optimizer.step(context);
    double expected = 0;
    local.zero_grad();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor part = squared_error(model.forward(inputs[i]), targets[i]);
      part.backward(at::full_like(part, 1.0 / micro_batches));
      expected += part.item<double>() / micro_batches;
    }
    local.step();
    EXPECT_DOUBLE_EQ(loss, expected) << "step " << step;
  }
}

TEST(PlannerTest, APlanMakesAPipelineThatTrainsAsOneProcess) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  const at::Tensor x = torch::randn({12, 8}), y = torch::randn({12, 8});
  const PipelinePlan plan = weft::plan_layers<Layers>(options(), {x}, {y}, int64_t{8}, int64_t{-1});
  EXPECT_EQ(plan.cuts.front(), 0);
  EXPECT_EQ(plan.cuts.back(), kLayers);
  EXPECT_GT(plan.price.step, 0);
  for (const auto& worker : plan.price.workers) {
    EXPECT_GT(worker.peak_bytes, 0);
    EXPECT_GT(worker.bytes_sent, 0);
  }
  const int micro_batches = plan.schedule.micro_batches();
  EXPECT_TRUE(micro_batches == 2 || micro_batches == 3);

  Pipeline pipeline(weft::planned_stages<Layers>(plan, options().workers, int64_t{8}, int64_t{-1}),
                    {.loss = squared_error, .schedule = plan.schedule});
  expect_steps_as_one_process(pipeline, micro_batches, x, y);
}

TEST(PlannerTest, StagesOfAPlanMayRecompute) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  const at::Tensor x = torch::randn({12, 8}), y = torch::randn({12, 8});
  PlannerOptions four = options();
  four.micro_batches = {4};
  const PipelinePlan plan = weft::plan_layers<Layers>(four, {x}, {y}, int64_t{8}, int64_t{-1});
  Pipeline pipeline(weft::planned_stages<Layers>(plan, four.workers, int64_t{8}, int64_t{-1}),
                    {.loss = squared_error, .schedule = plan.schedule.recomputing({0, 1})});
  expect_steps_as_one_process(pipeline, 4, x, y);
}

TEST(PlannerTest, MeasuresTheBytesOfALayer) {
  WorkerWorld world(1);
  constexpr int64_t kWidth = 64, kRows = 1000, kBytes = kWidth * kRows * 4;
  weft::pipeline_internal::ProfileRequest request;
  for (int64_t i = 0; i < 3; ++i) {
    request.layers.push_back(
        weft::HostedModule<Layers>("worker0", i, i + 1, kWidth, int64_t{-1}).host());
  }
  request.inputs = {torch::randn({kRows, kWidth})};
  request.target = torch::randn({kRows, kWidth});
  request.loss = weft::pipeline_internal::name_of_loss(squared_error);
  request.seconds = 0;
  const Context context;
  const std::vector<StageCosts> costs =
      weft::rpc_sync("worker0", weft::pipeline_internal::profile_layers, request);
  ASSERT_EQ(costs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(costs[i].input_bytes, kBytes);
    EXPECT_EQ(costs[i].output_bytes, i == 2 ? 4 : kBytes) << "the last layer gives the loss";
    EXPECT_EQ(costs[i].gradient_bytes, kWidth * kWidth * 4);
    EXPECT_GT(costs[i].forward, 0);
    EXPECT_GT(costs[i].weight_gradients, 0);
  }
  // tanh keeps its result. The inputs of mm are counted with what the layers before keep.
  EXPECT_EQ(costs[0].kept_bytes, kBytes);
  EXPECT_EQ(costs[1].kept_bytes, kBytes);
  // The first layer has no input gradients, so all its work is left for the weights: it keeps its
  // input, the result of tanh and its gradient. The next one keeps its input, and the gradient of
  // mm's result.
  EXPECT_EQ(costs[0].kept_for_weights, 3 * kBytes);
  EXPECT_EQ(costs[1].kept_for_weights, 2 * kBytes);
  // The loss keeps its target too.
  EXPECT_GE(costs[2].kept_bytes, 2 * kBytes);
  EXPECT_LE(costs[2].kept_bytes, 3 * kBytes);
  EXPECT_GE(costs[2].kept_for_weights, 2 * kBytes);
  EXPECT_LE(costs[2].kept_for_weights, 3 * kBytes);
}

TEST(PlannerTest, AMeasurementEndsWithItsCall) {
  WorkerWorld world(1);
  const weft::WorkerScope scope(world[0]);
  weft::pipeline_internal::ProfileRequest request;
  request.layers = {weft::HostedModule<Layers>("worker0", 0, 1, 8, int64_t{-1}).host()};
  request.inputs = {torch::randn({4, 8})};
  request.target = torch::randn({4, 8});
  request.loss = weft::pipeline_internal::name_of_loss(squared_error);
  request.seconds = 1e9;
  const Context context;
  weft::ManualClock clock;
  weft::CallContext late(clock, weft::WorkerId(), "nobody", clock.now());
  const absl::Status status =
      error_of([&] { weft::pipeline_internal::profile_layers(late, request); });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(PlannerTest, AllocatedBytesCountsWhatWasAllocatedMeanwhile) {
  at::Tensor before = torch::zeros({100});
  const AllocatedBytes bytes;
  EXPECT_EQ(bytes.now(), 0);
  at::Tensor x = torch::zeros({1000});
  EXPECT_EQ(bytes.now(), 4000);
  before = at::Tensor();
  EXPECT_EQ(bytes.now(), 4000);
  x = at::Tensor();
  EXPECT_EQ(bytes.now(), 0);
}

TEST(PlannerTest, BadInputIsRefusedAndNamed) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  const at::Tensor x = torch::randn({12, 8}), y = torch::randn({12, 8});
  const auto error = [&](const std::function<void(PlannerOptions&)>& damage, at::Tensor target,
                         int64_t broken = -1) {
    PlannerOptions damaged = options();
    damage(damaged);
    return error_of([&] {
             weft::plan_layers<Layers>(damaged, {x}, {std::move(target)}, int64_t{8}, broken);
           })
        .ToString();
  };
  const auto nothing = [](PlannerOptions&) {};
  EXPECT_THAT(error([](auto& o) { o.workers.clear(); }, y), HasSubstr("needs a worker"));
  EXPECT_THAT(error([](auto& o) { o.layers = 1; }, y),
              HasSubstr("2 workers cannot share 1 layers"));
  EXPECT_THAT(error([](auto& o) { o.layers = 1 << 30; }, y), HasSubstr("at most 4096"));
  EXPECT_THAT(error([](auto& o) { o.micro_batches.clear(); }, y),
              HasSubstr("micro-batches to try"));
  EXPECT_THAT(error([](auto& o) { o.micro_batches = {13}; }, y),
              HasSubstr("do not divide into 13 micro-batches of the batch of 12"));
  EXPECT_THAT(error(nothing, y.narrow(0, 0, 11)), HasSubstr("inputs of size 12"));
  EXPECT_THAT(error([](auto& o) { o.workers[1] = "worker1"; }, y), HasSubstr("named twice"));
  EXPECT_THAT(error([](auto& o) { o.loss = nullptr; }, y), HasSubstr("needs a loss"));
  EXPECT_THAT(error([](auto& o) { o.memory = {1, 1}; }, y), HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(error([](auto& o) { o.memory = {1}; }, y), HasSubstr("1 memory limits"));
  EXPECT_THAT(error([](auto& o) { o.workers[1] = "nobody"; }, y), HasSubstr("nobody"));
  EXPECT_THAT(error(nothing, y, 3), HasSubstr("3F0: it is broken"));
}

}  // namespace planner_test
