// Stages whose actions run in any order that is possible, compared with the model in one graph.
#include "weft/pipeline/stage/stage_run.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/pipeline/schedules/internal/action_graph.h"
#include "weft/pipeline/schedules/schedules.h"

namespace weft::pipeline_internal {
namespace {

using ::testing::HasSubstr;

// A stage with as many inputs as it takes from other stages, or one of the pipeline, and two
// outputs.
struct StageModule : torch::nn::Module {
  StageModule(int inputs, bool drops) : drops_(drops) {
    for (int i = 0; i < inputs; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(6, 6)));
    }
    scale = register_parameter("scale", torch::rand({6}));
  }
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs) {
    at::Tensor x = torch::zeros_like(inputs[0]);
    for (size_t i = 0; i < inputs.size(); ++i) x = x + layers[i](inputs[i]) * inputs[i].sin();
    if (drops_) x = torch::dropout(x, 0.3, /*train=*/true);
    return {x.tanh() * scale, x * 0.5};
  }

  std::vector<torch::nn::Linear> layers;
  at::Tensor scale;

 private:
  const bool drops_;
};

// A random pipeline, and the same model in one graph.
class RandomPipeline {
 public:
  static constexpr uint64_t kSeed = 77;

  explicit RandomPipeline(uint32_t seed) : random_(seed) {
    torch::manual_seed(seed);
    stages_ = 1 + pick(6);
    micro_batches_ = 1 + pick(5);
    graph_ = StageGraph::chain(stages_);
    for (int stage = 2; stage < stages_; ++stage) {
      for (int from = 0; from < stage - 1; ++from) {
        if (pick(3) == 0)
          graph_.inputs[index(stage)].insert(graph_.inputs[index(stage)].begin(), from);
      }
      std::sort(graph_.inputs[index(stage)].begin(), graph_.inputs[index(stage)].end());
    }
    for (int stage = 0; stage < stages_; ++stage) {
      const int inputs = std::max<int>(1, static_cast<int>(graph_.inputs[index(stage)].size()));
      const bool drops = pick(2) == 0;
      modules_.push_back(std::make_shared<StageModule>(inputs, drops));
      twins_.push_back(std::make_shared<StageModule>(inputs, drops));
      const torch::NoGradGuard off;
      for (size_t i = 0; i < modules_.back()->parameters().size(); ++i) {
        twins_.back()->parameters()[i].copy_(modules_.back()->parameters()[i]);
      }
    }
    for (int batch = 0; batch < micro_batches_; ++batch) {
      batches_.push_back(torch::randn({1 + pick(4), 6}));  // uneven
      rows_ += batches_.back().size(0);
    }
  }

  // Runs the micro-batches one after the other in one graph.
  void run_whole() {
    for (int batch = 0; batch < micro_batches_; ++batch) {
      std::vector<std::vector<at::Tensor>> outputs;
      for (int stage = 0; stage < stages_; ++stage) {
        std::vector<at::Tensor> inputs;
        for (const int from : graph_.inputs[index(stage)]) {
          inputs.push_back(outputs[index(from)][output_of(from, stage)].clone());
        }
        if (inputs.empty()) inputs.push_back(batches_[index(batch)]);
        torch::manual_seed(StageRun::seed_of(kSeed, stage, batch));
        outputs.push_back(twins_[index(stage)]->forward(inputs));
      }
      outputs.back()[0].sum().backward(weight_of(batch));
    }
  }

  // Runs the actions in a random order, among those that are possible.
  void run_stages() {
    std::deque<StageRun> runs;
    for (int stage = 0; stage < stages_; ++stage) {
      runs.emplace_back(StageRun::Options{stage, micro_batches_, kSeed, forward_of(stage)});
    }
    const ActionGraph actions = ActionGraph::make(random_schedule(), graph_).value();
    std::vector<size_t> open(actions.nodes().size());
    for (size_t i = 0; i < open.size(); ++i) open[i] = i;
    std::vector<bool> done(open.size());
    while (!open.empty()) {
      const size_t at = static_cast<size_t>(pick(static_cast<int>(open.size())));
      const auto& needs = actions.nodes()[open[at]].needs;
      if (!std::all_of(needs.begin(), needs.end(), [&](int need) { return done[index(need)]; }))
        continue;
      perform(runs, actions.nodes()[open[at]].action);
      done[open[at]] = true;
      open.erase(open.begin() + static_cast<ptrdiff_t>(at));
    }
    for (int stage = 0; stage < stages_; ++stage) compare(stage, runs[index(stage)]);
  }

