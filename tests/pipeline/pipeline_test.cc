// Pipelines over several workers, compared with one process that runs the same micro-batches.
#include "weft/pipeline/pipeline.h"

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/pipeline/schedules/schedules.h"
#include "weft/pipeline/stage/stage_run.h"
#include "weft/rpc/codec/wire_name.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace pipeline_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using weft::DistributedOptimizer;
using weft::Pipeline;
using weft::PipelineOptions;
using weft::PipelineResult;
using weft::PipelineStage;
using weft::dist_autograd::Context;
using weft::testing::error_of;
using weft::testing::WorkerWorld;

// A layer whose values depend on `seed` only. A forward of a large input throws.
class Layer : public torch::nn::Module {
 public:
  Layer(int64_t width, int64_t seed) {
    weight = register_parameter(
        "weight",
        at::arange(width * width, at::kDouble).reshape({width, width}).add(seed).sin().div(width));
    bias = register_parameter("bias", at::arange(width, at::kDouble).add(seed).cos());
  }
  at::Tensor forward(const at::Tensor& x) {
    if (x.max().item<double>() > 1e6) throw std::runtime_error("the input is too large");
    return torch::dropout(x.matmul(weight).add(bias), 0.25, is_training()).tanh();
  }

  at::Tensor weight, bias;
};
WEFT_REGISTER_MODULE(Layer, int64_t, int64_t);

// Splits its input in two.
class Fork : public torch::nn::Module {
 public:
  explicit Fork(int64_t seed) : layer(register_module("layer", std::make_shared<Layer>(6, seed))) {}
  std::vector<at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor y = layer->forward(x);
    return {y, y * 2};
  }
  std::shared_ptr<Layer> layer;
};
WEFT_REGISTER_MODULE(Fork, int64_t);

class Join : public torch::nn::Module {
 public:
  explicit Join(int64_t seed) : layer(register_module("layer", std::make_shared<Layer>(6, seed))) {}
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) { return layer->forward(a + b); }
  std::shared_ptr<Layer> layer;
};
WEFT_REGISTER_MODULE(Join, int64_t);

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}
WEFT_REGISTER_FUNCTION(squared_error);

at::Tensor throwing_loss(const at::Tensor& output, const at::Tensor& target) {
  if (target.max().item<double>() > 0) throw std::runtime_error("no loss today");
  return squared_error(output, target);
}
WEFT_REGISTER_FUNCTION(throwing_loss);
at::Tensor reserved_loss(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}
WEFT_REGISTER_FUNCTION(reserved_loss, weft::Access{"trainer"});

// The gradients that the context of the call has for the parameters of a set.
weft::TensorMap gradients_of(const weft::RRef<weft::ParameterSet>& reference) {
  weft::ParameterSet& set = reference.local_value();
  const weft::ContextId context = weft::dist_autograd::current_context();
  const std::vector<at::Tensor> leaves = set.leaves(context);
  weft::TensorMap gradients;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const at::Tensor gradient = weft::dist_autograd::gradient(context, leaves[i]);
    if (gradient.defined()) gradients.emplace(set.names()[i], gradient);
  }
  return gradients;
}
WEFT_REGISTER_FUNCTION(gradients_of);
weft::TensorMap gradients_at(const weft::RRef<weft::ParameterSet>& set) {
  return weft::rpc_sync(set.owner(), gradients_of, set);
}

at::Tensor unregistered(const at::Tensor& output, const at::Tensor&) { return output.sum(); }

constexpr int64_t kWidth = 6;
constexpr uint64_t kSeed = 5;

std::vector<PipelineStage> layers(const std::vector<std::string>& workers) {
  std::vector<PipelineStage> stages;
  for (size_t i = 0; i < workers.size(); ++i) {
    stages.push_back(weft::stage<Layer>(workers[i], kWidth, static_cast<int64_t>(i)));
  }
  return stages;
}

