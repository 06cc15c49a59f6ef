#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/graph/local_graph.h"
#include "weft/tests/dist_autograd/graph/local_world.h"

namespace weft::dist_autograd_internal {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LocalGraphErrors, FailedPassesNameTheNodeAndPublishNothing) {
  LocalWorld world(2);
  const at::Tensor a = leaf(), b = leaf();
  int runs = 0;
  Custom::Backward backward = [&](const at::Tensor& gradient) {
    if (++runs <= 50) throw std::runtime_error("the disk is full");
    return gradient;
  };
  const at::Tensor loss = (world.transfer(0, 1, custom(a * b, backward)) * 3).sum();
  for (int round = 0; round < 50; ++round) {
    const absl::Status status = world.backward(1, {loss}, {.retain_graph = true});
    ASSERT_EQ(status.code(), absl::StatusCode::kUnknown);
    ASSERT_THAT(status.message(), HasSubstr("Custom"));
    ASSERT_THAT(status.message(), HasSubstr("the disk is full"));
    ASSERT_EQ(world.gradients(0), 0u);
  }
  expect_ok(world.backward(1, {loss}));
  expect_equal(world.gradient(0, a), 3 * b.detach());
}

TEST(LocalGraphErrors, FirstErrorIsFinalAndDropsTheStage) {
  for (const bool engine_scope : {false, true}) {
    const at::Tensor a = leaf();
    const at::Tensor b = leaf();
    a.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
    LocalGraph graph({.engine_scope = engine_scope});
    const SendRecord send = record_send({{0, 1}, 1}, kPeer, {a * 2});
    expect_ok(graph.engage({b.sum()}, {&send}));
    expect_ok(graph.feed_roots());
    EXPECT_NE(graph.staged(b), nullptr);
    const absl::Status status = graph.feed(send.id, {torch::ones({3}, torch::kDouble)});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(graph.failed_node(), "torch::autograd::AccumulateGrad");
    EXPECT_EQ(graph.staged(b), nullptr);
    EXPECT_THAT(graph.take_leaves(), IsEmpty());
    EXPECT_EQ(graph.cancel(send.id), status);
    EXPECT_FALSE(graph.waiting());
  }
}

TEST(LocalGraphErrors, GradientsThatDoNotFitAreRefusedByName) {
  const SendId out{{0, 1}, 9};
  const SendRecord send = record_send(out, kPeer, {leaf() * 2, torch::ones({3})});
  const at::Tensor good = torch::ones({3}, torch::kDouble);
  const std::vector<std::pair<std::vector<at::Tensor>, const char*>> cases = {
      {{torch::ones({4}, torch::kDouble), {}}, "invalid gradient at index 0"},
      {{good}, "1 gradients for the 2 tensors"},
      {{good, good, good}, "3 gradients for the 2 tensors"},
      {{good, good}, "tensor 1"},
  };
  for (const auto& [gradients, text] : cases) {
    LocalGraph graph({});
    expect_ok(graph.engage({}, {&send}));
    const absl::Status status = graph.feed(out, gradients);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), HasSubstr("send(w0.1,9)"));
    EXPECT_THAT(status.message(), HasSubstr("w7.1"));
  }
}

TEST(LocalGraphErrors, SourcesAreUsedOnceAndMustBelongToThePass) {
  const SendId out{{0, 1}, 1}, other{{0, 1}, 2}, unknown{{0, 1}, 3};
  const at::Tensor a = leaf();
  const SendRecord first = record_send(out, kPeer, {a * 2}),
                   second = record_send(other, kPeer, {a});
  LocalGraph graph({});
  expect_ok(graph.engage({}, {&first, &second}));
  EXPECT_EQ(graph.feed_roots().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(graph.feed(unknown, {}).code(), absl::StatusCode::kNotFound);
  const at::Tensor one = torch::ones({3}, torch::kDouble);
  expect_ok(graph.feed(out, {one}));
  EXPECT_EQ(graph.feed(out, {one}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(graph.cancel(out).code(), absl::StatusCode::kFailedPrecondition);
  expect_ok(graph.cancel(other));
  EXPECT_EQ(graph.feed(other, {one}).code(), absl::StatusCode::kFailedPrecondition);
  expect_equal(graph.take_leaves().at(0).gradient, 2 * one);
}

TEST(LocalGraphErrors, RootsAreScalarsOfAGraph) {
  const at::Tensor a = leaf();
  for (const at::Tensor& root : {a * 2, torch::ones({}), a.sum().detach(), at::Tensor()}) {
    LocalGraph graph({});
    EXPECT_EQ(graph.engage({root}, {}).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(LocalGraphErrors, SavedTensorThatChangedIsAnError) {
  LocalWorld world(2);
  const at::Tensor a = leaf();
  at::Tensor factor = torch::rand({3}, torch::kDouble);
  const at::Tensor received = world.transfer(0, 1, a * factor);
  factor.add_(1);
  const absl::Status status = world.backward(1, {received.sum()});
  EXPECT_THAT(status.message(), HasSubstr("MulBackward0"));
  EXPECT_THAT(status.message(), HasSubstr("modified by an inplace operation"));
}

TEST(LocalGraphErrors, AnomalyModeFindsTheNodeThatMadeANan) {
  torch::autograd::DetectAnomalyGuard anomaly;
  LocalWorld world(2);
  const at::Tensor a = torch::zeros({3}, torch::kDouble).set_requires_grad(true);
  const at::Tensor received = world.transfer(0, 1, a.sqrt() * 0);  // 0 * inf in the backward pass
  const absl::Status status = world.backward(1, {received.sum()});
  EXPECT_THAT(status.message(), HasSubstr("SqrtBackward0: returned nan values in its 0th output"));
}

TEST(LocalGraphErrors, StopTakesEffectBeforeTheNextNode) {
  const at::Tensor a = leaf();
  LocalGraph graph({});
  const at::Tensor middle = a * 2;
  middle.register_hook([&](const at::Tensor&) { graph.stop(); });
  expect_ok(graph.engage({middle.sum()}, {}));
  const absl::Status status = graph.feed_roots();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(graph.executed(), 2u) << "the sum and the product, not the leaf";
  EXPECT_EQ(graph.nodes(), 3u);
  EXPECT_THAT(graph.take_leaves(), IsEmpty());
}

TEST(LocalGraphErrors, HookMayNotEnterItsOwnPass) {
  const at::Tensor a = leaf();
  const SendRecord send = record_send({{0, 1}, 1}, kPeer, {a * 2});
  LocalGraph graph({});
  absl::Status inner;
  const at::Tensor middle = a * 2;
  middle.register_hook([&](const at::Tensor&) { inner = graph.cancel(send.id); });
  expect_ok(graph.engage({middle.sum()}, {&send}));
  expect_ok(graph.feed_roots());
  EXPECT_EQ(inner.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weft::dist_autograd_internal
