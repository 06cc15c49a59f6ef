// Typed calls through the whole stack: verbs, runtime, agent, session, transport.
#include "weft/rpc/worker_runtime.h"

#include <new>
#include <thread>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/verbs.h"
#include "weft/tests/support/agent_world.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/scripted_transport.h"

namespace runtime_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using weft::CallContext;
using weft::Future;
using weft::Promise;
using weft::Ran;
using weft::RpcError;
using weft::testing::error_of;

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
WEFT_REGISTER_FUNCTION(add);

std::string who_am_i(CallContext& context) {
  return context.caller_name() + " calls " + weft::CallScope::current().runtime->name();
}
WEFT_REGISTER_FUNCTION(who_am_i);

int throwing(int kind) {
  switch (kind) {
    case 0:
      throw 1;
    case 1:
      TORCH_CHECK(false, "sizes differ");
    case 2:
      throw std::bad_alloc();
    case 3:
      throw std::runtime_error("went wrong");
    case 4:
      throw std::string("not even an exception");
    default:
      throw RpcError(absl::NotFoundError("no such row"));
  }
}
WEFT_REGISTER_FUNCTION(throwing);

int relay(std::string to, int kind) { return weft::rpc_sync(to, throwing, kind); }
WEFT_REGISTER_FUNCTION(relay);

// Calls go from the caller to the next worker and so on, until `times` is zero, and come back.
int bounce(std::string to, std::string back, int times) {
  return times == 0 ? 0 : 1 + weft::rpc_sync(to, bounce, back, to, times - 1);
}
WEFT_REGISTER_FUNCTION(bounce);

// The time that the innermost handler has left, in milliseconds; -1: no limit.
int64_t time_left(CallContext& context) {
  if (context.deadline() == weft::kNever) return -1;
  return std::chrono::duration_cast<milliseconds>(context.deadline() -
                                                  std::chrono::steady_clock::now())
      .count();
}
WEFT_REGISTER_FUNCTION(time_left);
int64_t time_left_beyond(std::string to, int64_t own_timeout_ms) {
  return own_timeout_ms == 0
             ? weft::rpc_sync(to, time_left)
             : weft::rpc_sync({to, {.timeout = milliseconds(own_timeout_ms)}}, time_left);
}
WEFT_REGISTER_FUNCTION(time_left_beyond);

// A handler that replies when the test allows it.
struct Gate {
  weft::Mutex mutex;
  std::shared_ptr<Promise<int>> result ABSL_GUARDED_BY(mutex);
  std::shared_ptr<Promise<void>> arrived ABSL_GUARDED_BY(mutex);
  std::shared_ptr<Promise<void>> cancelled ABSL_GUARDED_BY(mutex);

  static Gate& instance() {
    static Gate gate;
    return gate;
  }
  void reset() {
    weft::MutexLock lock(mutex);
    result = std::make_shared<Promise<int>>(nullptr);
    arrived = std::make_shared<Promise<void>>(nullptr);
    cancelled = std::make_shared<Promise<void>>(nullptr);
  }
};
template <class T>
T of_gate(T Gate::*member) {
  Gate& gate = Gate::instance();
  weft::MutexLock lock(gate.mutex);
  return gate.*member;
}

Future<int> slow(CallContext& context) {
  context.on_cancel([cancelled = of_gate(&Gate::cancelled)] { cancelled->set_value(); });
  Future<int> result = of_gate(&Gate::result)->future();  // this test's, before it may end
  of_gate(&Gate::arrived)->set_value();
  return result;
}
WEFT_REGISTER_FUNCTION(slow);
// A handler that is cancelled while its own call is in progress.
Future<int> slow_beyond(std::string to) { return weft::rpc_async(to, slow); }
WEFT_REGISTER_FUNCTION(slow_beyond);
int slow_beyond_waiting(std::string to) { return weft::rpc_sync(to, slow); }
WEFT_REGISTER_FUNCTION(slow_beyond_waiting);

Future<int> after_others(std::string to, int times) {
  if (times == 0) return Future<int>::ready(0);
  const weft::RpcRuntime* here = weft::CallScope::current().runtime.get();
  return weft::rpc_async(to, after_others, to, times - 1).then([here](const Future<int>& value) {
    return value.wait() + (weft::CallScope::current().runtime.get() == here ? 1 : 0);
  });
}
WEFT_REGISTER_FUNCTION(after_others);

