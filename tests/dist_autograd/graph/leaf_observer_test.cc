// Observers of a worker's leaves, and holds that keep a pass from completing.
#include "weft/dist_autograd/graph/leaf_observer.h"

#include <functional>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/runtime_world.h"

namespace leaf_observer_test {

using ::testing::HasSubstr;
using weft::LeafObserver;
using weft::ObservedPass;
using weft::PassHold;
using weft::dist_autograd::Context;
using weft::testing::eventually;
using weft::testing::RuntimeWorld;

at::Tensor leaf() { return at::rand({3}, at::kDouble).set_requires_grad(true); }
at::Tensor filled(double value) { return at::full({3}, value, at::kDouble); }

// The parameter of w1.
const at::Tensor& weight() {
  static const at::Tensor weight = leaf();
  return weight;
}
at::Tensor weighted(const at::Tensor& x) { return x.mul(weight()); }
WEFT_REGISTER_FUNCTION(weighted);
at::Tensor gradient_of_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(), weight());
}
WEFT_REGISTER_FUNCTION(gradient_of_weight);
// A second parameter, which `weighted` does not use.
const at::Tensor& idle_weight() {
  static const at::Tensor weight = leaf();
  return weight;
}
at::Tensor gradient_of_idle_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(), idle_weight());
}
WEFT_REGISTER_FUNCTION(gradient_of_idle_weight);
// Returns two tensors, of which the caller uses the first.
std::vector<at::Tensor> weighted_by_both(const at::Tensor& x) {
  return {x.mul(weight()), x.mul(idle_weight())};
}
WEFT_REGISTER_FUNCTION(weighted_by_both);

class Observer final : public LeafObserver {
 public:
  using Body = std::function<absl::Status(ObservedPass&, const at::Tensor&, at::Tensor&)>;
  absl::Status leaf_final(ObservedPass& pass, const at::Tensor& variable,
                          at::Tensor& gradient) override {
    return body ? body(pass, variable, gradient) : absl::OkStatus();
  }
  absl::Status leaf_without_gradient(ObservedPass&, const at::Tensor& variable) override {
    missed.push_back(variable);
    return miss;
  }
  void pass_failed(const weft::ContextId& context) override {
    const weft::MutexLock lock(mutex_);
    failed_.push_back(context);
  }
  std::vector<weft::ContextId> failed() {
    const weft::MutexLock lock(mutex_);
    return failed_;
  }
  Body body;
  absl::Status miss;
  std::vector<at::Tensor> missed;

 private:
  weft::Mutex mutex_;
  std::vector<weft::ContextId> failed_ ABSL_GUARDED_BY(mutex_);
};

// w0 runs backward through a call to w1, whose leaves are observed.
class LeafObserverTest : public ::testing::Test {
 protected:
  absl::Status backward(Context& context) {
    return context.backward_async({weft::rpc_sync("w1", weighted, x_).sum()}).result().status();
  }
  // Takes the newest of the holds that the observer took.
  PassHold take_hold() {
    const weft::MutexLock lock(mutex_);
    PassHold hold = std::move(holds_.back());
    holds_.pop_back();
    return hold;
  }
  bool has_hold() {
    const weft::MutexLock lock(mutex_);
    return !holds_.empty();
  }
  void hold_passes() {
    observer_.body = [this](ObservedPass& pass, const at::Tensor&, at::Tensor&) {
      const weft::MutexLock lock(mutex_);
      holds_.push_back(pass.hold());
      return absl::OkStatus();
    };
  }
  // Starts a pass, and returns when it waits for its hold.
  weft::Future<void> start_held(Context& context) {
    hold_passes();
    auto future = context.backward_async({weft::rpc_sync("w1", weighted, x_).sum()});
    EXPECT_TRUE(eventually([this] { return has_hold(); }));
    return future;
  }

  Observer observer_;
  weft::Mutex mutex_;
  std::vector<PassHold> holds_ ABSL_GUARDED_BY(mutex_);
  RuntimeWorld world_{
      RuntimeWorld::Options{.references = false, .autograd = true, .observers = {{1, &observer_}}}};
  const at::Tensor x_ = leaf();
};