// The same model in one process.
class Twin {
 public:
  explicit Twin(size_t stages) {
    for (size_t i = 0; i < stages; ++i) {
      layers_.push_back(std::make_shared<Layer>(kWidth, static_cast<int64_t>(i)));
      for (const at::Tensor& parameter : layers_.back()->parameters()) {
        parameters_.push_back(parameter);
      }
    }
  }
  // Returns the mean loss.
  double step(const at::Tensor& x, const at::Tensor& target, int micro_batches, uint64_t number) {
    using weft::pipeline_internal::StageRun;
    const uint64_t seed = StageRun::seed_of(kSeed, 0, static_cast<int>(number));
    const auto inputs = x.tensor_split(micro_batches), targets = target.tensor_split(micro_batches);
    double mean = 0;
    for (int batch = 0; batch < micro_batches; ++batch) {
      const auto at = static_cast<size_t>(batch);
      at::Tensor value = inputs[at];
      for (size_t stage = 0; stage < layers_.size(); ++stage) {
        torch::manual_seed(StageRun::seed_of(seed, static_cast<int>(stage), batch));
        value = layers_[stage]->forward(value.clone());
      }
      const at::Tensor loss = squared_error(value, targets[at]);
      const double weight =
          static_cast<double>(inputs[at].size(0)) / static_cast<double>(x.size(0));
      loss.backward(torch::full({}, weight, torch::kDouble));
      mean += weight * loss.item<double>();
    }
    return mean;
  }
  void eval() const {
    for (const auto& layer : layers_) layer->eval();
  }
  at::Tensor forward(at::Tensor value) const {
    const torch::NoGradGuard off;
    for (const auto& layer : layers_) value = layer->forward(value);
    return value;
  }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const Layer& operator[](size_t stage) const { return *layers_[stage]; }

 private:
  std::vector<std::shared_ptr<Layer>> layers_;
  std::vector<at::Tensor> parameters_;
};

// Trains both for some steps. Losses and parameters must have the same bits.
void train_beside_twin(const std::vector<std::string>& workers, weft::PipelineSchedule schedule,
                       int64_t batch) {
  const int micro_batches = schedule.micro_batches();
  const std::vector<PipelineStage> stages = layers(workers);
  Pipeline pipeline(stages, {squared_error, schedule, kSeed});
  DistributedOptimizer<SGD> optimizer(pipeline.parameters(), SGDOptions(0.1));
  Twin twin(workers.size());
  SGD local(twin.parameters(), SGDOptions(0.1));
  for (uint64_t number = 1; number <= 3; ++number) {
    torch::manual_seed(number);
    const at::Tensor x = torch::randn({batch, kWidth}, torch::kDouble);
    const at::Tensor target = torch::randn({batch, kWidth}, torch::kDouble);
    const Context context;
    const PipelineResult result = pipeline.step(context, {x}, {target});
    optimizer.step(context);
    local.zero_grad();
    EXPECT_EQ(result.loss, twin.step(x, target, micro_batches, number)) << "step " << number;
    EXPECT_EQ(result.losses.size(), static_cast<size_t>(micro_batches));
    ASSERT_EQ(result.executed.size(), schedule.workers.size());
    for (size_t row = 0; row < result.executed.size(); ++row) {
      std::vector<weft::StageAction> done;
      double last = 0;
      for (const auto& [action, begin, end] : result.executed[row]) {
        EXPECT_LE(last, begin);
        EXPECT_LE(begin, end);
        last = end;
        done.push_back(action);
      }
      EXPECT_THAT(done, ::testing::UnorderedElementsAreArray(schedule.workers[row]));
    }
    local.step();
  }
  const auto sets = pipeline.parameters();
  for (size_t stage = 0; stage < workers.size(); ++stage) {
    const weft::TensorMap state = sets[stage].rpc_sync(&weft::ParameterSet::state);
    EXPECT_TRUE(torch::equal(state.at("weight"), twin[stage].weight)) << "stage " << stage;
    EXPECT_TRUE(torch::equal(state.at("bias"), twin[stage].bias)) << "stage " << stage;
  }
}

TEST(PipelineTest, TrainsLikeOneProcess) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  namespace schedules = weft::schedules;
  const std::vector<std::string> two = {"worker1", "worker2"};
  train_beside_twin(two, schedules::fill_drain(2, 3).value(), 12);
  train_beside_twin(two, schedules::one_forward_one_backward(2, 4).value(), 12);
  train_beside_twin(two, schedules::zero_bubble(2, 5).value(), 13);
  train_beside_twin({"worker1", "worker2", "worker2", "worker1"},
                    schedules::zero_bubble_v(2, 4).value(), 9);
  train_beside_twin({"worker0", "worker1", "worker2"}, schedules::zero_bubble_h2(3, 6).value(), 12);
}

