// A backward in two halves: first the gradients of what was received, then those of the weights.
// local_graph_random_test.cc compares its bits with the whole backward's on random programs.
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "weft/dist_autograd/graph/internal/split_node.h"
#include "weft/tests/dist_autograd/graph/local_world.h"

namespace weft::dist_autograd_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SendId kIn{kPeer, 1}, kOut{{0, 1}, 1};

// One stage of a pipeline: its input has come, its output has left.
class Stage {
 public:
  using Module = torch::nn::Sequential;
  Stage(Module module, const at::Tensor& input, bool split, bool retain = false)
      : module_(std::move(module)) {
    std::vector<at::Tensor> received = {input.detach().clone()};
    expect_ok(attach_recv(kIn, received, {true}));
    output_ = module_->forward(received[0]);
    record_ = record_send(kOut, kPeer, {output_});
    LocalGraphOptions options;
    options.split = split;
    options.retain_graph = retain;
    options.on_answer = [this](RecvAnswer answer) { answer_ = std::move(answer); };
    graph_.emplace(std::move(options));
    const SendRecord* const sends[] = {&record_};
    expect_ok(graph_->engage({}, sends));
  }

  absl::Status feed() { return graph_->feed(kOut, {torch::ones_like(output_) * 0.01}); }
  LocalGraph& graph() { return *graph_; }
  const std::optional<RecvAnswer>& answer() const { return answer_; }
  const at::Tensor& output() const { return output_; }

 private:
  Module module_;
  at::Tensor output_;
  SendRecord record_;
  std::optional<RecvAnswer> answer_;
  std::optional<LocalGraph> graph_;
};

torch::nn::Sequential layers() {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)), torch::nn::BatchNorm2d(8),
      torch::nn::ReLU(), torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 3).padding(1)),
      torch::nn::Flatten(), torch::nn::Linear(4 * 6 * 6, 5), torch::nn::Tanh());
}

TEST(SplitBackward, HasTheBitsOfTheWholeBackward) {
  const torch::nn::Sequential net = layers();
  const at::Tensor input = torch::randn({2, 3, 6, 6});
  Stage whole(net, input, false), split(net, input, true);
  expect_ok(whole.feed());
  expect_ok(split.feed());
  ASSERT_TRUE(split.answer().has_value()) << "the input's gradient does not wait for the weights";
  EXPECT_TRUE(torch::equal(split.answer()->gradients[0], whole.answer()->gradients[0]));
  EXPECT_THAT(split.graph().take_leaves(), IsEmpty());
  expect_ok(split.graph().run_weights());
  const auto expected = whole.graph().take_leaves(), got = split.graph().take_leaves();
  ASSERT_EQ(got.size(), net->parameters().size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].variable.is_same(expected[i].variable)) << "in the same order";
    EXPECT_TRUE(torch::equal(got[i].gradient, expected[i].gradient)) << i;
  }
  EXPECT_EQ(split.graph().executed(), whole.graph().executed()) << "a node counts once";
}

TEST(SplitBackward, SavedTensorsAreFreedByTheirHalf) {
  const torch::nn::Sequential net = layers();
  const at::Tensor input = torch::randn({2, 3, 6, 6});
  Stage split(net, input, true);
  const auto& last = split.output().grad_fn();      // of Tanh
  const auto linear = last->next_edge(0).function;  // of Linear
  expect_ok(split.feed());
  at::AutoGradMode off(false);
  EXPECT_ANY_THROW((*last)({torch::ones_like(split.output())})) << "only inputs come after it";
  EXPECT_NO_THROW((*linear)({torch::ones_like(split.output())})) << "it still has weights to do";
  expect_ok(split.graph().run_weights());
  EXPECT_ANY_THROW((*linear)({torch::ones_like(split.output())}));
}

TEST(SplitBackward, AStageWithoutInputsComputesAllWithTheWeights) {
  const at::Tensor w = leaf();
  const at::Tensor y = (w * w).sin();
  SendRecord record = record_send(kOut, kPeer, {y});
  LocalGraph graph({.split = true});
  const SendRecord* const sends[] = {&record};
  expect_ok(graph.engage({}, sends));
  expect_ok(graph.feed(kOut, {torch::ones_like(y)}));
  EXPECT_FALSE(graph.waiting());
  EXPECT_EQ(graph.executed(), 0u);
  expect_ok(graph.run_weights());
  expect_equal(graph.take_leaves().at(0).gradient, oracle((w * w).sin().sum(), w));
}

TEST(SplitBackward, HooksOfANodeRunOnceAndAPostHookKeepsItWhole) {
  const torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  Stage split(net, torch::randn({3, 4}), true);
  std::vector<std::string> seen;
  struct Hook final : torch::autograd::FunctionPostHook {
    explicit Hook(std::vector<std::string>& seen_in) : seen(seen_in) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      seen.push_back(outputs.at(0).defined() && outputs.at(2).defined() ? "post, whole"
                                                                        : "post, part");
      return outputs;
    }
    std::vector<std::string>& seen;
  };
  const auto last = split.output().grad_fn();
  EXPECT_TRUE(can_split(*last));
  last->add_post_hook(std::make_unique<Hook>(seen));
  EXPECT_FALSE(can_split(*last));
  split.output().register_hook([&](const at::Tensor&) { seen.emplace_back("tensor"); });
  net->parameters()[0].register_hook([&](const at::Tensor&) { seen.emplace_back("weight"); });
  expect_ok(split.feed());
  EXPECT_THAT(seen, ElementsAre("tensor", "post, whole"));
  expect_ok(split.graph().run_weights());
  EXPECT_THAT(seen, ElementsAre("tensor", "post, whole", "weight"));
}