TEST_F(LeafObserverTest, SeesTheContextAndReplacesTheGradient) {
  at::Tensor bucket = filled(7);
  Context context(world_.runtime(0));
  observer_.body = [&](ObservedPass& pass, const at::Tensor& variable, at::Tensor& gradient) {
    EXPECT_EQ(pass.context(), context.id());
    EXPECT_TRUE(variable.is_same(weight()));
    EXPECT_TRUE(at::equal(gradient, x_));
    gradient = bucket.slice(0, 0, 3);
    return absl::OkStatus();
  };
  ASSERT_TRUE(backward(context).ok());
  bucket.zero_();  // the next pass writes here; the context has a copy
  EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_weight), filled(7)));
  EXPECT_TRUE(at::equal(context.gradient(x_), weight().detach()));
}

TEST_F(LeafObserverTest, ARefusalFailsThePassEverywhere) {
  observer_.body = [](ObservedPass&, const at::Tensor&, at::Tensor&) {
    return absl::ResourceExhaustedError("no bucket");
  };
  {
    Context context(world_.runtime(0));
    const absl::Status failed = backward(context);
    EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(failed.message()), HasSubstr("'LeafObserver' on worker 'w1'"));
    EXPECT_TRUE(context.gradients().empty());
    EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_weight).defined());
  }
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(LeafObserverTest, AGradientOfAnotherShapeIsRefused) {
  observer_.body = [](ObservedPass&, const at::Tensor&, at::Tensor& gradient) {
    gradient = at::ones({2}, at::kDouble);
    return absl::OkStatus();
  };
  Context context(world_.runtime(0));
  EXPECT_EQ(backward(context).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LeafObserverTest, AHoldKeepsThePassOpenAndReplacesLater) {
  Context context(world_.runtime(0));
  const weft::Future<void> pass = start_held(context);
  // x's gradient was sent long ago. The pass waits for the hold only.
  EXPECT_FALSE(pass.wait_for(std::chrono::milliseconds(20)));
  EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_weight).defined());
  PassHold hold = take_hold();
  at::Tensor reduced = filled(5);
  std::thread([&] {
    hold.replace(weight(), reduced);
    hold.release();
  }).join();
  pass.wait();
  reduced.zero_();
  EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_weight), filled(5)));
}

TEST_F(LeafObserverTest, EveryHoldMustBeReleased) {
  Context context(world_.runtime(0));
  observer_.body = [this](ObservedPass& pass, const at::Tensor&, at::Tensor&) {
    const weft::MutexLock lock(mutex_);
    holds_.push_back(pass.hold());
    holds_.push_back(pass.hold());
    pass.hold().release();  // at once
    return absl::OkStatus();
  };
  auto pass = context.backward_async({weft::rpc_sync("w1", weighted, x_).sum()});
  EXPECT_TRUE(eventually([this] { return has_hold(); }));
  take_hold().release();
  EXPECT_FALSE(pass.wait_for(std::chrono::milliseconds(20)));
  take_hold().release();
  pass.wait();
  EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_weight), x_));
}

TEST_F(LeafObserverTest, AFailingHoldFailsThePassEverywhere) {
  {
    Context context(world_.runtime(0));
    const weft::Future<void> pass = start_held(context);
    take_hold().fail(absl::UnavailableError("the collective lost a rank"));
    const absl::Status failed = pass.result().status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(failed.message()), HasSubstr("the collective lost a rank"));
    EXPECT_EQ(weft::worker_of(failed), "w1");
    EXPECT_TRUE(context.gradients().empty());
    EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_weight).defined());
    // The context is still usable.
    observer_.body = nullptr;
    EXPECT_TRUE(backward(context).ok());
    EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_weight), x_));
  }
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(LeafObserverTest, AHoldThatIsDroppedFailsThePass) {
  Context context(world_.runtime(0));
  const weft::Future<void> pass = start_held(context);
  { const PassHold dropped = take_hold(); }
  EXPECT_EQ(pass.result().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(LeafObserverTest, AReplacementForALeafWithoutGradientFailsThePass) {
  Context context(world_.runtime(0));
  const weft::Future<void> pass = start_held(context);
  PassHold hold = take_hold();
  hold.replace(leaf(), filled(1));
  hold.release();
  EXPECT_EQ(pass.result().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LeafObserverTest, AHoldGivesAGradientToALeafThatThePassDidNotReach) {
  Context context(world_.runtime(0));
  const weft::Future<void> pass = start_held(context);
  PassHold hold = take_hold();
  at::Tensor reduced = filled(4);
  hold.give(idle_weight(), reduced);
  hold.give(idle_weight(), filled(6));  // the last call counts
  hold.give(weight(), reduced);         // like `replace`
  EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_idle_weight).defined());
  hold.release();
  pass.wait();
  reduced.zero_();
  EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_idle_weight), filled(6)));
  EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_weight), filled(4)));
  EXPECT_FALSE(idle_weight().grad().defined());
  // The gradients of two passes add up.
  const weft::Future<void> next = start_held(context);
  hold = take_hold();
  hold.give(idle_weight(), filled(2));
  hold.release();
  next.wait();
  EXPECT_TRUE(at::equal(weft::rpc_sync("w1", gradient_of_idle_weight), filled(8)));
}

