// The pipeline: where it is cut, that its gradients and weights equal those of the unsplit model,
// its errors for wrong input, and its time line.
#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/pipeline_resnet50/local_resnet50.h"
#include "weft/examples/pipeline_resnet50/partition.h"
#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/examples/pipeline_resnet50/pipeline_picture.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace weft::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using weft::testing::error_of;
using weft::testing::WorkerWorld;

constexpr int64_t kClasses = 10;
constexpr uint64_t kSeed = 5;
const Cuts kWhole{0, kResNet50Layers};

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

double slowest(const std::vector<double>& costs, const std::vector<size_t>& cuts) {
  double slowest = 0;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    double sum = 0;
    for (size_t layer = cuts[i]; layer < cuts[i + 1]; ++layer) sum += costs[layer];
    slowest = std::max(slowest, sum);
  }
  return slowest;
}

// Tries all ways to cut.
double best_of_all(const std::vector<double>& costs, size_t parts, std::vector<size_t> cuts = {0}) {
  if (parts == 1) {
    cuts.push_back(costs.size());
    return slowest(costs, cuts);
  }
  double best = std::numeric_limits<double>::infinity();
  for (size_t next = cuts.back() + 1; next + parts - 1 <= costs.size(); ++next) {
    auto longer = cuts;
    longer.push_back(next);
    best = std::min(best, best_of_all(costs, parts - 1, longer));
  }
  return best;
}

TEST(CutByCost, TheSlowestPartIsAsFastAsCanBe) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    std::vector<double> costs(1 + random() % 9);
    for (double& cost : costs) cost = static_cast<double>(random() % 20);
    const size_t parts = 1 + random() % costs.size();
    const std::vector<size_t> cuts = cut_by_cost(costs, parts);
    ASSERT_THAT(cuts, SizeIs(parts + 1));
    EXPECT_EQ(cuts.front(), 0u);
    EXPECT_EQ(cuts.back(), costs.size());
    for (size_t part = 0; part < parts; ++part) EXPECT_LT(cuts[part], cuts[part + 1]);
    EXPECT_EQ(slowest(costs, cuts), best_of_all(costs, parts));
  }
  EXPECT_THAT(cut_by_cost({4, 1, 1, 1, 1}, 2), ElementsAre(0, 1, 5));
}

