// Through which worker a thread makes calls, and to which context and deadline the calls belong.
//
// Scopes are carried to the user's own threads and to continuations. Several workers are in one
// process.
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/async/executor.h"
#include "weft/base/rpc_error.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace worker_scope_test {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::CallContext;
using weft::CallScope;
using weft::Future;
using weft::WorkerScope;
using weft::dist_autograd::Context;
using weft::testing::error_of;
using weft::testing::WorkerWorld;

std::string caller(CallContext& context) { return context.caller_name(); }
WEFT_REGISTER_FUNCTION(caller);

at::Tensor leaf() { return at::ones({3}, at::kDouble).set_requires_grad(true); }
at::Tensor twice(const at::Tensor& x) { return x.mul(2); }
WEFT_REGISTER_FUNCTION(twice);
// A continuation makes its second call.
Future<at::Tensor> twice_and_twice(at::Tensor x, std::string next) {
  return weft::rpc_async(next, twice, x).then([next](const Future<at::Tensor>& y) {
    return weft::rpc_async(next, twice, y.wait());
  });
}
WEFT_REGISTER_FUNCTION(twice_and_twice);

// The time left in milliseconds; -1: no limit.
int64_t time_left(CallContext& context) {
  if (context.deadline() == weft::kNever) return -1;
  const auto left = context.deadline() - std::chrono::steady_clock::now();
  return std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
}
WEFT_REGISTER_FUNCTION(time_left);
// The time left of a call that a continuation makes.
Future<int64_t> time_left_afterwards(std::string next) {
  return weft::rpc_async(next, time_left).then([next](const Future<int64_t>&) {
    return weft::rpc_async(next, time_left);
  });
}
WEFT_REGISTER_FUNCTION(time_left_afterwards);

// ---- bind_scope

TEST(BindScopeTest, AThreadCallsThroughTheWorkerInWhoseScopeItsFunctionWasBound) {
  WorkerWorld world(3);
  std::vector<std::function<std::string()>> bound;
  for (const size_t rank : {0u, 1u}) {
    WorkerScope scope(world[rank]);
    bound.push_back(weft::bind_scope([] { return weft::rpc_sync("worker2", caller); }));
  }
  std::vector<std::string> callers(bound.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < bound.size(); ++i) {
    threads.emplace_back([&, i] { callers[i] = bound[i](); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(callers, ElementsAre("worker0", "worker1"));
}

TEST(BindScopeTest, AThreadOutsideABoundFunctionHasNoWorkerWhateverItsMakersScopeIs) {
  WorkerWorld world(2);
  WorkerScope scope(world[0]);
  const auto call = [] { return weft::rpc_sync("worker1", caller); };
  absl::Status before, after;
  std::string inside;
  std::thread([&, bound = weft::bind_scope(call)]() mutable {
    before = error_of(call);
    inside = bound();
    after = error_of(call);
  }).join();
  EXPECT_EQ(inside, "worker0");
  for (const absl::Status& refused : {before, after}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("WorkerScope"));
    EXPECT_EQ(weft::ran_of(refused), weft::Ran::kNo);
  }
}

TEST(BindScopeTest, GivesTheThreadItsOwnScopeBackAlsoWhenTheFunctionThrows) {
  WorkerWorld world(3);
  std::function<std::string(bool)> bound;
  {
    WorkerScope scope(world[0]);
    bound = weft::bind_scope([](bool fails) {
      std::string name = weft::rpc_sync("worker2", caller);
      if (fails) throw std::runtime_error(name);
      return name;
    });
  }
  WorkerScope scope(world[1]);
  EXPECT_EQ(bound(false), "worker0");
  EXPECT_EQ(weft::rpc_sync("worker2", caller), "worker1");
  EXPECT_THROW(bound(true), std::runtime_error);
  EXPECT_EQ(weft::rpc_sync("worker2", caller), "worker1");
}

TEST(BindScopeTest, WhatABoundFunctionCallsBelongsToTheContext) {
  WorkerWorld world(2);
  const at::Tensor x = leaf();
  const Context context(world[0].runtime());
  at::Tensor y;
  std::thread(weft::bind_scope([&] {
    EXPECT_EQ(weft::dist_autograd::current_context(), context.id());
    y = weft::rpc_sync("worker1", twice, x);
  })).join();
  context.backward({y.sum()});
  ASSERT_TRUE(context.gradient(x).defined());
  EXPECT_TRUE(at::equal(context.gradient(x), at::full({3}, 2, at::kDouble)));
}

// ---- continuations

struct Here {
  std::string worker;  // "": no worker
  weft::ContextId context;
};
Here here() {
  const CallScope& scope = CallScope::current();
  return {scope.runtime == nullptr ? std::string() : scope.runtime->name(), scope.context};
}

TEST(ContinuationScopeTest, IsThatOfWhoMadeItNotOfWhoCompletesOrRunsIt) {
  WorkerWorld world(2);
  weft::ManualExecutor executor;
  const weft::Promise<int> promise(&executor);
  const auto where = [&] {
    return promise.future().then([](const Future<int>&) { return here(); });
  };
  const Context context(world[0].runtime());
  const Future<Here> in_context = where();
  Future<Here> nowhere, elsewhere;
  {
    weft::CallScopeGuard outside{CallScope()};
    nowhere = where();
    WorkerScope scope(world[1]);
    elsewhere = where();
    promise.set(1);
  }
  Here left;
  std::thread([&] {
    EXPECT_EQ(executor.run_all(), 3u);
    left = here();
  }).join();
  EXPECT_EQ(in_context.wait().worker, "worker0");
  EXPECT_EQ(in_context.wait().context, context.id());
  EXPECT_EQ(elsewhere.wait().worker, "worker1");
  EXPECT_FALSE(elsewhere.wait().context.valid());
  for (const Here& none : {nowhere.wait(), left}) {
    EXPECT_EQ(none.worker, "");
    EXPECT_FALSE(none.context.valid());
  }
}

TEST(ContinuationScopeTest, WhatItCallsBelongsToTheContext) {
  WorkerWorld world(3);
  const at::Tensor x = leaf();
  const Context context(world[0].runtime());
  const at::Tensor y = weft::rpc_sync("worker1", twice_and_twice, x, "worker2");
  const at::Tensor z = twice_and_twice(y, "worker1").wait();
  context.backward({z.sum()});
  ASSERT_TRUE(context.gradient(x).defined());
  EXPECT_TRUE(at::equal(context.gradient(x), at::full({3}, 16, at::kDouble)));
}

TEST(ContinuationScopeTest, ItsCallsHaveWhatIsLeftOfTheHandlersTime) {
  WorkerWorld world(3);
  // A call without a timeout has 60 s.
  const int64_t left =
      weft::rpc_sync(world[0].to("worker1", {.timeout = 20s}), time_left_afterwards, "worker2");
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 20000);
}

}  // namespace worker_scope_test
