// Contexts of distributed autograd between several workers of one process.
//
// The tests cover gradients, failures, and how contexts and passes stop.
#include "weft/dist_autograd/context.h"

#include <thread>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/dist_autograd/autograd_driver.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/dist_autograd/worker_weights.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/runtime_world.h"

namespace autograd_test {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::Ran;
using weft::RpcError;
using weft::dist_autograd::BackwardOptions;
using weft::dist_autograd::Context;
using weft::dist_autograd::Mode;
using weft::testing::autograd_alone;
using weft::testing::error_of;
using weft::testing::eventually;
using weft::testing::expect_equal;
using weft::testing::leaf;
using weft::testing::my_weight;
using weft::testing::RuntimeWorld;
using weft::testing::weight_of;

at::Tensor oracle(const at::Tensor& loss, const at::Tensor& variable) {
  return torch::autograd::grad({loss}, {variable}, {}, /*retain_graph=*/true).at(0);
}

// ---- functions that the workers can run

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
WEFT_REGISTER_FUNCTION(add);
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) { return a.mul(b); }
WEFT_REGISTER_FUNCTION(multiply);
// Uses the worker's own parameter.
at::Tensor weighted(const at::Tensor& x) { return x.mul(my_weight()); }
WEFT_REGISTER_FUNCTION(weighted);
at::Tensor gradient_of_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(), my_weight());
}
WEFT_REGISTER_FUNCTION(gradient_of_weight);
int64_t count_gradients() {
  const auto all = weft::dist_autograd::gradients(weft::dist_autograd::current_context());
  return static_cast<int64_t>(all.size());
}
WEFT_REGISTER_FUNCTION(count_gradients);
// Passes x through all named workers. Each multiplies it with its parameter.
at::Tensor chain(const at::Tensor& x, std::vector<std::string> rest) {
  const at::Tensor y = x.mul(my_weight());
  if (rest.empty()) return y;
  const std::string next = rest.front();
  rest.erase(rest.begin());
  return weft::rpc_sync(next, chain, y, rest).add(y);
}
WEFT_REGISTER_FUNCTION(chain);

at::Tensor fail_forward(const at::Tensor&) { throw std::runtime_error("no"); }
WEFT_REGISTER_FUNCTION(fail_forward);
// Answers only after the test allows it, when no caller waits any more.
std::atomic<bool> late_released{false};
at::Tensor answer_late(const at::Tensor& x) {
  while (!late_released) std::this_thread::yield();
  return x;
}
WEFT_REGISTER_FUNCTION(answer_late);

std::atomic<bool> hook_throws{true};
at::Tensor with_throwing_hook(const at::Tensor& x) {
  at::Tensor y = x.mul(my_weight());
  y.register_hook([](const at::Tensor& gradient) {
    if (hook_throws) throw std::runtime_error("the hook does not want this");
    return gradient;
  });
  return y;
}
WEFT_REGISTER_FUNCTION(with_throwing_hook);

// Adds a hook that blocks the pass until `hook_released`.
std::atomic<bool> hook_entered{false}, hook_released{false};
at::Tensor with_slow_hook(const at::Tensor& x) {
  at::Tensor y = x.mul(my_weight());
  y.register_hook([](const at::Tensor& gradient) {
    hook_entered = true;
    while (!hook_released) std::this_thread::yield();
    return gradient;
  });
  return y;
}
WEFT_REGISTER_FUNCTION(with_slow_hook);

// Starts a pass of the caller's context on this worker.
void backward_here(const at::Tensor& x) {
  const at::Tensor loss = x.mul(my_weight()).sum();
  weft::dist_autograd::backward_async(weft::dist_autograd::current_context(), {loss}).wait();
}
WEFT_REGISTER_FUNCTION(backward_here);
std::atomic<int> touched{0};
void touch() { ++touched; }
WEFT_REGISTER_FUNCTION(touch);

// Computes in one process what `chain` computes.
at::Tensor local_chain(const at::Tensor& x, const std::vector<std::string>& workers) {
  at::Tensor y = x.mul(weight_of(workers.front()));
  if (workers.size() == 1) return y;
  return local_chain(y, {workers.begin() + 1, workers.end()}).add(y);
}

// ---- gradients

class EveryMode : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Context, EveryMode, ::testing::Values(Mode::kDefault, Mode::kEager),
                         [](const auto& info) {
                           return info.param == Mode::kDefault ? "Default" : "Eager";
                         });

TEST_P(EveryMode, GradientsOfOneCallAreThoseOfOneProcess) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor a = leaf(), b = leaf();
  {
    Context context(world.runtime(0));
    const at::Tensor loss = weft::rpc_sync("w1", multiply, a, b).sum();
    context.backward({loss}, {.mode = GetParam()});
    expect_equal(context.gradient(a), oracle(a.mul(b).sum(), a));
    expect_equal(context.gradient(b), oracle(a.mul(b).sum(), b));
    EXPECT_EQ(context.gradients().size(), 2u);
    EXPECT_FALSE(a.grad().defined());
  }
  EXPECT_TRUE(world.nothing_left());
}

