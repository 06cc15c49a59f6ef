#include "weft/dist_autograd/graph/local_graph.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/dist_autograd/graph/local_world.h"

namespace weft::dist_autograd_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- Graphs over several workers. ---

TEST(LocalGraph, CallAndReplyMeetInOneLeafEach) {
  LocalWorld world(2);
  const at::Tensor a = leaf(), b = leaf();
  const auto sent = world.transfer(0, 1, {a, b});
  const at::Tensor sum = world.transfer(1, 0, sent[0] + sent[1] * sent[1]);
  expect_ok(world.backward(0, {sum.sum()}));
  expect_equal(world.gradient(0, a), torch::ones({3}, torch::kDouble));
  expect_equal(world.gradient(0, b), 2 * b.detach());
  EXPECT_EQ(world.messages, 2u);
  EXPECT_EQ(world.activations, 0u) << "nothing waits, so nothing is discovered";
  EXPECT_EQ(world.gradients(1), 0u);
}

TEST(LocalGraph, TensorUsedInACallAndLocallyAfterwards) {
  LocalWorld world(2);
  const at::Tensor a = leaf();
  const at::Tensor t = (2 * a).tanh();
  const at::Tensor y = world.transfer(1, 0, world.transfer(0, 1, t).sin());
  expect_ok(world.backward(0, {(y * t).sum()}));
  const at::Tensor u = (2 * a).tanh();
  expect_equal(world.gradient(0, a), oracle((u.sin() * u).sum(), a));
}

TEST(LocalGraph, TrunkBelowACallIsRunOnceWithItsWholeGradient) {
  LocalWorld world(2);
  const at::Tensor a = leaf();
  int calls = 0;
  const at::Tensor g = a * a;
  const at::Tensor f = g.sin();
  g.register_hook([&](const at::Tensor&) { ++calls; });
  const at::Tensor y = world.transfer(1, 0, world.transfer(0, 1, f).exp());
  expect_ok(world.backward(0, {(y * f * g).sum()}));
  const at::Tensor h = a * a;
  expect_equal(world.gradient(0, a), oracle((h.sin().exp() * h.sin() * h).sum(), a));
  EXPECT_EQ(calls, 1);
}

TEST(LocalGraph, DiamondOverFourWorkersWithASharedTrunk) {
  LocalWorld world(4);
  const at::Tensor a = leaf();
  const auto program = [](const at::Tensor& trunk, auto left, auto right, auto join) {
    return join(left(trunk).sin(), right(trunk).exp()).sum();
  };
  const at::Tensor trunk = (a * a).tanh();
  const at::Tensor loss = program(
      trunk, [&](const at::Tensor& x) { return world.transfer(0, 1, x); },
      [&](const at::Tensor& x) { return world.transfer(0, 2, x); },
      [&](const at::Tensor& x, const at::Tensor& y) {
        return world.transfer(1, 3, x) * world.transfer(2, 3, y);
      });
  expect_ok(world.backward(3, {loss}));
  const at::Tensor same = (a * a).tanh();
  expect_equal(world.gradient(0, a), oracle((same.sin() * same.exp()).sum(), a));
  EXPECT_EQ(world.messages, 4u);
}

TEST(LocalGraph, ChainOfTwentyHopsAndCallsToItself) {
  LocalWorld world(2);
  const at::Tensor a = leaf();
  at::Tensor value = a, same = a;
  for (int hop = 0; hop < 20; ++hop) {
    value = world.transfer(hop % 2, (hop + 1) % 2, value.sin() * 1.1);
    same = same.sin() * 1.1;
  }
  value = world.transfer(0, 0, value * 2);
  expect_ok(world.backward(0, {value.sum()}));
  expect_equal(world.gradient(0, a), oracle((same * 2).sum(), a));
  EXPECT_EQ(world.messages, 21u);
}

TEST(LocalGraph, SameTensorTwiceInOneMessageAndToTwoWorkers) {
  LocalWorld world(3);
  const at::Tensor a = leaf();
  const at::Tensor t = a * 3;
  const auto two = world.transfer(0, 1, {t, t});
  const at::Tensor one = world.transfer(0, 2, t);
  const at::Tensor back1 = world.transfer(1, 0, two[0] * two[1]);
  const at::Tensor back2 = world.transfer(2, 0, one.exp());
  expect_ok(world.backward(0, {(back1 + back2).sum()}));
  const at::Tensor s = a * 3;
  expect_equal(world.gradient(0, a), oracle((s * s + s.exp()).sum(), a));
}