TEST(PipelineTest, SkipLinksTakeSingleOutputs) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  // worker2 gets output 1 of the first stage and the output of the second.
  Pipeline pipeline({weft::stage<Fork>("worker0", 1),
                     PipelineStage(weft::stage<Layer>("worker1", kWidth, 2)).from({{0, 0}}),
                     PipelineStage(weft::stage<Join>("worker2", 3)).from({{1, 0}, {0, 1}})},
                    {squared_error, weft::schedules::zero_bubble(3, 4), kSeed});
  Fork fork(1);
  Layer layer(kWidth, 2);
  Join join(3);
  pipeline.eval();  // without dropout
  fork.eval();
  layer.eval();
  join.eval();
  const at::Tensor x = torch::randn({8, kWidth}, torch::kDouble), target = torch::zeros_like(x);
  const auto xs = x.tensor_split(4), targets = target.tensor_split(4);
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<at::Tensor> parts = fork.forward(xs[i]);
    const at::Tensor y = join.forward(layer.forward(parts[0].clone()).clone(), parts[1].clone());
    squared_error(y, targets[i]).backward(torch::full({}, 0.25, torch::kDouble));
  }
  const Context context;
  pipeline.step(context, {x}, {target});
  const auto sets = pipeline.parameters();
  const std::vector<std::vector<at::Tensor>> expected = {fork.parameters(), layer.parameters(),
                                                         join.parameters()};
  for (size_t stage = 0; stage < sets.size(); ++stage) {
    const weft::TensorMap gradients = gradients_at(sets[stage]);
    ASSERT_EQ(gradients.size(), 2u);
    size_t at = 0;
    for (const at::Tensor& parameter : expected[stage]) {
      const std::string name = at++ == 0 ? "weight" : "bias";
      for (const auto& [key, gradient] : gradients) {
        if (key.ends_with(name)) EXPECT_TRUE(torch::equal(gradient, parameter.grad())) << stage;
      }
    }
  }
}

TEST(PipelineTest, AStageThatThrowsIsNamedAndTheNextStepWorks) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  for (const bool first : {true, false}) {
    Pipeline pipeline(layers({"worker1", "worker2"}),
                      {first ? squared_error : throwing_loss, weft::schedules::zero_bubble(2, 4)});
    const at::Tensor target = torch::zeros({8, kWidth}, torch::kDouble);
    at::Tensor bad = torch::zeros({8, kWidth}, torch::kDouble);
    if (first) bad[5] = 1e9;  // micro-batch 2 of stage 0
    const at::Tensor bad_target = first ? target : target + 1;
    {
      const Context context;
      const absl::Status failed = error_of([&] {
        pipeline.step(context, {bad}, {bad_target});
        return 0;
      });
      EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown) << failed;
      EXPECT_THAT(std::string(failed.message()),
                  HasSubstr(first ? "0F2: the input is too large" : "1F0: no loss today"));
      for (const auto& set : pipeline.parameters()) {
        EXPECT_TRUE(gradients_at(set).empty()) << "nothing is readable";
      }
    }
    const Context context;
    EXPECT_EQ(pipeline.step(context, {torch::zeros_like(bad)}, {target}).losses.size(), 4u);
    for (const auto& set : pipeline.parameters()) {
      EXPECT_EQ(gradients_at(set).size(), 2u);
    }
  }
}