// The test completes it, once per test.
std::optional<Promise<at::Tensor>> lent;
std::atomic<int> lends{0};
Future<at::Tensor> lend() {
  Future<at::Tensor> future = lent->future();
  ++lends;
  return future;
}
WEFT_REGISTER_FUNCTION(lend);

inline constexpr weft::Function<int(int)> nowhere{"serving::infer"};
inline constexpr weft::Function<int(at::Tensor)> add_mistaken{"runtime_test::add"};
int unregistered(int x) { return x; }

class WorkerRuntimeTest : public ::testing::TestWithParam<weft::testing::TransportKind> {
 protected:
  explicit WorkerRuntimeTest(size_t workers = 3) : world_(GetParam(), workers) {
    Gate::instance().reset();
    weft::RegistryBuilder builder;
    auto registry = builder.build();
    EXPECT_TRUE(registry.ok()) << registry.status();
    for (size_t i = 0; i < workers; ++i) {
      runtimes_.push_back(std::make_shared<weft::rpc_internal::WorkerRuntime>(
          world_.agent(i), world_.executor(i), world_.clock(), *registry,
          weft::rpc_internal::RuntimeOptions{}));
      runtimes_.back()->attach();
    }
    world_.start();
    weft::CallScope here;
    here.runtime = runtimes_[0];
    scope_.emplace(here);
  }
  ~WorkerRuntimeTest() override {
    scope_.reset();
    Gate::instance().reset();
    world_.stop_agents();
  }

  weft::testing::AgentWorld world_;
  std::vector<std::shared_ptr<weft::rpc_internal::WorkerRuntime>> runtimes_;
  std::optional<weft::CallScopeGuard> scope_;
};

TEST_P(WorkerRuntimeTest, CallsAFunctionOfTensorsThereAndHere) {
  for (const char* to : {"w0", "w1", "w2"}) {
    for (int64_t size : {3, 300000}) {
      const at::Tensor ones = at::ones({size});
      EXPECT_TRUE(at::equal(weft::rpc_sync(to, add, ones, ones), ones.add(1))) << to << size;
    }
    EXPECT_EQ(weft::rpc_sync(to, who_am_i), std::string("w0 calls ") + to);
  }
  EXPECT_EQ(weft::rpc_sync(world_.id(1), who_am_i), "w0 calls w1");
}

TEST_P(WorkerRuntimeTest, AResultThatTheCalleeHoldsMayBeWrittenOnceItIsGiven) {
  lent.emplace(nullptr);
  const int before = lends.load();
  const Future<at::Tensor> call = weft::rpc_async("w1", lend);
  // The reply waits for the future once the handler's task is done.
  while (lends.load() == before || !world_.executor(1).idle()) std::this_thread::yield();
  at::Tensor weights = at::ones({16 << 20});
  lent->set(weights);
  weights.zero_();  // the next step
  EXPECT_TRUE(at::equal(call.wait(), at::ones({16 << 20})));
}

TEST_P(WorkerRuntimeTest, AContinuationOfACallThatNeverLeftHasItsError) {
  const Future<int> then = weft::rpc_async("nobody", throwing, 0).then([](const Future<int>& call) {
    return call.wait();
  });
  EXPECT_EQ(then.result().status().code(), absl::StatusCode::kNotFound) << then.result().status();
}