TEST(LocalGraph, RootMayBeAReceivedTensorAndRootsMayBeMany) {
  LocalWorld world(2);
  const at::Tensor a = leaf(), b = leaf();
  const at::Tensor loss = world.transfer(1, 0, world.transfer(0, 1, a).sin().sum());
  expect_ok(world.backward(0, {loss, (a * b).sum(), loss}));
  expect_equal(world.gradient(0, a), oracle((2 * a.sin() + a * b).sum(), a));
  expect_equal(world.gradient(0, b), a.detach());
}

TEST(LocalGraph, TypesMayDifferWithinAMessage) {
  LocalWorld world(2);
  const at::Tensor a = torch::rand({3}, torch::kFloat).set_requires_grad(true);
  const at::Tensor b = leaf();
  const at::Tensor c = torch::rand({3}, torch::kComplexDouble).set_requires_grad(true);
  const auto sent = world.transfer(0, 1, {a, torch::arange(3), b, c});
  const at::Tensor result = sent[0] * sent[2] * torch::abs(sent[3]);
  expect_ok(world.backward(0, {world.transfer(1, 0, result).sum()}));
  const at::Tensor loss = (a * b * torch::abs(c)).sum();
  EXPECT_EQ(world.gradient(0, a).scalar_type(), torch::kFloat);
  expect_equal(world.gradient(0, a), oracle(loss, a));
  expect_equal(world.gradient(0, b), oracle(loss, b));
  expect_equal(world.gradient(0, c), oracle(loss, c));
}

TEST(LocalGraph, SparseGradientsStaySparseAndAddUp) {
  LocalWorld world(2);
  const at::Tensor table = leaf({5, 2});
  const at::Tensor rows = torch::tensor({1, 3, 1});
  const at::Tensor sent = world.transfer(0, 1, torch::embedding(table, rows, -1, false, true));
  const at::Tensor loss = sent.sin().sum();
  expect_ok(world.backward(1, {loss}, {.retain_graph = true}));
  expect_ok(world.backward(1, {loss}));
  EXPECT_TRUE(world.gradient(0, table).is_sparse());
  expect_equal(world.gradient(0, table).to_dense(),
               2 * oracle(torch::embedding(table, rows).sin().sum(), table));
}

// --- Calls for which no gradients come. ---

TEST(LocalGraph, UnusedAndLostCallsNeitherBlockNorRunHooks) {
  LocalWorld world(3);
  const at::Tensor a = leaf(), b = leaf(), dead = leaf();
  int dead_hooks = 0;
  const auto count = [&](const at::Tensor&) { ++dead_hooks; };
  dead.register_hook(count);
  const at::Tensor t = a * b;
  const at::Tensor u = dead * 2;
  u.register_hook(count);
  world.transfer(0, 1, {t, u}, /*lost=*/true);
  world.transfer(0, 2, {t, u});  // received and dropped
  const auto used = world.transfer(0, 1, {t, u});
  used[1].register_hook(count);
  const at::Tensor unused = used[1] * 2;
  world.transfer(1, 0, unused);
  expect_ok(world.backward(0, {world.transfer(1, 0, used[0].sin()).sum()}));
  EXPECT_GT(world.activations, 0u);
  expect_equal(world.gradient(0, a), oracle((a * b).sin().sum(), a));
  EXPECT_FALSE(world.gradient(0, dead).defined());
  EXPECT_EQ(dead_hooks, 0);
}

TEST(LocalGraph, UndefinedGradientsAreAnsweredWithNothing) {
  LocalWorld world(2);
  const at::Tensor a = leaf(), b = leaf();
  Custom::Backward nothing = [](const at::Tensor&) { return at::Tensor(); };
  const at::Tensor t = a * 2;
  int calls = 0;
  t.register_hook([&](const at::Tensor&) { ++calls; });
  const at::Tensor received = world.transfer(0, 1, t);
  const at::Tensor result = custom(received, nothing) + world.transfer(0, 1, b);
  expect_ok(world.backward(0, {(world.transfer(1, 0, result) * t).sum()}));
  EXPECT_EQ(world.empty_answers, 1u);
  EXPECT_EQ(calls, 1) << "t waits for the empty answer, then runs with its local part";
  EXPECT_TRUE(world.gradient(0, a).defined());
}