 private:
  static size_t index(int number) { return static_cast<size_t>(number); }
  int pick(int below) { return static_cast<int>(random_() % static_cast<uint32_t>(below)); }
  // The output of `from` that `to` takes.
  static size_t output_of(int from, int to) { return index((from + to) % 2); }
  at::Tensor weight_of(int batch) const {
    return torch::full(
        {}, static_cast<double>(batches_[index(batch)].size(0)) / static_cast<double>(rows_),
        torch::kFloat);
  }
  StageRun::Forward forward_of(int stage) {
    const bool last = stage == stages_ - 1;
    return [module = modules_[index(stage)], last](const std::vector<at::Tensor>& inputs) {
      std::vector<at::Tensor> outputs = module->forward(inputs);
      if (last) outputs = {outputs[0].sum()};
      return outputs;
    };
  }

  // Each micro-batch of each stage is split or not, and recomputed or not.
  PipelineSchedule random_schedule() {
    PipelineSchedule schedule;
    for (int stage = 0; stage < stages_; ++stage) {
      auto& row = schedule.workers.emplace_back();
      for (int batch = 0; batch < micro_batches_; ++batch) {
        row.push_back({stage, StageWork::kForward, batch});
        if (pick(3) == 0) {
          row.push_back({stage, StageWork::kRecompute, batch});
          recomputed_.insert({stage, batch});
        }
        if (pick(3) == 0) {
          row.push_back({stage, StageWork::kBackward, batch});
        } else {
          row.push_back({stage, StageWork::kInputGradients, batch});
          row.push_back({stage, StageWork::kWeightGradients, batch});
        }
      }
    }
    return schedule;
  }

  void perform(std::deque<StageRun>& runs, const StageAction& action) {
    const auto [stage, work, batch] = action;
    StageRun& run = runs[index(stage)];
    switch (work) {
      case StageWork::kForward: {
        StageTensors inputs;
        for (const int from : graph_.inputs[index(stage)]) {
          const StageTensors& made = outputs_.at({from, batch});
          inputs.values.push_back(made.values[output_of(from, stage)]);
          inputs.requires_grad.push_back(made.requires_grad[output_of(from, stage)]);
        }
        if (inputs.values.empty()) inputs = {{batches_[index(batch)]}, {false}};
        outputs_[{stage, batch}] =
            run.forward(batch, inputs, recomputed_.contains({stage, batch})).value();
        break;
      }
      case StageWork::kRecompute:
        ASSERT_TRUE(run.recompute(batch).ok());
        break;
      case StageWork::kWeightGradients:
        ASSERT_TRUE(run.weight_gradients(batch).ok());
        break;
      default: {
        std::vector<at::Tensor> gradients = gradients_of(stage, batch);
        const auto back = work == StageWork::kBackward
                              ? run.backward(batch, std::move(gradients))
                              : run.input_gradients(batch, std::move(gradients));
        ASSERT_TRUE(back.ok()) << back.status();
        answers_[{stage, batch}] = *back;
      }
    }
  }

  // One graph adds the gradients of later stages first.
  std::vector<at::Tensor> gradients_of(int stage, int batch) {
    if (stage == stages_ - 1) return {weight_of(batch)};
    std::vector<at::Tensor> gradients(2);
    for (int user = stages_ - 1; user > stage; --user) {
      const auto& inputs = graph_.inputs[index(user)];
      const auto found = std::find(inputs.begin(), inputs.end(), stage);
      if (found == inputs.end()) continue;
      const at::Tensor& one =
          answers_.at({user, batch})[index(static_cast<int>(found - inputs.begin()))];
      at::Tensor& sum = gradients[output_of(stage, user)];
      sum = sum.defined() ? sum + one : one;
    }
    return gradients;
  }

  void compare(int stage, StageRun& run) {
    EXPECT_TRUE(run.complete());
    const auto sums = run.take_gradients().value();
    const auto parameters = modules_[index(stage)]->parameters(),
               twins = twins_[index(stage)]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto sum = std::find_if(sums.begin(), sums.end(), [&](const auto& leaf) {
        return leaf.variable.is_same(parameters[i]);
      });
      const at::Tensor expected = twins[i].grad();
      ASSERT_EQ(sum != sums.end(), expected.defined()) << "stage " << stage;
      if (expected.defined())
        EXPECT_TRUE(torch::equal(sum->gradient, expected)) << "stage " << stage;
    }
  }

  std::mt19937 random_;
  int stages_ = 0;
  int micro_batches_ = 0;
  int64_t rows_ = 0;
  StageGraph graph_;
  std::vector<std::shared_ptr<StageModule>> modules_, twins_;
  std::vector<at::Tensor> batches_;
  std::set<std::pair<int, int>> recomputed_;
  std::map<std::pair<int, int>, StageTensors> outputs_;
  std::map<std::pair<int, int>, std::vector<at::Tensor>> answers_;
};