TEST_F(LeafObserverTest, AGivenGradientThatDoesNotFitFailsThePass) {
  const at::Tensor no_leaf = idle_weight().mul(2);
  const std::vector<std::pair<at::Tensor, at::Tensor>> gifts = {
      {idle_weight(), at::ones({2}, at::kDouble)},
      {idle_weight(), at::ones({3}, at::kFloat)},
      {idle_weight(), at::Tensor()},
      {no_leaf, filled(1)},
      {idle_weight().detach(), filled(1)}};
  for (const auto& [variable, gradient] : gifts) {
    Context context(world_.runtime(0));
    const weft::Future<void> pass = start_held(context);
    PassHold hold = take_hold();
    hold.give(variable, gradient);
    hold.release();
    const absl::Status failed = pass.result().status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(weft::worker_of(failed), "w1");
    EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_idle_weight).defined());
    EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_weight).defined());
  }
}

TEST_F(LeafObserverTest, IsToldOnceThatAPassFailedAndOnlyThen) {
  {
    Context context(world_.runtime(0));
    observer_.body = [&](ObservedPass& pass, const at::Tensor&, at::Tensor&) {
      EXPECT_FALSE(pass.failed());
      return absl::OkStatus();
    };
    ASSERT_TRUE(backward(context).ok());
    EXPECT_TRUE(observer_.failed().empty());
    const weft::Future<void> pass = start_held(context);
    pass.cancel();
    EXPECT_EQ(pass.result().status().code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(eventually([this] { return !observer_.failed().empty(); }));
    take_hold().release();
    observer_.body = [](ObservedPass&, const at::Tensor&, at::Tensor&) {
      return absl::ResourceExhaustedError("no bucket");
    };
    EXPECT_FALSE(backward(context).ok());
    EXPECT_EQ(observer_.failed(), std::vector({context.id(), context.id()}));
  }
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(LeafObserverTest, IsShownALeafThatThePassLeadsToWithoutAGradient) {
  const auto run = [this](Context& context) {
    const at::Tensor used = weft::rpc_sync("w1", weighted_by_both, x_).front();
    return context.backward_async({used.sum()}).result().status();
  };
  Context context(world_.runtime(0));
  ASSERT_TRUE(run(context).ok());
  ASSERT_EQ(observer_.missed.size(), 1u);
  EXPECT_TRUE(observer_.missed.front().is_same(idle_weight()));
  EXPECT_FALSE(weft::rpc_sync("w1", gradient_of_idle_weight).defined());
  observer_.miss = absl::ResourceExhaustedError("no bucket");
  EXPECT_EQ(run(context).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LeafObserverTest, AHoldMayOutliveItsPassAndItsWorker) {
  PassHold late;
  {
    Context context(world_.runtime(0));
    const weft::Future<void> pass = start_held(context);
    late = take_hold();
    pass.cancel();
    EXPECT_EQ(pass.result().status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(world_.nothing_left());
  late.replace(weight(), filled(1));
  late.release();
}

TEST_F(LeafObserverTest, TheInitiatorsOwnHoldsKeepBackwardWaiting) {
  Observer observer;
  RuntimeWorld world(
      {.workers = 1, .references = false, .autograd = true, .observers = {{0, &observer}}});
  std::thread reducer;
  observer.body = [&](ObservedPass& pass, const at::Tensor& variable, at::Tensor&) {
    reducer = std::thread([hold = pass.hold(), variable]() mutable {
      hold.replace(variable, filled(9));
      hold.release();
    });
    return absl::OkStatus();
  };
  const at::Tensor w = leaf();
  Context context(world.runtime(0));
  context.backward({w.mul(2).sum()});
  EXPECT_TRUE(at::equal(context.gradient(w), filled(9)));
  reducer.join();
}

}  // namespace leaf_observer_test