TEST_P(WorkerRuntimeTest, AnUnknownFunctionIsNamedWithItsWorker) {
  const absl::Status status = error_of([] { return weft::rpc_sync("w1", nowhere, 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker 'w1' has no function"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("this program calls 'serving::infer' as (i32) -> i32"));
}

TEST_P(WorkerRuntimeTest, AWrongSignatureIsNamedWithBothSides) {
  const absl::Status status =
      error_of([] { return weft::rpc_sync("w1", add_mistaken, at::ones(1)); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  EXPECT_EQ(status.message(),
            "'runtime_test::add' on worker 'w1' is (tensor, tensor) -> tensor; this program calls "
            "'runtime_test::add' as (tensor) -> i32");
}

TEST_P(WorkerRuntimeTest, AnUnregisteredFunctionOrWorkerIsRefusedHere) {
  const absl::Status function = error_of([] { return weft::rpc_sync("w1", unregistered, 1); });
  EXPECT_EQ(function.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(weft::ran_of(function), Ran::kNo);
  const absl::Status worker = error_of([] { return weft::rpc_sync("nobody", throwing, 1); });
  EXPECT_EQ(worker.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(worker.message()), HasSubstr("nobody"));
}

TEST_P(WorkerRuntimeTest, WhateverIsThrownReachesTheCallerAndTheWorkerLivesOn) {
  const std::pair<absl::StatusCode, const char*> wanted[] = {
      {absl::StatusCode::kUnknown, "int"},
      {absl::StatusCode::kUnknown, "sizes differ"},
      {absl::StatusCode::kUnknown, "std::bad_alloc"},
      {absl::StatusCode::kUnknown, "std::runtime_error: went wrong"},
      {absl::StatusCode::kUnknown, "string"},
      {absl::StatusCode::kNotFound, "no such row"}};
  for (int kind = 0; kind < 6; ++kind) {
    const absl::Status status = error_of([&] { return weft::rpc_sync("w1", throwing, kind); });
    EXPECT_EQ(status.code(), wanted[kind].first) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wanted[kind].second));
    EXPECT_EQ(weft::ran_of(status), Ran::kYes);
    EXPECT_EQ(weft::worker_of(status), "w1");
    EXPECT_EQ(weft::trail_of(status), "w1/runtime_test::throwing");
  }
  EXPECT_EQ(weft::rpc_sync("w1", who_am_i), "w0 calls w1");
}

TEST_P(WorkerRuntimeTest, AnErrorOfANestedCallSaysWhereItAroseAndTheWayItTook) {
  const absl::Status status = error_of([] { return weft::rpc_sync("w1", relay, "w2", 3); });
  EXPECT_EQ(weft::worker_of(status), "w2");
  EXPECT_THAT(weft::trail_of(status),
              HasSubstr("w2/runtime_test::throwing < w1/runtime_test::relay"));
  EXPECT_EQ(weft::ran_of(status), Ran::kYes);
}

TEST_P(WorkerRuntimeTest, DeepNestingBetweenTwoWorkersNeverRunsOutOfThreads) {
  EXPECT_EQ(weft::rpc_sync("w1", bounce, "w2", "w1", 60), 60);
  std::vector<Future<int>> many;
  for (int i = 0; i < 20; ++i) many.push_back(weft::rpc_async("w1", bounce, "w2", "w1", 10));
  for (const Future<int>& future : many) EXPECT_EQ(future.wait(), 10);
}

TEST_P(WorkerRuntimeTest, AFunctionThatReturnsAFutureHoldsNoThread) {
  std::vector<Future<int>> waiting;
  for (int i = 0; i < 100; ++i) waiting.push_back(weft::rpc_async("w1", slow));
  of_gate(&Gate::arrived)->future().wait();
  EXPECT_EQ(weft::rpc_sync("w1", who_am_i), "w0 calls w1");  // its turn comes
  EXPECT_LE(world_.executor(1).thread_count(), 10u);
  of_gate(&Gate::result)->set(7);
  for (const Future<int>& future : waiting) EXPECT_EQ(future.wait(), 7);
}

TEST_P(WorkerRuntimeTest, ContinuationsKeepTheWorkerAndCallOn) {
  EXPECT_EQ(weft::rpc_sync("w1", after_others, "w2", 20), 20);
}

TEST_P(WorkerRuntimeTest, ANestedCallHasWhatIsLeftOfItsHandlersTime) {
  const int64_t left = weft::rpc_sync({"w1", {.timeout = seconds(20)}}, time_left_beyond, "w2", 0);
  EXPECT_GT(left, 0);
  EXPECT_LE(left, 20000);
  // A longer timeout of its own gains it nothing; a shorter one counts.
  EXPECT_LE(weft::rpc_sync({"w1", {.timeout = seconds(20)}}, time_left_beyond, "w2", 500000),
            20000);
  EXPECT_LE(weft::rpc_sync({"w1", {.timeout = seconds(60)}}, time_left_beyond, "w2", 15000), 15000);
  EXPECT_EQ(weft::rpc_sync({"w1", {.timeout = seconds(0)}}, time_left), -1);
  runtimes_[0]->set_default_timeout(seconds(30));
  EXPECT_LE(weft::rpc_sync("w1", time_left), 30000);
}

TEST_P(WorkerRuntimeTest, ALateCallFailsNamedAndIsCancelledAllTheWayDown) {
  const absl::Status status = error_of([] {
    return weft::rpc_sync({"w1", {.timeout = milliseconds(200)}}, slow_beyond_waiting, "w2");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(weft::ran_of(status), Ran::kMaybe);
  EXPECT_THAT(std::string(status.message()), HasSubstr("runtime_test::slow_beyond_waiting"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'w1'"));
  EXPECT_TRUE(of_gate(&Gate::cancelled)->future().wait_for(seconds(60)));
}

TEST_P(WorkerRuntimeTest, CancellingTravelsDownstream) {
  Future<int> future = weft::rpc_async("w1", slow);
  of_gate(&Gate::arrived)->future().wait();
  future.cancel();
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(of_gate(&Gate::cancelled)->future().wait_for(seconds(60)));
}

TEST_P(WorkerRuntimeTest, CancellingReachesTheCallsThatAHandlerWaitsFor) {
  Future<int> future = weft::rpc_async("w1", slow_beyond_waiting, "w2");
  of_gate(&Gate::arrived)->future().wait();
  future.cancel();
  EXPECT_TRUE(of_gate(&Gate::cancelled)->future().wait_for(seconds(60)));
}

TEST_P(WorkerRuntimeTest, CancellingReachesTheCallsThatAHandlerLeftUnderWay) {
  Future<int> future = weft::rpc_async("w1", slow_beyond, "w2");
  of_gate(&Gate::arrived)->future().wait();
  future.cancel();
  EXPECT_TRUE(of_gate(&Gate::cancelled)->future().wait_for(seconds(60)));
}

// ---- what a call sends

class SentCallTest : public ::testing::Test {
 protected:
  SentCallTest() {
    weft::rpc_internal::AgentOptions options;
    options.group = "test";
    options.self = {{1, 1}, "w1", "script:1"};
    agent_ = std::make_unique<weft::rpc_internal::Agent>(options, transport_, clock_, executor_);
    runtime_ = std::make_shared<weft::rpc_internal::WorkerRuntime>(
        *agent_, executor_, clock_, weft::RegistryBuilder().build().value(),
        weft::rpc_internal::RuntimeOptions());
    runtime_->attach();
    EXPECT_TRUE(agent_->start({{peer_, "w0", "script:0"}, options.self}).ok());
    connection_ = transport_.answer_dial();
    connection_->sent.clear();
  }
  const weft::Frame& sent(weft::CallOptions options, const at::Tensor& tensor) {
    (void)weft::rpc_async({runtime_, peer_, options}, add, tensor, tensor);
    return *connection_->sent.back();
  }

  const weft::WorkerId peer_{0, 1};
  weft::ManualClock clock_;
  weft::ManualExecutor executor_;
  weft::testing::ScriptedTransport transport_;
  std::unique_ptr<weft::rpc_internal::Agent> agent_;
  std::shared_ptr<weft::rpc_internal::WorkerRuntime> runtime_;  // shared with the calls
  weft::testing::ScriptedConnectionPtr connection_;
};

TEST_F(SentCallTest, TheConnectionMakesTheCopiesOfTensorsThatTheCallerKeeps) {
  std::vector<std::byte> memory(100000);
  connection_->copy = weft::Payload{memory.data(), memory.size(), nullptr};
  const at::Tensor kept = at::ones({25000});
  EXPECT_EQ(sent({}, kept).payloads.at(0).data, memory.data());
  EXPECT_EQ(sent({.snapshot = true}, kept).payloads.at(1).data, memory.data());
  EXPECT_EQ(sent({.give = true}, kept).payloads.at(0).data, kept.data_ptr());
  const at::Tensor small = at::ones({4000});
  EXPECT_NE(sent({}, small).payloads.at(0).data, memory.data());
}

INSTANTIATE_TEST_SUITE_P(Transports, WorkerRuntimeTest,
                         ::testing::Values(weft::testing::TransportKind::kInproc,
                                           weft::testing::TransportKind::kGrpc),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

}  // namespace runtime_test
