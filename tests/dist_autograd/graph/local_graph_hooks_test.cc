#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>

#include "weft/dist_autograd/graph/local_graph.h"
#include "weft/tests/dist_autograd/graph/local_world.h"

namespace weft::dist_autograd_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::autograd::variable_list;

struct CountingPostHook : torch::autograd::FunctionPostHook {
  explicit CountingPostHook(std::function<void(const variable_list&)> seen)
      : seen(std::move(seen)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    seen(inputs);
    return outputs;
  }
  std::function<void(const variable_list&)> seen;
};

TEST(LocalGraphHooks, LeafHooksRunOnceWithTheWholeGradient) {
  const SendId out{{0, 1}, 1};
  const at::Tensor a = leaf();
  const auto accumulator = torch::autograd::impl::grad_accumulator(a);
  std::vector<at::Tensor> seen, after;
  int callbacks = 0;
  a.register_hook([&](const at::Tensor& gradient) {
    seen.push_back(gradient);
    return gradient * 10;
  });
  LocalGraph graph({});
  accumulator->add_post_hook(std::make_unique<CountingPostHook>([&](const variable_list& inputs) {
    after.push_back(inputs.at(0));
    ASSERT_NE(graph.staged(a), nullptr);
    expect_equal(*graph.staged(a), inputs.at(0));
    torch::autograd::Engine::get_default_engine().queue_callback([&] { ++callbacks; });
  }));
  const SendRecord send = record_send(out, kPeer, {a * 2});
  expect_ok(graph.engage({a.sum()}, {&send}));
  expect_ok(graph.feed_roots());
  EXPECT_THAT(seen, IsEmpty());
  expect_ok(graph.feed(out, {torch::full({3}, 3, torch::kDouble)}));
  ASSERT_EQ(seen.size(), 1u);
  expect_equal(seen[0], torch::full({3}, 7, torch::kDouble));
  ASSERT_EQ(after.size(), 1u);
  expect_equal(after[0], torch::full({3}, 70, torch::kDouble));
  EXPECT_EQ(callbacks, 1);
  expect_equal(graph.take_leaves().at(0).gradient, torch::full({3}, 70, torch::kDouble));
}

TEST(LocalGraphHooks, HooksOfNodesAndReceivedTensorsRunAsInLibTorch) {
  LocalWorld world(2);
  const at::Tensor a = leaf();
  const at::Tensor t = a * 2;
  std::vector<std::string> order;
  t.register_hook([&](const at::Tensor& g) {
    order.push_back("tensor");
    return g * 2;
  });
  t.retain_grad();
  t.grad_fn()->add_post_hook(
      std::make_unique<CountingPostHook>([&](const variable_list&) { order.push_back("post"); }));
  const at::Tensor received = world.transfer(0, 1, t);
  received.register_hook([&](const at::Tensor& g) {
    order.push_back("recv");
    return g + 1;
  });
  received.retain_grad();
  expect_ok(world.backward(1, {received.sum()}));
  EXPECT_THAT(order, ElementsAre("recv", "tensor", "post"));
  expect_equal(received.grad(), torch::full({3}, 2, torch::kDouble));
  expect_equal(t.grad(), torch::full({3}, 4, torch::kDouble));
  expect_equal(world.gradient(0, a), torch::full({3}, 8, torch::kDouble));
}

struct Observer {
  absl::Status leaf_final(const at::Tensor& variable, at::Tensor& gradient) {
    ++calls;
    if (fail) return absl::UnavailableError("no bucket");
    EXPECT_TRUE(variable.is_leaf());
    EXPECT_EQ(gradient.storage().use_count(), 1u);
    gradient = gradient / 4;
    return absl::OkStatus();
  }
  int calls = 0;
  bool fail = false;
};

TEST(LocalGraphHooks, ObserverSeesAndReplacesEachFinalGradient) {
  LocalWorld world(2);
  const at::Tensor a = leaf(), b = leaf(), unreached = leaf();
  Observer observer;
  const auto on_leaf = [&](const at::Tensor& variable, at::Tensor& gradient) {
    return observer.leaf_final(variable, gradient);
  };
  world.transfer(0, 1, unreached);
  const at::Tensor loss = (world.transfer(0, 1, a) * world.transfer(0, 1, (a + b) * 2)).sum();
  expect_ok(world.backward(1, {loss}, {.retain_graph = true, .on_leaf = {{0, on_leaf}}}));
  EXPECT_EQ(observer.calls, 2);
  expect_equal(world.gradient(0, b), oracle((a * (a + b) * 2).sum(), b) / 4);
  observer.fail = true;
  const absl::Status failed = world.backward(1, {loss}, {.on_leaf = {{0, on_leaf}}});
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  expect_equal(world.gradient(0, b), oracle((a * (a + b) * 2).sum(), b) / 4);
}

TEST(LocalGraphHooks, NodesRunWithRecordingOffAndMayRunLibTorchsEngine) {
  LocalWorld world(1);
  const at::Tensor a = leaf();
  bool recording = true;
  Custom::Backward backward = [&](const at::Tensor& gradient) {
    recording = torch::GradMode::is_enabled();
    torch::AutoGradMode on(true);
    const at::Tensor x = torch::full({3}, 3.0, torch::kDouble).set_requires_grad(true);
    return gradient * torch::autograd::grad({(x * x).sum()}, {x}).at(0);
  };
  for (const bool engine_scope : {false, true}) {
    expect_ok(world.backward(0, {custom(a, backward).sum()}, {.engine_scope = engine_scope}));
    EXPECT_FALSE(recording);
  }
  expect_equal(world.gradient(0, a), torch::full({3}, 12, torch::kDouble));
  EXPECT_FALSE(world.gradient(0, a).requires_grad());
}

}  // namespace
}  // namespace weft::dist_autograd_internal