TEST(PipelineTest, PartsThatDoNotFitAreRefused) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  namespace schedules = weft::schedules;
  const auto refused = [&](std::vector<PipelineStage> stages, PipelineOptions options) {
    const absl::Status status = error_of([&] {
      Pipeline(std::move(stages), std::move(options));
      return 0;
    });
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  const auto two = layers({"worker1", "worker2"});
  EXPECT_THAT(refused({}, {squared_error, schedules::fill_drain(2, 2)}),
              HasSubstr("a pipeline has at least one stage"));
  EXPECT_THAT(refused(two, {squared_error, schedules::fill_drain(3, 3)}),
              HasSubstr("the schedule has 3 stages, and the pipeline 2"));
  EXPECT_THAT(refused(two, {squared_error, schedules::fill_drain(0, 3)}),
              HasSubstr("a schedule has from 1 to 1048576 workers, not 0"));
  EXPECT_THAT(refused(two, {squared_error, schedules::forward_only(2, 2)}),
              HasSubstr("the schedule has no backward"));
  EXPECT_THAT(refused(two, {nullptr, schedules::fill_drain(2, 2)}), HasSubstr("needs a loss"));
  EXPECT_THAT(refused(two, {reserved_loss, schedules::fill_drain(2, 2)}),
              HasSubstr("with role 'default' may not call"));
  EXPECT_THAT(refused(two, {unregistered, schedules::fill_drain(2, 2)}),
              HasSubstr("is not registered in this program"));
  EXPECT_THAT(refused(layers({"worker1", "worker1"}), {squared_error, schedules::fill_drain(2, 2)}),
              HasSubstr("two rows of the schedule have stages on worker1"));
  EXPECT_THAT(refused(layers({"worker0", "worker1", "worker2", "worker2"}),
                      {squared_error, schedules::zero_bubble_v(2, 2)}),
              HasSubstr("row 1 of the schedule has stage 0 on worker0 and stage 3 on worker2"));
  EXPECT_THAT(refused({two[0], PipelineStage(two[1]).from({{1, 0}})},
                      {squared_error, schedules::fill_drain(2, 2)}),
              HasSubstr("stage 1 cannot take outputs of stage 1"));
  EXPECT_THAT(refused({two[0], PipelineStage(two[1]).from({})},
                      {squared_error, schedules::fill_drain(2, 2)}),
              HasSubstr("no stage takes an output of stage 0"));
}

TEST(PipelineTest, StepsWithBadInputsAreRefused) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  const at::Tensor x = torch::zeros({8, kWidth}, torch::kDouble);
  Pipeline pipeline({weft::stage<Layer>("worker1", kWidth, 1),
                     PipelineStage(weft::stage<Layer>("worker2", kWidth, 2)).from({{0, 1}})},
                    {squared_error, weft::schedules::fill_drain(2, 4)});
  const Context context;
  const auto refused = [&](std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets) {
    const absl::Status status = error_of([&] {
      pipeline.step(context, inputs, targets);
      return 0;
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused({}, {x}), HasSubstr("at least one input"));
  EXPECT_THAT(refused({x}, {}), HasSubstr("a step takes 1 target, not 0"));
  EXPECT_THAT(refused({x}, {x.narrow(0, 0, 3)}), HasSubstr("do not divide into 4 micro-batches"));
  EXPECT_THAT(refused({x}, {x.narrow(0, 0, 7)}),
              HasSubstr("inputs of size 8 in dimension 0 do not divide"));
  EXPECT_THAT(refused({x}, {x}), HasSubstr("stage 1 takes output 1 of stage 0, which has 1"));
}

// Its hook halves the gradient of its weight, and counts.
class Hooked : public torch::nn::Module {
 public:
  Hooked() {
    weight = register_parameter("weight", at::eye(kWidth, at::kDouble));
    weight.register_hook([](const at::Tensor& gradient) {
      ++calls;
      return gradient * 0.5;
    });
  }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }

  static inline std::atomic<int> calls{0};
  at::Tensor weight;
};
WEFT_REGISTER_MODULE(Hooked);

at::Tensor sum_of(const at::Tensor& output, const at::Tensor&) { return output.sum().reshape({1}); }
WEFT_REGISTER_FUNCTION(sum_of);

TEST(PipelineTest, HooksOfParametersRunOnceOnTheSum) {
  WorkerWorld world(2);
  const weft::WorkerScope scope(world[0]);
  Pipeline pipeline({weft::stage<Hooked>("worker1")}, {sum_of, weft::schedules::fill_drain(1, 4)});
  const at::Tensor x = torch::ones({8, kWidth}, torch::kDouble);
  const Context context;
  Hooked::calls = 0;
  pipeline.step(context, {x}, {x});
  EXPECT_EQ(Hooked::calls, 1);
  // The mean over 4 micro-batches of the sum over 2 rows, halved.
  EXPECT_TRUE(torch::equal(gradients_at(pipeline.parameters()[0]).at("weight"),
                           torch::full({kWidth, kWidth}, 1.0, torch::kDouble)));
}