TEST(StageRunTest, AnyOrderHasTheBitsOfOneGraph) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomPipeline pipeline(seed);
    pipeline.run_whole();
    pipeline.run_stages();
    if (HasFailure()) return;
  }
}

// ---- errors

StageRun::Options linear(const std::shared_ptr<torch::nn::LinearImpl>& layer) {
  return {3, 2, 1, [layer](const std::vector<at::Tensor>& in) {
            return std::vector<at::Tensor>{layer->forward(in[0])};
          }};
}

TEST(StageRunTest, ActionsThatComeTooEarlyOrTwiceAreNamed) {
  const auto layer = std::make_shared<torch::nn::LinearImpl>(2, 2);
  StageRun run(linear(layer));
  const StageTensors input{{torch::ones({1, 2})}, {true}};
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(message(run.input_gradients(0, {}).status()),
              HasSubstr("3I0: what it needs was not done"));
  ASSERT_TRUE(run.forward(0, input).ok());
  EXPECT_THAT(message(run.forward(0, input).status()), HasSubstr("3F0: it was done before"));
  EXPECT_THAT(message(run.weight_gradients(0)), HasSubstr("3W0: "));
  EXPECT_THAT(message(run.recompute(0)), HasSubstr("3R0: "));
  ASSERT_TRUE(run.backward(0, {torch::ones({1, 2})}).ok());
  EXPECT_THAT(message(run.backward(0, {torch::ones({1, 2})}).status()), HasSubstr("3B0: "));
  EXPECT_THAT(message(run.forward(0, input).status()), HasSubstr("3F0: it was done before"));
  EXPECT_THAT(std::string(run.forward(2, input).status().message()),
              HasSubstr("3F2: the step has 2 micro-batches"));
}

TEST(StageRunTest, WhatAForwardOrANodeThrowsIsNamed) {
  StageRun throws({1, 1, 1, [](const std::vector<at::Tensor>&) -> std::vector<at::Tensor> {
                     throw std::runtime_error("no data");
                   }});
  const absl::Status failed = throws.forward(0, {{torch::ones({1})}, {false}}).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(std::string(failed.message()), "1F0: no data");
  const auto layer = std::make_shared<torch::nn::LinearImpl>(2, 2);
  StageRun run(linear(layer));
  ASSERT_TRUE(run.forward(0, {{torch::ones({1, 2})}, {true}}).ok());
  const absl::Status misshapen = run.input_gradients(0, {torch::ones({1, 3})}).status();
  EXPECT_EQ(misshapen.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(misshapen.message()), HasSubstr("3I0: "));
}

TEST(StageRunTest, WhatTheForwardReturnsIsChecked) {
  std::vector<std::vector<at::Tensor>> returned = {
      {at::Tensor()},
      {torch::ones({1}, torch::TensorOptions().device(torch::kMeta))},
      {torch::ones({1})},
      {torch::ones({1}), torch::ones({1})}};
  size_t next = 0;
  StageRun run({1, 4, 1, [&](const std::vector<at::Tensor>&) { return returned[next++]; }});
  const StageTensors input{{torch::ones({1})}, {true}};
  const auto message = [&](int batch) {
    const absl::Status status = run.forward(batch, input).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(0), "1F0: output 0 is undefined");
  EXPECT_EQ(message(0), "1F0: output 0 is on meta, not on the CPU");
  EXPECT_TRUE(run.forward(0, input).ok()) << "a forward that failed may be done again";
  EXPECT_EQ(message(1), "1F1: the forward returned 2 tensors, and before it returned 1");
  const absl::Status flags = run.forward(1, {{torch::ones({1})}, {}}).status();
  EXPECT_EQ(std::string(flags.message()),
            "1F1: 1 inputs have 0 flags whether they require gradients");
}