TEST(CutByCost, MoreShardsThanLayersAreRefused) {
  EXPECT_THAT(refusal([] {
                cut_by_cost({1, 1, 1}, 4);
              }),
              HasSubstr("3 layers cannot be cut into 4"));
  EXPECT_THAT(refusal([] { cut_by_cost({1}, 0); }), HasSubstr("0 shards"));
  EXPECT_THAT(parse_cuts("4,9,14"), ElementsAre(0, 4, 9, 14, 18));
  for (const char* wrong : {"0", "18", "9,4", "5,5", "-1", "19"}) {
    EXPECT_THAT(refusal([&] { parse_cuts(wrong); }), HasSubstr("from 1 to 17")) << wrong;
  }
  for (const char* wrong : {"", "x", "4,", "4 9"}) {
    EXPECT_THAT(refusal([&] { parse_cuts(wrong); }), HasSubstr("no number of a layer")) << wrong;
  }
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

class Pipeline : public ::testing::Test {
 protected:
  explicit Pipeline(size_t shards = 2)
      : world_(shards + 1, [](size_t, WorkerOptions& options) { options.threads = 1; }) {
    at::set_num_threads(1);  // also on the test's thread, so that sums equal the shards'
    for (size_t i = 1; i <= shards; ++i) workers_.push_back(WorkerWorld::name(i));
  }
  ~Pipeline() override { world_.shutdown_all(); }

  static Pictures pictures(int64_t count, int64_t size = 32) {
    torch::manual_seed(1);
    return {torch::randn({count, 3, size, size}), torch::randint(kClasses, {count})};
  }
  // Gradients of the unsplit model after its backward pass, by the names of its parts' parameters.
  static TensorMap gradients_of(const LocalResNet50& model) {
    TensorMap gradients;
    for (const auto& part : model.parts()) {
      for (const auto& one : part->named_parameters()) gradients[one.key()] = one.value().grad();
    }
    return gradients;
  }
  template <class Method>
  static TensorMap gather(const RemoteResNet50& model, Method method) {
    TensorMap all;
    for (const auto& shard : model.shards()) all.merge(shard.rpc_sync(method));
    return all;
  }
  static void expect_equal(const TensorMap& one, const TensorMap& other, double tolerance) {
    ASSERT_EQ(one.size(), other.size());
    for (const auto& [name, value] : one) {
      ASSERT_TRUE(other.contains(name)) << name;
      const at::Tensor expected = other.at(name);
      ASSERT_TRUE(value.defined()) << name;
      ASSERT_TRUE(expected.defined()) << name;
      const double distance = (value - expected).norm().item<double>();
      EXPECT_LE(distance, tolerance * (1e-3 + expected.norm().item<double>())) << name;
    }
  }
  // After a step, shards and unsplit model must have the same gradients, weights and statistics.
  void expect_same_as_unsplit(const Cuts& cuts, int64_t micro_batches) {
    const Pictures batch = pictures(16, 64);  // with smaller ones normalising gives only noise
    LocalResNet50 unsplit(kWhole, kClasses, kSeed);
    const double loss_there = unsplit.backward(batch, micro_batches, squared_error);
    const RemoteResNet50 model(workers_, cuts, kClasses, kSeed);
    DistributedOptimizer<torch::optim::SGD> optimizer(model.parameters(),
                                                      torch::optim::SGDOptions(0.05));
    const TensorMap before = gather(model, &ResNetShard::state);
    {
      const dist_autograd::Context context;
      const at::Tensor loss = squared_error(model.forward(batch, micro_batches), batch.labels);
      EXPECT_NEAR(loss.item<double>(), loss_there, 1e-5);
      context.backward({loss});
      expect_equal(gather(model, &ResNetShard::gradients), gradients_of(unsplit), 1e-4);
      optimizer.step(context);
    }
    torch::optim::SGD local(unsplit.parameters(), 0.05);
    local.step();
    TensorMap weights;
    for (const auto& one : unsplit.parts()[0]->named_parameters()) {
      weights[one.key()] = one.value().detach();
    }
    const TensorMap after = gather(model, &ResNetShard::state);
    expect_equal(after, weights, 1e-5);
    for (const auto& [name, value] : after) EXPECT_FALSE(value.equal(before.at(name))) << name;
  }

  WorkerWorld world_;
  std::vector<std::string> workers_;
  // Declared last, so that the worker is current on this thread until all other members are
  // destroyed.
  WorkerScope scope_{world_[0]};
};

TEST_F(Pipeline, GradientsAndWeightsAreTheUnsplitModels) {
  expect_same_as_unsplit({0, 7, 18}, 4);
  expect_same_as_unsplit({0, 1, 18}, 1);
}

class FourShards : public Pipeline {
 protected:
  FourShards() : Pipeline(4) {}
};

TEST_F(FourShards, GradientsAndWeightsAreTheUnsplitModels) {
  expect_same_as_unsplit({0, 4, 8, 15, 18}, 2);
}

TEST_F(Pipeline, OnThreadsTheyAreTheSame) {
  const Pictures batch = pictures(16, 64);
  LocalResNet50 unsplit(kWhole, kClasses, kSeed), threads({0, 5, 9, 18}, kClasses, kSeed);
  const double loss = unsplit.backward(batch, 4, squared_error);
  EXPECT_NEAR(threads.backward(batch, 4, squared_error), loss, 1e-5);
  expect_equal(gradients_of(threads), gradients_of(unsplit), 1e-4);
}

TEST_F(Pipeline, ABatchThatDoesNotDivideIsRefusedBeforeAnythingRuns) {
  const RemoteResNet50 model(workers_, {0, 7, 18}, kClasses, kSeed);
  model.trace(true);
  LocalResNet50 threads({0, 7, 18}, kClasses, kSeed);
  for (const int64_t wrong : {3, 16, 0, -1}) {
    const std::string expected =
        absl::StrCat("a batch of 8 pictures does not divide into ", wrong, " micro-batches");
    EXPECT_THAT(refusal([&] { model.forward(pictures(8), wrong); }), HasSubstr(expected));
    EXPECT_THAT(refusal([&] { threads.backward(pictures(8), wrong, squared_error); }),
                HasSubstr(expected));
  }
  for (const auto& spans : model.trace(false)) EXPECT_THAT(spans, SizeIs(0));
  EXPECT_THAT(refusal([&] {
                RemoteResNet50(workers_, {0, 4, 8, 18}, kClasses, kSeed);
              }),
              HasSubstr("3 shards and 2 workers"));
}

TEST_F(Pipeline, PicturesThatDoNotFitAreAnErrorAndTheNextBatchRuns) {
  const RemoteResNet50 model(workers_, {0, 7, 18}, kClasses, kSeed);
  Pictures grey = pictures(4);
  grey.images = grey.images.narrow(1, 0, 1);
  {
    const dist_autograd::Context context;
    const absl::Status status = error_of([&] { model.forward(grey, 2); });
    EXPECT_THAT(status.message(), HasSubstr("to have 3 channels"));
  }
  const dist_autograd::Context context;
  context.backward({squared_error(model.forward(pictures(4), 2), pictures(4).labels)});

  LocalResNet50 threads({0, 7, 18}, kClasses, kSeed);
  EXPECT_ANY_THROW(threads.backward(grey, 2, squared_error));
  const Loss refuses = [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("no loss");
  };
  EXPECT_THROW(threads.backward(pictures(8), 4, refuses), std::runtime_error);
  EXPECT_GT(threads.backward(pictures(4), 2, squared_error), 0);
}

// The worker of one shard dies during the forward pass, before the backward pass, when this begins,
// and before the optimizer's step.
TEST(PipelineFailure, AShardThatDiesInAStepIsNamedAndTheOthersAreOfUse) {
  constexpr size_t kMoments = 4;
  WorkerWorld world(kMoments + 3, [](size_t, WorkerOptions& options) { options.threads = 1; });
  WorkerScope scope(world[0]);
  torch::manual_seed(1);
  const Pictures batch{torch::randn({4, 3, 32, 32}), torch::randint(kClasses, {4})};
  const auto step = [&](const std::string& second, const std::function<void(size_t)>& at_moment) {
    const RemoteResNet50 model({"worker1", second}, {0, 7, 18}, kClasses, kSeed);
    DistributedOptimizer<torch::optim::SGD> optimizer(model.parameters(),
                                                      torch::optim::SGDOptions(0.05));
    const dist_autograd::Context context;
    at_moment(0);
    const at::Tensor scores = model.forward(batch, 2);
    at_moment(1);
    scores.register_hook([&](const at::Tensor&) { at_moment(2); });
    const at::Tensor loss = squared_error(scores, batch.labels);
    context.backward({loss});
    at_moment(3);
    optimizer.step(context);
    return loss.item<double>();
  };
  const auto undisturbed = [](size_t) {};
  for (size_t moment = 0; moment < kMoments; ++moment) {
    SCOPED_TRACE(moment);
    const size_t victim = 2 + moment;
    std::thread killer;
    const auto kill = [&](size_t now) {
      if (now != moment) return;
      if (moment > 0) return world.kill(victim);
      killer = std::thread([&] { world.kill(victim); });
    };
    const absl::Status died = error_of([&] { return step(WorkerWorld::name(victim), kill); });
    if (killer.joinable()) killer.join();
    EXPECT_EQ(died.code(), absl::StatusCode::kUnavailable) << died;
    EXPECT_THAT(died.message(), HasSubstr(absl::StrCat("'", WorkerWorld::name(victim), "'")));
  }
  const absl::Status gone = error_of([&] { return step("worker2", undisturbed); });
  EXPECT_THAT(gone.message(), HasSubstr("'worker2'"));
  EXPECT_GT(step(WorkerWorld::name(kMoments + 2), undisturbed), 0);

  std::vector<Future<void>> ends;
  for (const size_t alive : {size_t{0}, size_t{1}, kMoments + 2}) {
    ends.push_back(world[alive].shutdown_async());
  }
  wait_all(ends);
}

Promise<at::Tensor>* late_input = nullptr;
Future<at::Tensor> late() { return late_input->future(); }
WEFT_REGISTER_FUNCTION(late);

// In any order of inputs, and also after a wrong one.
TEST_F(Pipeline, AShardRunsOneMicroBatchAfterTheOther) {
  Promise<at::Tensor> input(nullptr);
  late_input = &input;
  const RRef<ResNetShard> shard =
      remote<ResNetShard>("worker1", 0, kResNet50Layers, kClasses, kSeed);
  shard.rpc_sync(&ResNetShard::trace, true);
  const at::Tensor images = pictures(2).images;
  const RRef<at::Tensor> comes_late = remote("worker2", late);
  std::vector<Future<at::Tensor>> outputs;
  for (int64_t i = 0; i < 4; ++i) {
    outputs.push_back(shard.rpc_async(&ResNetShard::forward, comes_late, i));
  }
  const Future<at::Tensor> wrong =
      shard.rpc_async(&ResNetShard::forward, make_rref(images.narrow(1, 0, 1)), 4);
  outputs.push_back(shard.rpc_async(&ResNetShard::forward, make_rref(images), 5));
  input.set(images);
  for (const auto& output : outputs) EXPECT_TRUE(output.result().ok());
  EXPECT_FALSE(wrong.result().ok());
  const std::vector<Span> spans = shard.rpc_sync(&ResNetShard::trace, false);
  ASSERT_THAT(spans, SizeIs(5));
  for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].end, spans[i].begin);
}