// Changes its input in place.
class Eager : public torch::nn::Module {
 public:
  explicit Eager(double factor) : factor_(factor) {
    weight = register_parameter("weight", at::ones({kWidth}, at::kDouble));
  }
  at::Tensor forward(at::Tensor x) { return x.mul_(factor_).mul(weight).tanh(); }

  at::Tensor weight;

 private:
  const double factor_;
};
WEFT_REGISTER_MODULE(Eager, double);

// Stages 0, 1 and 2 are on one worker. Both 1 and 2 take the output of 0, and change it.
TEST(PipelineTest, AStageMayChangeItsInputs) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  const auto schedule = weft::PipelineSchedule::from_csv(
      "0F0,1F0,2F0,0F1,1F1,2F1,2B0,1B0,0B0,2B1,1B1,0B1\n3F0,3B0,3F1,3R1,3B1\n");
  const at::Tensor x = torch::rand({4, kWidth}, torch::kDouble), target = torch::zeros_like(x);
  Pipeline pipeline({weft::stage<Eager>("worker1", 1.5),
                     PipelineStage(weft::stage<Eager>("worker1", 0.5)).from({{0, 0}}),
                     PipelineStage(weft::stage<Eager>("worker1", 2.0)).from({{0, 0}}),
                     PipelineStage(weft::stage<Join>("worker2", 3)).from({{1, 0}, {2, 0}})},
                    {squared_error, schedule});
  pipeline.eval();
  Eager zero(1.5), one(0.5), two(2.0);
  Join join(3);
  join.eval();
  for (const at::Tensor& part : x.clone().tensor_split(2)) {
    const at::Tensor y = zero.forward(part.clone());
    const at::Tensor out = join.forward(one.forward(y.clone()), two.forward(y.clone()));
    squared_error(out, torch::zeros_like(part)).backward(torch::full({}, 0.5, torch::kDouble));
  }
  const at::Tensor before = x.clone();
  const Context context;
  pipeline.step(context, {x}, {target});
  EXPECT_TRUE(torch::equal(x, before)) << "the caller keeps its inputs";
  const auto sets = pipeline.parameters();
  EXPECT_TRUE(torch::equal(gradients_at(sets[0]).at("weight"), zero.weight.grad()));
  EXPECT_TRUE(torch::equal(gradients_at(sets[1]).at("weight"), one.weight.grad()));
  EXPECT_TRUE(torch::equal(gradients_at(sets[2]).at("weight"), two.weight.grad()));
}

// The calls of these steps cannot be sent to the first worker.
TEST(PipelineTest, StepsThatDoNotReachAWorkerDoNoHarm) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  Pipeline pipeline(layers({"worker1", "worker2"}),
                    {squared_error, weft::schedules::zero_bubble(2, 4)});
  const at::Tensor x = torch::ones({8, kWidth}, torch::kDouble);
  const at::Tensor nowhere = torch::ones({8, kWidth}, torch::TensorOptions().device(torch::kMeta));
  for (int i = 0; i < 5; ++i) {
    const Context context;
    EXPECT_FALSE(error_of([&] { return pipeline.step(context, {nowhere}, {x}); }).ok());
  }
  const Context context;
  EXPECT_EQ(pipeline.step(context, {x}, {x}).losses.size(), 4u);
}