TEST(LocalGraph, ReachNamesEachReceivedMessageOnceAndRunsNothing) {
  const SendId first{{1, 1}, 1}, second{{2, 1}, 1}, out{{0, 1}, 1};
  std::vector<at::Tensor> one = {torch::ones(1), torch::ones(1)}, two = {torch::ones(1)};
  expect_ok(attach_recv(first, one, {true, true}));
  expect_ok(attach_recv(second, two, {true}));
  const SendRecord send = record_send(out, kPeer, {one[1] + two[0], one[0]});
  LocalGraph graph({});
  expect_ok(graph.engage({(one[0] * one[1]).sum()}, {&send}));
  EXPECT_THAT(*graph.reach_roots(), ElementsAre(first));
  EXPECT_THAT(*graph.reach(out), ElementsAre(second));
  EXPECT_THAT(*graph.reach(out), IsEmpty());
  EXPECT_EQ(graph.executed(), 0u);
  EXPECT_THAT(graph.unanswered(), ElementsAre(out));
}

TEST(LocalGraph, WaitsWhileAGradientCannotRunOrLeave) {
  const SendId in{{1, 1}, 1}, out{{0, 1}, 1};
  std::vector<at::Tensor> received = {torch::ones(1), torch::ones(1)};
  expect_ok(attach_recv(in, received, {true, true}));
  const SendRecord send = record_send(out, kPeer, {received[1] * 2});
  std::vector<RecvAnswer> answers;
  LocalGraph graph({.on_answer = [&](RecvAnswer answer) { answers.push_back(std::move(answer)); }});
  expect_ok(graph.engage({received[0].sum()}, {&send}));
  EXPECT_FALSE(graph.waiting());
  expect_ok(graph.feed_roots());
  EXPECT_TRUE(graph.waiting()) << "the message's other tensor may still get something";
  EXPECT_THAT(answers, IsEmpty());
  expect_ok(graph.cancel(out));
  EXPECT_FALSE(graph.waiting());
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].send, in);
  EXPECT_TRUE(answers[0].gradients[0].defined());
  EXPECT_FALSE(answers[0].gradients[1].defined());
  EXPECT_EQ(answers[0].bytes(), sizeof(float));
  EXPECT_FALSE(graph.fed(out));
  EXPECT_THAT(graph.unanswered(), IsEmpty());
}

TEST(LocalGraph, MessagesOfCancelledSendsAreNotAnswered) {
  const SendId in{{1, 1}, 1}, out{{0, 1}, 1};
  std::vector<at::Tensor> received = {torch::ones(1)};
  expect_ok(attach_recv(in, received, {true}));
  const SendRecord send = record_send(out, kPeer, {received[0] * 2});
  int answers = 0;
  LocalGraph graph({.on_answer = [&](const RecvAnswer&) { ++answers; }});
  expect_ok(graph.engage({}, {&send}));
  expect_ok(graph.cancel(out));
  EXPECT_EQ(answers, 0) << "its sender may have cancelled it too: invariant I3";
  EXPECT_EQ(graph.executed(), 0u);
}

// --- Repeated passes, memory. ---

TEST(LocalGraph, RetainedGraphsAddUpAndUsedOnesAreGone) {
  for (const bool saves_tensors : {false, true}) {
    LocalWorld world(2);
    const at::Tensor a = leaf();
    const at::Tensor received = world.transfer(0, 1, saves_tensors ? a.sin() : a + 1);
    const at::Tensor loss = received.sum();
    const at::Tensor once = oracle(saves_tensors ? a.sin().sum() : a.sum(), a);
    expect_ok(world.backward(1, {loss}, {.retain_graph = true}));
    expect_ok(world.backward(1, {loss}, {.retain_graph = true}));
    expect_equal(world.gradient(0, a), 2 * once);
    expect_ok(world.backward(1, {loss}));
    expect_equal(world.gradient(0, a), 3 * once);
    const absl::Status again = world.backward(1, {loss});
    EXPECT_EQ(again.code(), absl::StatusCode::kNotFound) << again;
    EXPECT_THAT(again.message(), HasSubstr("is no part of this pass"));
    expect_equal(world.gradient(0, a), 3 * once);
  }
}