TEST_F(Pipeline, TheTimeLineHasEveryMicroBatchOnceInEachDirection) {
  const RemoteResNet50 model(workers_, {0, 7, 18}, kClasses, kSeed);
  model.trace(true);
  {
    const dist_autograd::Context context;
    context.backward({squared_error(model.forward(pictures(6), 3), pictures(6).labels)});
  }
  const auto spans = model.trace(false);
  ASSERT_THAT(spans, SizeIs(2));
  for (const auto& shard : spans) {
    std::vector<std::pair<int64_t, bool>> seen;
    for (const Span& span : shard) {
      seen.emplace_back(span.micro_batch, span.backward);
      EXPECT_LT(span.begin, span.end);
    }
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre(std::pair(0, false), std::pair(1, false),
                                                      std::pair(2, false), std::pair(0, true),
                                                      std::pair(1, true), std::pair(2, true)));
  }
  // A stage begins when the one before it is done, and in the backward pass the other way round.
  const auto span_of = [&](size_t shard, int64_t micro_batch, bool backward) {
    return *std::find_if(spans[shard].begin(), spans[shard].end(), [&](const Span& span) {
      return span.micro_batch == micro_batch && span.backward == backward;
    });
  };
  for (const int64_t i : {0, 1, 2}) {
    EXPECT_LE(span_of(0, i, false).end, span_of(1, i, false).begin);
    EXPECT_LE(span_of(1, i, true).begin, span_of(0, i, true).begin);
  }
  const auto later = model.trace(false);
  EXPECT_THAT(later[0], SizeIs(0));
}