TEST(PipelineTest, EvaluatesWithTheCurrentParameters) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  Pipeline pipeline(layers({"worker1", "worker2"}),
                    {squared_error, weft::schedules::zero_bubble(2, 4)});
  pipeline.eval();  // without dropout
  DistributedOptimizer<SGD> optimizer(pipeline.parameters(), SGDOptions(0.1));
  Twin twin(2);
  twin.eval();
  SGD local(twin.parameters(), SGDOptions(0.1));
  const at::Tensor x = torch::randn({9, kWidth}, torch::kDouble);
  const at::Tensor target = torch::zeros_like(x);
  for (uint64_t number = 1; number <= 3; number += 2) {  // evaluations are steps, too
    const Context context;
    pipeline.step(context, {x}, {target});
    optimizer.step(context);
    local.zero_grad();
    twin.step(x, target, 4, number);
    local.step();
    std::vector<at::Tensor> outputs = pipeline.forward({x});
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_FALSE(outputs[0].requires_grad());
    std::vector<at::Tensor> expected;
    for (const at::Tensor& part : x.tensor_split(4)) expected.push_back(twin.forward(part));
    EXPECT_TRUE(torch::equal(outputs[0], torch::cat(expected)));
  }
  pipeline.train();
  const absl::Status failed = error_of([&] { return pipeline.forward({x + 1e9}); });
  EXPECT_THAT(std::string(failed.message()), HasSubstr("0F0: the input is too large"));
  EXPECT_EQ(pipeline.forward({x})[0].sizes(), x.sizes());
}

class Frozen : public torch::nn::Module {
 public:
  Frozen() { weight = register_parameter("weight", at::eye(6, at::kDouble), false); }
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
  at::Tensor weight;
};
WEFT_REGISTER_MODULE(Frozen);

TEST(PipelineTest, AStageWithoutGradientsIsNoError) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  Pipeline pipeline({weft::stage<Frozen>("worker1"), weft::stage<Layer>("worker2", kWidth, 1)},
                    {squared_error, weft::schedules::zero_bubble(2, 4)});
  const at::Tensor x = torch::ones({8, kWidth}, torch::kDouble);
  const Context context;
  pipeline.step(context, {x}, {x});
  EXPECT_TRUE(gradients_at(pipeline.parameters()[0]).empty());
  EXPECT_EQ(gradients_at(pipeline.parameters()[1]).size(), 2u);
  Pipeline frozen({weft::stage<Frozen>("worker1"), weft::stage<Frozen>("worker2")},
                  {squared_error, weft::schedules::zero_bubble(2, 4)});
  const absl::Status refused = error_of([&] { return frozen.step(context, {x}, {x}); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("1F0: the loss depends on no tensor that requires a gradient"));
}

// One call per worker, and one message per micro-batch, boundary and direction.
TEST(PipelineTest, CountsItsMessages) {
  constexpr int kStages = 3, kMicroBatches = 5;
  WorkerWorld world(kStages + 1);
  const weft::WorkerScope scope(world[0]);
  Pipeline pipeline(layers({"worker1", "worker2", "worker3"}),
                    {squared_error, weft::schedules::zero_bubble(kStages, kMicroBatches)});
  const at::Tensor x = torch::zeros({10, kWidth}, torch::kDouble);
  const Context context;
  pipeline.step(context, {x}, {x});  // connects the workers
  std::mutex mutex;
  std::map<uint64_t, int> calls;  // by function
  const auto count = [&](const weft::FrameHeader& header) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (header.kind == weft::FrameKind::kCall) ++calls[header.function];
    return weft::InprocNetwork::Fate::kDeliver;
  };
  world.network().set_filter(count);
  pipeline.step(context, {x}, {x});
  world.network().set_filter(nullptr);
  const std::lock_guard<std::mutex> lock(mutex);
  const uint64_t message = weft::hash64("weft::pipeline_internal::bring_message");
  EXPECT_EQ(calls[message], 2 * (kStages - 1) * kMicroBatches);
  calls.erase(message);
  ASSERT_EQ(calls.size(), 1u) << "only run() is called beside";
  EXPECT_EQ(calls.begin()->second, kStages);
}

TEST(PipelineTest, AWorkerThatDiesFailsTheStep) {
  WorkerWorld world(3);
  const weft::WorkerScope scope(world[0]);
  Pipeline pipeline(layers({"worker1", "worker2"}),
                    {squared_error, weft::schedules::zero_bubble(2, 4)});
  const at::Tensor x = torch::zeros({8, kWidth}, torch::kDouble);
  world.kill(2);
  const Context context;
  const absl::Status failed = error_of([&] {
    pipeline.step(context, {x}, {x});
    return 0;
  });
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
  EXPECT_TRUE(gradients_at(pipeline.parameters()[0]).empty());
}

}  // namespace pipeline_test