TEST(LocalGraph, NodesThatSavedTensorsRefuseASecondRun) {
  LocalWorld world(1);
  const at::Tensor a = leaf();
  const at::Tensor loss = a.sin().sum();
  expect_ok(world.backward(0, {loss}));
  const absl::Status again = world.backward(0, {loss});
  EXPECT_EQ(again.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(again.message(), HasSubstr("SinBackward0"));
  EXPECT_THAT(again.message(), HasSubstr("a second time"));
}

TEST(LocalGraph, GraphIsFreedAfterAPassAndItsRecordsHoldNothing) {
  LocalWorld world(2);
  const at::Tensor a = leaf();
  std::weak_ptr<torch::autograd::Node> sent, received;
  {
    const at::Tensor t = a * 2;
    const at::Tensor r = world.transfer(0, 1, t);
    sent = t.grad_fn();
    received = r.grad_fn();
    expect_ok(world.backward(1, {r.sum()}));
    EXPECT_FALSE(received.expired());
  }
  EXPECT_TRUE(sent.expired());
  EXPECT_TRUE(received.expired());
}

TEST(LocalGraph, LeavesGradAloneAndSharesNoMemory) {
  const SendId in{{1, 1}, 1};
  const at::Tensor a = leaf({2, 2}), b = leaf({4}), c = leaf({4});
  a.mutable_grad() = torch::full({2, 2}, 5, torch::kDouble);
  std::vector<at::Tensor> received = {torch::rand({4}, torch::kDouble)};
  expect_ok(attach_recv(in, received, {true}));
  std::vector<RecvAnswer> answers;
  LocalGraph graph({.on_answer = [&](RecvAnswer answer) { answers.push_back(std::move(answer)); }});
  // One gradient tensor serves all four. The gradient of `a` is a view of it.
  expect_ok(graph.engage({((a.view(4) + received[0] + b + c) * 2).sum()}, {}));
  expect_ok(graph.feed_roots());
  const std::vector<LeafGradient> leaves = graph.take_leaves();
  ASSERT_EQ(leaves.size(), 3u);
  for (const LeafGradient& one : leaves) {
    one.gradient.zero_();
    EXPECT_EQ(one.gradient.sizes(), one.variable.sizes());
  }
  expect_equal(answers.at(0).gradients[0], torch::full({4}, 2, torch::kDouble));
  expect_equal(a.grad(), torch::full({2, 2}, 5, torch::kDouble));
  EXPECT_FALSE(b.grad().defined());
}

TEST(LocalGraph, AccumulateTakesOverWhatNobodyElseHolds) {
  const at::Tensor a = leaf();
  at::Tensor sum;
  at::Tensor gradient = torch::ones({3}, torch::kDouble);
  const void* memory = gradient.data_ptr();
  accumulate_gradient(a, sum, std::move(gradient));
  EXPECT_EQ(sum.data_ptr(), memory);
  const at::Tensor shared = torch::ones({3}, torch::kDouble);
  accumulate_gradient(a, sum, shared);
  expect_equal(sum, torch::full({3}, 2, torch::kDouble));
  at::Tensor other;
  accumulate_gradient(a, other, shared.view({3}));
  other.zero_();
  expect_equal(shared, torch::ones({3}, torch::kDouble));
}

TEST(LocalGraph, ChainsOf200000NodesNeedNoStack) {
  LocalWorld world(2);
  const at::Tensor a = torch::ones({}).set_requires_grad(true);
  at::Tensor value = a;
  for (int i = 0; i < 200'000; ++i) value = value + 1;
  const at::Tensor dead = world.transfer(0, 1, value);  // cancellation gives it its gradient
  value = world.transfer(0, 1, value) * 2;
  expect_ok(world.backward(1, {value}, {.eager = true}));
  expect_equal(world.gradient(0, a), torch::full({}, 2.0f));
}

TEST(LocalGraph, PassesOfSeveralThreadsOnTheSameParametersDoNotMix) {
  const at::Tensor a = leaf(), b = leaf();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 20; ++round) {
        LocalWorld world(2);
        const double factor = thread + 1;
        const at::Tensor back = world.transfer(1, 0, world.transfer(0, 1, a * b) * factor);
        const bool ok = world.backward(0, {back.sum()}).ok();
        wrong += !ok || !torch::allclose(world.gradient(0, a), b.detach() * factor);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(a.grad().defined());
}

}  // namespace
}  // namespace weft::dist_autograd_internal
