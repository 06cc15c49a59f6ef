#include <cmath>
#include <memory>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include "weft/dist_optim/steps/step_history.h"
#include "weft/tests/dist_optim/step_ledger.h"
#include "weft/tests/examples/parameter_server/job_world.h"
#include "weft/tests/support/error_of.h"

namespace weft::examples {
namespace {

using testing::JobWorld;

JobOptions without_dropout() {
  JobOptions options;
  options.dropout = 0;
  options.seed = 11;
  return options;
}

std::vector<Batch> random_batches(int64_t count) {
  at::manual_seed(3);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) {
    batches.push_back({at::randn({16, 1, kImageSide, kImageSide}), at::randint(kClasses, {16})});
  }
  return batches;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(ParameterServerTest, OneTrainerEqualsTheSameModelTrainedLocally) {
  constexpr int kSteps = 50;
  const JobOptions options = without_dropout();
  const std::vector<Batch> batches = random_batches(kSteps);
  // As in a worker. Other orders of summation round differently. Adam divides by the size of the
  // gradient, so it turns small differences into whole steps.
  at::set_num_threads(1);

  FeatureLayers features(options.seed);
  ClassifierLayers classifier(options.seed, 0.0);
  std::vector<at::Tensor> parameters = features.parameters();
  for (const at::Tensor& parameter : classifier.parameters()) parameters.push_back(parameter);
  torch::optim::Adam adam(parameters, torch::optim::AdamOptions(options.learning_rate(1)));
  for (int step = 0; step < kSteps; ++step) {
    const double progress = static_cast<double>(step) / kSteps;
    static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options())
        .lr(options.learning_rate(1) * (1 + std::cos(M_PI * progress)) / 2);
    adam.zero_grad();
    const at::Tensor out = classifier.forward(features.forward(batches[step].images));
    at::nll_loss(out, batches[step].labels).backward();
    adam.step();
  }

  JobWorld world(1, options);
  JobState state;
  {
    Trainer trainer(world[1], options);
    trainer.connect();
    for (int step = 0; step < kSteps; ++step) {
      trainer.step(batches[step], static_cast<double>(step) / kSteps);
    }
    state = trainer.state();
  }
  for (const auto& item : features.named_parameters()) {
    EXPECT_LE(largest_difference(item.value(), state.trainer.at(item.key())), 1e-6) << item.key();
  }
  for (const auto& item : classifier.named_parameters()) {
    EXPECT_LE(largest_difference(item.value(), state.server.at(item.key())), 1e-6) << item.key();
  }
  world.shutdown();
}

TEST(ParameterServerTest, AStateLoadedIsTheStateSaved) {
  const JobOptions options = without_dropout();
  const std::vector<Batch> batches = random_batches(6);
  JobWorld world(1, options);
  {
    Trainer trainer(world[1], options);
    trainer.connect();
    for (int step = 0; step < 3; ++step) trainer.step(batches[step], 0.1);
    const JobState saved = trainer.state();
    std::vector<double> losses;
    for (int step = 3; step < 6; ++step) losses.push_back(trainer.step(batches[step], 0.1).loss);
    trainer.load_state(saved);
    // The optimizer's state was restored too, so the losses are the same again.
    for (int step = 3; step < 6; ++step) {
      EXPECT_NEAR(trainer.step(batches[step], 0.1).loss, losses[step - 3], 1e-6);
    }
  }
  world.shutdown();
}

TEST(ParameterServerTest, AfterTheServersReturnATrainerRedoesWhatWasLostAndNoMore) {
  JobOptions options = without_dropout();
  const testing::ScratchFolder scratch;
  options.checkpoint = scratch / "job";
  options.checkpoint_every = 10;  // written after steps 5 and 10
  const std::vector<Batch> batches = random_batches(13);
  at::set_num_threads(1);
  JobWorld world(1, options);
  Trainer trainer(world[1], options);
  trainer.connect();
  StepHistory<int64_t, Trainer::Memory> history(20);
  history.begin(0, 0, trainer.memory());
  const auto train = [&](size_t first, size_t last) {
    for (size_t n = first; n <= last; ++n) {
      history.expect(static_cast<int64_t>(n));
      const StepResult result = trainer.step(batches[n - 1], 0.01 * double(n)).result;
      history.keep(result.number, trainer.memory());
    }
  };
  train(1, 12);
  const JobState truth = trainer.state();
  // Does what a restarted server does.
  const auto set_back = [&](uint64_t number) {
    const WorkerScope server(world[0]);
    ParameterSet& set = rpc_sync(kServerName, kFindClassifier).parameters().local_value();
    ASSERT_EQ(set.keeper()->go_back("adam@trainer1", number), absl::OkStatus());
  };
  set_back(5);
  EXPECT_EQ(testing::error_of([&] { trainer.step(batches[12], 0.13); }).code(),
            absl::StatusCode::kDataLoss);
  trainer.connect();
  const uint64_t number = trainer.resume();
  EXPECT_EQ(number, 5u);
  const auto moment = history.go_back(number);
  ASSERT_TRUE(moment.ok()) << moment.status();
  EXPECT_EQ(moment->position, 5);
  trainer.set_memory(moment->state);
  train(6, 12);
  const JobState again = trainer.state();
  for (const auto& [one, other] :
       {std::pair(truth.trainer, again.trainer), std::pair(truth.server, again.server)}) {
    for (const auto& [name, value] : one) EXPECT_TRUE(at::equal(value, other.at(name))) << name;
  }
  EXPECT_TRUE(at::equal(truth.optimizer.at("1/hidden.weight/exp_avg_sq"),
                        again.optimizer.at("1/hidden.weight/exp_avg_sq")));
  world.shutdown();
}

TEST(ParameterServerTest, AllTrainersStartWithTheSameLayers) {
  const JobOptions options = without_dropout();
  JobWorld world(2, options);
  const std::vector<at::Tensor> one = Trainer(world[1], options).own_layers();
  const std::vector<at::Tensor> two = Trainer(world[2], options).own_layers();
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(two[i])) << i;
  world.shutdown();
}

// The labels are the network's own answers without dropout. So every answer is right, unless
// something is dropped. In training nine tenths of the hidden layer are.
TEST(ParameterServerTest, NothingIsDroppedInAnEvaluationAndAgainAfterIt) {
  constexpr int64_t kPictures = 600;  // more than one batch of the evaluation
  JobOptions options = without_dropout();
  options.dropout = 0.9;
  at::set_num_threads(1);
  at::manual_seed(4);
  LabelledImages pictures{at::randint(200, {kPictures, kImageSide, kImageSide}, at::kByte),
                          at::zeros({kPictures}, at::kLong)};
  FeatureLayers features(options.seed);
  ClassifierLayers classifier(options.seed);
  classifier.eval();
  const at::Tensor cut = features.forward(make_batch(pictures, 0, kPictures).images).detach();
  pictures.labels = at::argmax(classifier.forward(cut), 1);

  JobWorld world(1, options);
  {
    Trainer trainer(world[1], options);
    trainer.connect();
    EXPECT_GT(trainer.evaluate(pictures), 0.99);
    const Classifier hosted = rpc_sync(world[1].to(kServerName), kFindClassifier);
    EXPECT_LT(count_correct(hosted.forward(cut), pictures.labels), 0.95 * kPictures);
  }
  world.shutdown();
}

}  // namespace
}  // namespace weft::examples