TEST(StageRunTest, GradientsThatDoNotFitAreNamed) {
  const auto fails = [](std::vector<at::Tensor> gradients) {
    StageRun run({1, 1, 1, [](const std::vector<at::Tensor>& in) {
                    return std::vector<at::Tensor>{in[0] * 2, torch::ones({1})};
                  }});
    EXPECT_TRUE(run.forward(0, {{torch::ones({2})}, {true}}).ok());
    const absl::Status status = run.backward(0, std::move(gradients)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(run.forward(0, {}).status(), status) << "the error is final";
    return std::string(status.message());
  };
  EXPECT_EQ(fails({torch::ones({2})}), "1B0: 1 gradients came for 2 outputs");
  EXPECT_EQ(fails({torch::ones({2}), torch::ones({1})}),
            "1B0: a gradient came for output 1, which requires none");
  EXPECT_THAT(fails({torch::ones({3}), {}}),
              HasSubstr("1B0: of the outputs' gradients, an invalid"));
}

TEST(StageRunTest, SumsAreTakenOnceAndWhenTheyAreComplete) {
  const auto layer = std::make_shared<torch::nn::LinearImpl>(2, 2);
  StageRun run(linear(layer));
  const StageTensors input{{torch::ones({1, 2})}, {true}};
  for (const int batch : {1, 0}) {
    const absl::Status early = run.take_gradients().status();
    EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(std::string(early.message()),
              "stage 3: the gradients of 0 of 2 micro-batches are in the sum");
    ASSERT_TRUE(run.forward(batch, input).ok());
    ASSERT_TRUE(run.backward(batch, {torch::ones({1, 2})}).ok());
  }
  EXPECT_EQ(run.take_gradients()->size(), 2u);
  EXPECT_EQ(run.take_gradients().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(StageRunTest, AForwardThatChangesItsInputsCanBeDoneAgain) {
  StageRun run({0, 1, 1, [](std::vector<at::Tensor> in) {
                  const at::Tensor doubled = in[0].mul_(2);
                  return std::vector<at::Tensor>{doubled * doubled};  // 4 x^2
                }});
  ASSERT_TRUE(run.forward(0, {{torch::ones({2})}, {true}}, /*recomputed=*/true).ok());
  ASSERT_TRUE(run.recompute(0).ok());
  const auto back = run.backward(0, {torch::ones({2})});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(torch::equal(back->at(0), torch::full({2}, 8.0)));
}

TEST(StageRunTest, ARecomputingThatThrowsIsFinal) {
  int calls = 0;
  StageRun run({0, 1, 1, [&](std::vector<at::Tensor> in) {
                  if (++calls == 2) throw std::runtime_error("no memory");
                  return in;
                }});
  ASSERT_TRUE(run.forward(0, {{torch::ones({2})}, {true}}, /*recomputed=*/true).ok());
  const absl::Status failed = run.recompute(0);
  EXPECT_EQ(std::string(failed.message()), "0R0: no memory");
  EXPECT_EQ(run.recompute(0), failed);
  EXPECT_EQ(calls, 2);
}

// A state that one micro-batch leaves to the next would be summed for the wrong inputs.
TEST(StageRunTest, AnOutputThatDependsOnAnEarlierForwardIsRefused) {
  at::Tensor state = torch::zeros({2});
  StageRun run({1, 2, 1, [&](const std::vector<at::Tensor>& in) {
                  state = (in[0] + state).tanh();
                  return std::vector<at::Tensor>{state};
                }});
  const StageTensors input{{torch::ones({2})}, {true}};
  ASSERT_TRUE(run.forward(0, input).ok());
  ASSERT_TRUE(run.forward(1, input).ok());
  ASSERT_TRUE(run.input_gradients(0, {torch::ones({2})}).ok());
  const absl::Status refused = run.input_gradients(1, {torch::ones({2})}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1I1: the outputs depend on "));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("recorded before this forward"));
}

TEST(StageRunTest, AnOutputThatDependsOnAnotherMicroBatchsInputIsRefused) {
  at::Tensor kept;
  StageRun run({1, 2, 1, [&](const std::vector<at::Tensor>& in) {
                  if (!kept.defined()) kept = in[0];
                  return std::vector<at::Tensor>{in[0] * kept};
                }});
  const StageTensors input{{torch::ones({2})}, {true}};
  ASSERT_TRUE(run.forward(0, input).ok());
  ASSERT_TRUE(run.forward(1, input).ok());
  ASSERT_TRUE(run.backward(0, {torch::ones({2})}).ok());
  EXPECT_EQ(std::string(run.backward(1, {torch::ones({2})}).status().message()),
            "1B1: the outputs depend on an input of another micro-batch");
}

TEST(StageRunTest, DropoutDependsOnTheMicroBatchAndLeavesTheGeneratorAlone) {
  const StageRun::Options options{
      0, 2, 5, [](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{torch::dropout(in[0], 0.5, true)};
      }};
  torch::manual_seed(1);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(1);
  StageRun forwards(options), backwards(options);
  const StageTensors input{{torch::ones({64})}, {true}};
  const at::Tensor a0 = forwards.forward(0, input)->values[0],
                   a1 = forwards.forward(1, input)->values[0];
  const at::Tensor b1 = backwards.forward(1, input)->values[0],
                   b0 = backwards.forward(0, input)->values[0];
  EXPECT_TRUE(torch::equal(a0, b0));
  EXPECT_TRUE(torch::equal(a1, b1));
  EXPECT_FALSE(torch::equal(a0, a1));
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

}  // namespace
}  // namespace weft::pipeline_internal