TEST_P(EveryMode, NestedCallsAndCallsBackToTheCaller) {
  RuntimeWorld world(autograd_alone(3));
  for (const std::vector<std::string>& path : {std::vector<std::string>{"w1", "w2"},
                                               {"w1", "w0"},
                                               {"w0", "w0"},
                                               {"w1", "w0", "w1", "w2"}}) {
    const at::Tensor x = leaf();
    const at::Tensor expected = local_chain(x, path).sum();
    Context context(world.runtime(0));
    const at::Tensor y = weft::rpc_sync(path.front(), chain, x,
                                        std::vector<std::string>(path.begin() + 1, path.end()));
    context.backward({y.sum()}, {.mode = GetParam()});
    expect_equal(context.gradient(x), oracle(expected, x));
    for (const std::string& worker : path) {
      expect_equal(weft::rpc_sync(worker, gradient_of_weight), oracle(expected, weight_of(worker)));
    }
  }
  EXPECT_TRUE(world.nothing_left());
}

TEST_P(EveryMode, DiamondAndTheSameTensorTwice) {
  RuntimeWorld world(autograd_alone(3));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  const at::Tensor left = weft::rpc_sync("w1", weighted, x);
  const at::Tensor right = weft::rpc_sync("w2", weighted, x);
  const at::Tensor square = weft::rpc_sync("w1", multiply, left, left);
  const at::Tensor joined = weft::rpc_sync("w2", multiply, square, right);
  context.backward({joined.sum()}, {.mode = GetParam()});

  const at::Tensor l = x.mul(weight_of("w1")), r = x.mul(weight_of("w2"));
  const at::Tensor expected = l.mul(l).mul(r).sum();
  expect_equal(context.gradient(x), oracle(expected, x));
  expect_equal(weft::rpc_sync("w1", gradient_of_weight), oracle(expected, weight_of("w1")));
  expect_equal(weft::rpc_sync("w2", gradient_of_weight), oracle(expected, weight_of("w2")));
}

TEST_P(EveryMode, UnusedFailedAndLateCallsDoNotHoldBackwardUp) {
  RuntimeWorld world(autograd_alone(3));
  const at::Tensor x = leaf();
  {
    Context context(world.runtime(0));
    const at::Tensor y = x.mul(2);
    late_released = false;
    const at::Tensor used = weft::rpc_sync("w1", weighted, y);
    (void)weft::rpc_sync("w1", weighted, y);
    (void)weft::rpc_sync("w2", weighted, used);
    EXPECT_EQ(error_of([&] { weft::rpc_sync("w1", fail_forward, y); }).code(),
              absl::StatusCode::kUnknown);
    EXPECT_EQ(error_of([&] {
                weft::rpc_sync({"w2", {.timeout = 50ms}}, answer_late, y);
              }).code(),
              absl::StatusCode::kDeadlineExceeded);
    late_released = true;
    context.backward({used.sum()}, {.mode = GetParam()});
    const at::Tensor expected = x.mul(2).mul(weight_of("w1")).sum();
    expect_equal(context.gradient(x), oracle(expected, x));
    expect_equal(weft::rpc_sync("w1", gradient_of_weight), oracle(expected, weight_of("w1")));
    EXPECT_FALSE(weft::rpc_sync("w2", gradient_of_weight).defined());
  }
  EXPECT_TRUE(world.nothing_left());
}