TEST_F(Pipeline, StagesAreMeasuredWithoutTouchingTheModel) {
  const RemoteResNet50 model(workers_, {0, 7, 18}, kClasses, kSeed);
  const TensorMap before = gather(model, &ResNetShard::state);
  const auto costs = profile_layers(workers_, pictures(2), kClasses, 0.01);
  EXPECT_THAT(costs, SizeIs(kResNet50Layers));
  for (const double cost : costs) EXPECT_GT(cost, 0);
  const auto stages = measure_stages(workers_, {0, 7, 18}, pictures(2), kClasses, 0.01);
  ASSERT_THAT(stages, SizeIs(2));
  for (const StageTime& stage : stages) {
    EXPECT_GT(stage.forward, 0);
    EXPECT_GT(stage.backward, 0);
  }
  for (const auto& [name, value] : gather(model, &ResNetShard::state)) {
    EXPECT_TRUE(value.equal(before.at(name))) << name;
  }
}

TEST(IdealSeconds, TheSlowestStageWorksWithoutAPause) {
  EXPECT_DOUBLE_EQ(ideal_seconds({{1, 2}, {2, 2}}, 1), 7);
  EXPECT_DOUBLE_EQ(ideal_seconds({{1, 2}, {2, 2}}, 5), 4 * 4 + 7);
}

TEST(PipelinePicture, IsDrawnAlsoOfAlmostNothing) {
  SweepPoint point{.micro_batches = 2, .seconds = 1, .ideal = 0.9, .unsplit = 1.5, .threads = 1};
  const auto empty = draw_pipeline("nothing", {}, {}, 1);
  ASSERT_TRUE(empty.ok());
  point.spans = {{{0, false, 0, 1}, {0, true, 2, 3}}, {{0, false, 1, 1.5}, {0, true, 1.5, 2}}};
  const auto drawn = draw_pipeline("two shards", {point, point}, point, 8);
  ASSERT_TRUE(drawn.ok());
  EXPECT_EQ(drawn->substr(1, 3), "PNG");
  EXPECT_NE(*drawn, *empty);
}

}  // namespace
}  // namespace weft::examples