TEST(SplitBackward, HooksOfLeavesCanBeLeftOut) {
  const at::Tensor w = leaf();
  int calls = 0;
  w.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  for (const bool hooks : {false, true}) {
    const at::Tensor y = w * 3;
    SendRecord record = record_send(kOut, kPeer, {y});
    const SendRecord* const sends[] = {&record};
    LocalGraph graph({.leaf_hooks = hooks});
    expect_ok(graph.engage({}, sends));
    expect_ok(graph.feed(kOut, {torch::ones_like(y)}));
    EXPECT_EQ(calls, hooks ? 1 : 0);
    expect_equal(graph.take_leaves().at(0).gradient, torch::full_like(w, hooks ? 6 : 3));
  }
}

TEST(SplitBackward, CustomFunctionsAreNotSplit) {
  Custom::Backward backward = [](at::Tensor gradient) { return gradient; };
  EXPECT_FALSE(can_split(*custom(leaf(), backward).grad_fn()));
}

TEST(SplitBackward, AFailureAmongTheWeightsNamesTheNode) {
  std::vector<at::Tensor> received = {torch::ones({3}, torch::kDouble)};
  expect_ok(attach_recv(kIn, received, {true}));
  Custom::Backward backward = [](const at::Tensor&) -> at::Tensor {
    throw std::runtime_error("no weight");
  };
  const at::Tensor w = leaf();
  const at::Tensor y = received[0] * custom(w, backward);
  SendRecord record = record_send(kOut, kPeer, {y});
  bool answered = false;
  LocalGraphOptions options;
  options.split = true;
  options.on_answer = [&](const RecvAnswer&) { answered = true; };
  LocalGraph graph(std::move(options));
  const SendRecord* const sends[] = {&record};
  expect_ok(graph.engage({}, sends));
  expect_ok(graph.feed(kOut, {torch::ones_like(y)}));
  EXPECT_TRUE(answered);
  const absl::Status failed = graph.run_weights();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("no weight"));
  EXPECT_THAT(graph.failed_node(), HasSubstr("Custom"));
  EXPECT_THAT(graph.take_leaves(), IsEmpty());
}

TEST(SplitBackward, CallsInTheWrongOrderAreRefused) {
  const at::Tensor w = leaf();
  const at::Tensor y = w * 2;
  SendRecord record = record_send(kOut, kPeer, {y});
  const SendRecord* const sends[] = {&record};
  LocalGraph whole{LocalGraphOptions()};
  expect_ok(whole.engage({}, sends));
  EXPECT_EQ(whole.run_weights().code(), absl::StatusCode::kFailedPrecondition);
  LocalGraph split({.split = true});
  expect_ok(split.engage({}, sends));
  expect_ok(split.run_weights());
  EXPECT_EQ(split.run_weights().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(split.feed(kOut, {torch::ones_like(y)}).message()),
              HasSubstr("the weight gradients were computed already"));
}

TEST(SplitBackward, WeightsWaitUntilNoSourceIsOpenForAGradient) {
  const at::Tensor w = leaf();
  const at::Tensor y = w * 2;
  const at::Tensor z = y.sin();
  constexpr SendId kOther{{0, 1}, 2};
  SendRecord of_y = record_send(kOut, kPeer, {y}), of_z = record_send(kOther, kPeer, {z});
  const SendRecord* const sends[] = {&of_y, &of_z};
  LocalGraph graph({.split = true});
  expect_ok(graph.engage({}, sends));
  expect_ok(graph.feed(kOther, {torch::ones_like(z)}));
  const absl::Status early = graph.run_weights();
  EXPECT_EQ(early.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(early.message()), HasSubstr("wait for a source"));
  expect_ok(graph.cancel(kOut));
  expect_ok(graph.run_weights());
  expect_equal(graph.take_leaves().at(0).gradient, oracle((w * 2).sin().sum(), w));
}

TEST(SplitBackward, AHookCannotRunTheWeightsOfItsOwnPass) {
  std::vector<at::Tensor> received = {torch::ones({3}, torch::kDouble)};
  expect_ok(attach_recv(kIn, received, {true}));
  const at::Tensor y = received[0] * leaf();
  SendRecord record = record_send(kOut, kPeer, {y});
  const SendRecord* const sends[] = {&record};
  LocalGraph graph({.split = true});
  expect_ok(graph.engage({}, sends));
  absl::Status inside;
  y.register_hook([&](const at::Tensor&) { inside = graph.run_weights(); });
  expect_ok(graph.feed(kOut, {torch::ones_like(y)}));
  EXPECT_THAT(std::string(inside.message()), HasSubstr("called back into its own pass"));
  expect_ok(graph.run_weights());
}

TEST(SplitBackward, StopsBetweenTwoNodes) {
  const torch::nn::Sequential net = layers();
  Stage split(net, torch::randn({2, 3, 6, 6}), true);
  expect_ok(split.feed());
  split.graph().stop();
  EXPECT_EQ(split.graph().run_weights().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace weft::dist_autograd_internal