TEST(Context, ModeAllSendsRefusesALossThatDoesNotUseEveryCall) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  const at::Tensor used = weft::rpc_sync("w1", weighted, x);
  const BackwardOptions all{.retain_graph = true, .mode = Mode::kAllSends};
  context.backward({used.sum()}, all);
  (void)weft::rpc_sync("w1", weighted, x);
  EXPECT_EQ(error_of([&] { context.backward({used.sum()}, all); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Context, WithoutGradModeNothingIsRecorded) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  {
    at::NoGradGuard no_grad;
    // The handler runs with its own grad mode. So w1 records its reply, but w0 does not record this
    // call.
    (void)weft::rpc_sync("w1", weighted, x);
  }
  EXPECT_EQ(world.autograd(0).gauges().sends, 0u);
  EXPECT_EQ(world.autograd(1).gauges().sends, 1u);
  // A call without a tensor that requires grad carries the context too.
  const at::Tensor constant = at::ones({3}, at::kDouble);
  const at::Tensor y = weft::rpc_sync("w1", weighted, constant);
  EXPECT_EQ(world.autograd(0).gauges().sends, 0u);
  context.backward({y.sum()});
  expect_equal(weft::rpc_sync("w1", gradient_of_weight), constant);
  EXPECT_TRUE(context.gradients().empty());
}

TEST(Context, HooksRunInTheStateOfTheThreadThatCalledBackward) {
  RuntimeWorld world(autograd_alone(2));
  Context context(world.runtime(0));
  const at::Tensor x = leaf();
  int calls = 0;
  const auto loss = [&] {
    const at::Tensor doubled = x.mul(2);
    doubled.register_hook([&](const at::Tensor&) {
      EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
      EXPECT_FALSE(at::GradMode::is_enabled());
      ++calls;
    });
    return weft::rpc_sync("w1", weighted, doubled).sum();
  };
  for (const bool here : {true, false}) {
    const at::Tensor root = loss();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    if (here) {
      context.backward({root});
    } else {
      context.backward_async({root}).wait();
    }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_TRUE(at::GradMode::is_enabled());
  }
  EXPECT_EQ(calls, 2);
}

TEST(Context, PassesOfTwoContextsOnTheSameParametersDoNotMix) {
  RuntimeWorld world(autograd_alone(2));
  std::vector<std::thread> trainers;
  for (int trainer = 0; trainer < 2; ++trainer) {
    trainers.emplace_back([&world, trainer] {
      for (int step = 0; step < 10; ++step) {
        Context context(world.runtime(trainer));
        const at::Tensor x = at::ones({3}, at::kDouble).mul(1 + trainer + step);
        const at::Tensor y = weft::rpc_sync("w1", weighted, x);
        context.backward({y.sum()});
        expect_equal(weft::rpc_sync("w1", gradient_of_weight), x);
      }
    });
  }
  for (std::thread& trainer : trainers) trainer.join();
  EXPECT_TRUE(world.nothing_left());
}

TEST(Context, SeveralPassesAddUpAndNeedRetainGraph) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  const at::Tensor loss = weft::rpc_sync("w1", weighted, x).sum();
  context.backward({loss}, {.retain_graph = true});
  context.backward({loss});
  expect_equal(context.gradient(x), weight_of("w1").detach().mul(2));
  const absl::Status again = error_of([&] { context.backward({loss}); });
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("retain_graph"));
  expect_equal(context.gradient(x), weight_of("w1").detach().mul(2));
}

TEST(Context, PassStartedByAnotherWorkerIsReadableWhenItsCallReturns) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  weft::rpc_sync("w1", backward_here, x);
  expect_equal(context.gradient(x), weight_of("w1").detach());
  expect_equal(weft::rpc_sync("w1", gradient_of_weight), x.detach());
}

// ---- failures

TEST(Context, ThrowingHookIsNamedWithItsWorkerAndLeavesNoGradient) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  {
    Context context(world.runtime(0));
    const auto forward = [&] { return weft::rpc_sync("w1", with_throwing_hook, x).sum(); };
    hook_throws = true;
    for (int i = 0; i < 50; ++i) {
      const at::Tensor loss = forward();
      const absl::Status error = error_of([&] { context.backward({loss}); });
      EXPECT_EQ(error.code(), absl::StatusCode::kUnknown);
      EXPECT_THAT(std::string(error.message()),
                  AllOf(HasSubstr("node 'MulBackward0' on worker 'w1'"),
                        HasSubstr("the hook does not want this")));
      EXPECT_EQ(weft::worker_of(error), "w1");
      EXPECT_TRUE(context.gradients().empty());
      ASSERT_EQ(weft::rpc_sync("w1", count_gradients), 0);
    }
    hook_throws = false;
    context.backward({forward()});
    expect_equal(context.gradient(x), weight_of("w1").detach());
  }
  EXPECT_TRUE(world.nothing_left());
}

// A pass that hangs in a hook on w1 until the test releases it.
class SlowPass : public ::testing::Test {
 protected:
  SlowPass() {
    hook_entered = hook_released = false;
    context_ = std::make_unique<Context>(world_.runtime(0));
    loss_ = weft::rpc_sync("w1", with_slow_hook, x_).sum();
  }
  ~SlowPass() override { hook_released = true; }
  weft::Future<void> start(BackwardOptions options = {}) {
    options.retain_graph = true;
    weft::Future<void> future = context_->backward_async({loss_}, options);
    EXPECT_TRUE(eventually([] { return hook_entered.load(); }));
    return future;
  }

  RuntimeWorld world_{autograd_alone(3)};
  const at::Tensor x_ = leaf();
  std::unique_ptr<Context> context_;
  at::Tensor loss_;
};

TEST_F(SlowPass, SecondPassIsRefusedWhileOneRuns) {
  const weft::Future<void> first = start();
  const absl::Status second = context_->backward_async({loss_}).result().status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  hook_released = true;
  first.wait();
  expect_equal(context_->gradient(x_), weight_of("w1").detach());
}

