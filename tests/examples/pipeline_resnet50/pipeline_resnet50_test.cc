// The pipeline of ResNet50 computes what the unsplit model computes.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/loss.h"
#include "weft/examples/pipeline_resnet50/resnet50.h"
#include "weft/examples/pipeline_resnet50/unsplit.h"
#include "weft/pipeline/planner.h"
#include "weft/pipeline/schedules/schedules.h"
#include "weft/tests/support/worker_world.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using weft::testing::WorkerWorld;

constexpr int64_t kClasses = 10;
constexpr uint64_t kSeed = 3;
constexpr double kLearningRate = 0.05;

std::string refusal(const std::function<void()>& bad) {
  try {
    bad();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "it was accepted";
}

TEST(ResNet50, HasTheOriginalsSizesAndItsPartsAreTheWhole) {
  ResNet50Part whole(0, kResNet50Layers, 1000, kSeed);
  int64_t count = 0;
  for (const at::Tensor& parameter : whole.parameters()) count += parameter.numel();
  EXPECT_EQ(count, 25'557'032);  // the number of torchvision
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({2, 3, 64, 64});
  ResNet50Part begin(0, 7, 1000, kSeed), middle(7, 8, 1000, kSeed), end(8, 18, 1000, kSeed);
  for (auto* part : {&whole, &begin, &middle, &end}) part->eval();
  EXPECT_EQ(begin.forward(x).sizes(), at::IntArrayRef({2, 512, 8, 8}));
  EXPECT_EQ(middle.forward(begin.forward(x)).sizes(), at::IntArrayRef({2, 512, 8, 8}));
  const at::Tensor scores = whole.forward(x);
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({2, 1000}));
  EXPECT_TRUE(scores.equal(end.forward(middle.forward(begin.forward(x)))));
  EXPECT_THAT(refusal([] { ResNet50Part(3, 3, 10, 1); }), HasSubstr("[3, 3) is no range"));
  EXPECT_THAT(refusal([] { ResNet50Part(0, 18, 0, 1); }), HasSubstr("0 classes"));
  EXPECT_THAT(refusal([] { ResNet50Part(0, 19, 10, 1); }), HasSubstr("of the 18 layers"));
}

class ResNet50Pipeline : public ::testing::Test {
 protected:
  ResNet50Pipeline() : world_(3, [](size_t, WorkerOptions& options) { options.threads = 1; }) {
    at::set_num_threads(1);  // also on the test's thread, so that sums equal the workers'
    torch::manual_seed(1);
    images_ = torch::randn({10, 3, 64, 64});  // with smaller ones normalising gives only noise
    labels_ = torch::randint(kClasses, {10});
  }
  ~ResNet50Pipeline() override { world_.shutdown_all(); }

  // After two steps, pipeline and unsplit model must have the same losses, weights and statistics,
  // bit for bit.
  void expect_same_as_unsplit(const PipelinePlan& plan) {
    UnsplitResNet50 unsplit(kClasses, kSeed, kLearningRate);
    std::vector<HostedModule<ResNet50Part>> modules;
    for (size_t s = 0; s < plan.worker_of.size(); ++s) {
      modules.emplace_back(workers_[static_cast<size_t>(plan.worker_of[s])], plan.cuts[s],
                           plan.cuts[s + 1], kClasses, kSeed);
    }
    Pipeline pipeline({modules.begin(), modules.end()},
                      {.loss = squared_error, .schedule = plan.schedule});
    DistributedOptimizer<torch::optim::SGD> optimizer(pipeline.parameters(),
                                                      torch::optim::SGDOptions(kLearningRate));
    for (int step = 0; step < 2; ++step) {
      const dist_autograd::Context context;
      const double loss = pipeline.step(context, {images_}, {labels_}).loss;
      optimizer.step(context);
      EXPECT_EQ(loss, unsplit.step(images_, labels_, plan.schedule.micro_batches()));
    }
    std::map<std::string, at::Tensor> expected;
    for (const auto& item : unsplit.model().named_parameters()) expected[item.key()] = item.value();
    for (const auto& item : unsplit.model().named_buffers()) expected[item.key()] = item.value();
    size_t compared = 0;
    for (const HostedModule<ResNet50Part>& module : modules) {
      for (const auto& [name, value] : module.state()) {
        ASSERT_TRUE(expected.contains(name)) << name;
        EXPECT_TRUE(value.equal(expected.at(name))) << name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, expected.size());
  }

  WorkerWorld world_;
  const std::vector<std::string> workers_ = {"worker1", "worker2"};
  at::Tensor images_, labels_;
  // Declared last, so that the worker is current on this thread until all other members are
  // destroyed.
  WorkerScope scope_{world_[0]};
};

TEST_F(ResNet50Pipeline, HasTheBitsOfTheUnsplitModel) {
  expect_same_as_unsplit({.cuts = {0, 7, kResNet50Layers},
                          .worker_of = {0, 1},
                          .schedule = schedules::zero_bubble(2, 3).value()});
}

TEST_F(ResNet50Pipeline, APlanMadeByMeasurementHasThemToo) {
  const PipelinePlan plan = plan_layers<ResNet50Part>({.workers = workers_,
                                                       .layers = kResNet50Layers,
                                                       .micro_batches = {2, 4},
                                                       .loss = squared_error,
                                                       .seconds = 0},
                                                      {images_}, {labels_}, kClasses, kSeed);
  EXPECT_GT(plan.price.step, 0);
  expect_same_as_unsplit(plan);
}

}  // namespace
}  // namespace weft::examples