TEST_F(SlowPass, DeadlineEndsThePassAndLeavesTheContextUsable) {
  const absl::Status late = start({.timeout = 2s}).result().status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  hook_released = true;
  EXPECT_TRUE(context_->gradients().empty());
  context_->backward({weft::rpc_sync("w2", weighted, x_).sum()});
  expect_equal(context_->gradient(x_), weight_of("w2").detach());
}

TEST_F(SlowPass, CancelledFutureAbortsThePassEverywhere) {
  const weft::Future<void> future = start();
  future.cancel();
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(eventually([&] { return world_.autograd(1).gauges().passes == 0; }));
  hook_released = true;
  EXPECT_TRUE(context_->gradients().empty());
}

TEST_F(SlowPass, ClosingTheContextEndsItsPass) {
  const weft::Future<void> future = start();
  context_ = nullptr;
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  hook_released = true;
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(SlowPass, DeathOfAnEngagedWorkerIsNamedAndLosesTheContext) {
  const weft::Future<void> future = start();
  world_.kill(1);
  const absl::Status error = future.result().status();
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(error.message()), HasSubstr("worker 'w1' died"));
  hook_released = true;
  EXPECT_TRUE(context_->gradients().empty());
  const absl::Status later = context_->backward_async({loss_}).result().status();
  EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable);
  context_ = nullptr;
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(SlowPass, DeathOfTheCreatorReleasesItsContexts) {
  (void)weft::rpc_sync("w2", weighted, x_);
  const weft::Future<void> future = start();
  world_.kill(0);
  hook_released = true;
  EXPECT_TRUE(world_.nothing_left());
}

TEST(Context, RefusesWhatItCannotDo) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  const auto code_of = [&](std::vector<at::Tensor> roots, BackwardOptions options = {}) {
    return context.backward_async(std::move(roots), options).result().status().code();
  };
  EXPECT_EQ(code_of({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({x}), absl::StatusCode::kInvalidArgument);         // no grad_fn
  EXPECT_EQ(code_of({x.mul(2)}), absl::StatusCode::kInvalidArgument);  // no scalar
  EXPECT_EQ(code_of({x.sum()}, {.create_graph = true}), absl::StatusCode::kUnimplemented);
  context.backward({x.sum()});
  expect_equal(context.gradient(x), at::ones({3}, at::kDouble));
}

// ---- contexts

TEST(Context, DoesNotNestOnAThread) {
  RuntimeWorld world(autograd_alone(2));
  Context context(world.runtime(0));
  EXPECT_EQ(weft::dist_autograd::current_context(), context.id());
  EXPECT_EQ(error_of([&] { Context inner(world.runtime(0)); }).code(),
            absl::StatusCode::kFailedPrecondition);
  std::thread([&] { Context other(world.runtime(0)); }).join();
  EXPECT_EQ(weft::dist_autograd::current_context(), context.id());
}

TEST(Context, AReleasedContextIsRefusedByNameAndNothingRuns) {
  RuntimeWorld world(autograd_alone(2));
  weft::ContextId released;
  {
    Context context(world.runtime(0));
    released = context.id();
    weft::rpc_sync("w1", touch);
  }
  EXPECT_FALSE(weft::dist_autograd::current_context().valid());
  EXPECT_TRUE(world.nothing_left());
  const int before = touched;
  weft::CallScope scope;
  scope.runtime = world.runtime(0);
  scope.context = released;
  weft::CallScopeGuard guard(scope);
  const absl::Status call = error_of([] { weft::rpc_sync("w1", touch); });
  EXPECT_EQ(call.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(weft::ran_of(call), Ran::kNo);
  EXPECT_THAT(std::string(call.message()), HasSubstr(released.to_string()));
  EXPECT_EQ(error_of([&] { weft::dist_autograd::gradients(released); }).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(touched, before);
}

TEST(Context, IsReleasedAtWorkersThatOnlyAnsweredWithAnError) {
  RuntimeWorld world(autograd_alone(2));
  {
    Context context(world.runtime(0));
    const at::Tensor constant = at::ones({3}, at::kDouble);
    EXPECT_FALSE(error_of([&] { weft::rpc_sync("w1", fail_forward, constant); }).ok());
    EXPECT_EQ(world.autograd(1).gauges().contexts, 1u);
  }
  EXPECT_TRUE(world.nothing_left());
}

TEST(Context, MayOutliveItsWorker) {
  auto world = std::make_unique<RuntimeWorld>(autograd_alone(2));
  world->allow_leftovers();
  Context context(world->runtime(0));
  const at::Tensor loss = weft::rpc_sync("w1", weighted, leaf()).sum();
  world = nullptr;
  EXPECT_EQ(context.backward_async({loss}).result().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(error_of([&] { (void)context.gradients(); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace autograd_test
