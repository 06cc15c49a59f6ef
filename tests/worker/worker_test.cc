#include "weft/worker/worker.h"

#include <atomic>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/log.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/session/internal/peer.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/worker_world.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::WorkerWorld;
using namespace std::chrono_literals;

int64_t plus_one(int64_t value) { return value + 1; }
WEFT_REGISTER_FUNCTION(plus_one);

TEST(WorkerTest, CallsItsPeersAndItself) {
  WorkerWorld world(3);
  for (size_t from = 0; from < 3; ++from) {
    for (size_t to = 0; to < 3; ++to) {
      EXPECT_EQ(rpc_sync(world[from].to(world.name(to)), plus_one, 41), 42);
    }
  }
  world.shutdown_all();
}

TEST(WorkerTest, AWorkerScopeChoosesTheCaller) {
  WorkerWorld world(2);
  EXPECT_THROW(rpc_sync("worker1", plus_one, 1), RpcError);
  WorkerScope scope(world[0]);
  EXPECT_EQ(rpc_sync("worker1", plus_one, 1), 2);
}

TEST(WorkerTest, TheOnlyWorkerOfAProcessIsMeantWithoutAScope) {
  WorkerWorld world(1);
  EXPECT_EQ(rpc_sync("worker0", plus_one, 1), 2);
  world.shutdown_all();
  try {
    rpc_sync("worker0", plus_one, 1);
    FAIL() << "called without a worker";
  } catch (const RpcError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(WorkerTest, KnowsItsPlaceAndItsPeers) {
  WorkerWorld world(2);
  EXPECT_EQ(world[1].name(), "worker1");
  EXPECT_EQ(world[1].id().index, 1u);
  ASSERT_EQ(world[0].workers().size(), 2u);
  EXPECT_EQ(world[0].workers()[1].name, "worker1");
  EXPECT_EQ(world[0].workers()[1].id, world[1].id());
  EXPECT_EQ(world[0].debug_info().agent.live_peers, 2u);
  EXPECT_EQ(world[0].debug_info().contexts, 0u);
}

// ---- shutdown

// Holds the handlers of this file until the test releases them.
struct Latch {
  Mutex mutex;
  CondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = false;
  int arrived ABSL_GUARDED_BY(mutex) = 0;
  int passed ABSL_GUARDED_BY(mutex) = 0;

  void pass() {
    MutexLock lock(mutex);
    ++arrived;
    changed.notify_all();
    while (!open) changed.wait(mutex);
    ++passed;
    changed.notify_all();
  }
  void wait_for_arrivals(int count) {
    MutexLock lock(mutex);
    while (arrived < count) changed.wait(mutex);
  }
  void release() {
    MutexLock lock(mutex);
    open = true;
    changed.notify_all();
  }
  // Waits until the handlers that an earlier test left behind have passed. Otherwise this test's
  // latch would hold them.
  void reset() {
    MutexLock lock(mutex);
    while (passed < arrived) changed.wait(mutex);
    open = false;
    arrived = passed = 0;
  }
};
Latch latch;
std::atomic<int> finished{0};

void blocked_then_calls(const std::string& next, int64_t depth);
WEFT_REGISTER_FUNCTION(blocked_then_calls);
void blocked_then_calls(const std::string& next, int64_t depth) {
  if (depth == 0) latch.pass();
  if (depth < 3) rpc_sync(next, blocked_then_calls, next, depth + 1);
  ++finished;
}

class ShutdownTest : public ::testing::Test {
 protected:
  void SetUp() override {
    latch.release();
    latch.reset();
    finished = 0;
  }
  void TearDown() override { latch.release(); }
};

TEST_F(ShutdownTest, WaitsForRunningAndNestedCalls) {
  WorkerWorld world(3);
  Future<void> call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker2", 0);
  latch.wait_for_arrivals(1);
  std::vector<Future<void>> ends;
  for (size_t i = 0; i < 3; ++i) ends.push_back(world[i].shutdown_async());
  EXPECT_FALSE(ends[2].wait_for(50ms));
  EXPECT_EQ(finished, 0);
  latch.release();
  wait_all(ends);
  EXPECT_EQ(finished, 4);
  call.wait();
}

TEST_F(ShutdownTest, WaitsForContinuationsAndForWhatTheyCall) {
  WorkerWorld world(2);
  std::atomic<int64_t> result{0};
  {
    WorkerScope scope(world[0]);
    (void)rpc_async("worker1", plus_one, 1).then([&result](const Future<int64_t>& first) {
      latch.pass();
      result = rpc_sync("worker1", plus_one, first.wait());
    });
  }
  latch.wait_for_arrivals(1);
  std::vector<Future<void>> ends{world[0].shutdown_async(), world[1].shutdown_async()};
  EXPECT_FALSE(ends[1].wait_for(50ms));
  latch.release();
  wait_all(ends);
  EXPECT_EQ(result, 3);
}

TEST_F(ShutdownTest, WaitsForTheLastToEnterAndAnswersItsCallsUntilThen) {
  WorkerWorld world(2);
  Future<void> first = world[0].shutdown_async({.timeout = 1ms});
  EXPECT_FALSE(first.wait_for(50ms));  // its time does not run yet
  EXPECT_EQ(rpc_sync(world[1].to("worker0"), plus_one, 1), 2);
  Future<void> second = world[1].shutdown_async();
  (void)first.result();
  (void)second.result();
}

TEST_F(ShutdownTest, TheTimeoutEndsItEverywhereAndNamesWhoIsNotQuiet) {
  WorkerWorld world(3);
  Future<void> call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 3);
  call.wait();
  call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 0);
  latch.wait_for_arrivals(1);
  std::vector<Future<void>> ends;
  ends.push_back(world[0].shutdown_async({.timeout = absl::InfiniteDuration()}));
  ends.push_back(world[1].shutdown_async({.timeout = 100ms}));
  ends.push_back(world[2].shutdown_async());
  for (size_t i : {0u, 1u, 2u}) {
    const absl::Status status = ends[i].result().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'worker1'"));
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("'worker2'")));
  }
  EXPECT_FALSE(call.result().ok());
}

// Worker 1 was idle in its shutdown, and had reported so, before the call came that keeps it busy.
TEST_F(ShutdownTest, TheTimeoutSaysWhatEachIsAt) {
  for (const size_t works : {1u, 0u}) {
    WorkerWorld world(2);
    const std::string name = world.name(works), caller = world.name(1 - works);
    std::vector<Future<void>> ends{world[works].shutdown_async({.timeout = 50ms})};
    while (world[works].debug_info().agent.retained_frames > 0) std::this_thread::yield();
    Future<void> call = rpc_async(world[1 - works].to(name), blocked_then_calls, name, 0);
    latch.wait_for_arrivals(1);
    ends.push_back(world[1 - works].shutdown_async({.timeout = 50ms}));
    for (const Future<void>& end : ends) {
      const std::string text(end.result().status().message());
      EXPECT_THAT(text, HasSubstr("'" + name + "' (serves 'weft::blocked_then_calls' to '" +
                                  caller + "')"));
      EXPECT_THAT(text, HasSubstr("'" + caller + "' (waits for '" + name +
                                  "' to answer 'weft::blocked_then_calls')"));
    }
    latch.release();
    latch.reset();
  }
}

TEST_F(ShutdownTest, AHandlerThatNeverReturnsIsLeftBehindAfterTheTimeout) {
  WorkerWorld world(2);
  Future<void> call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 0);
  latch.wait_for_arrivals(1);
  std::vector<Future<void>> ends{world[0].shutdown_async({.timeout = 50ms}),
                                 world[1].shutdown_async({.timeout = 50ms})};
  for (const Future<void>& end : ends) {
    ASSERT_TRUE(end.wait_for(10s));
    EXPECT_EQ(end.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  }
}

std::vector<RRef<int64_t>> held;
void hold(RRef<int64_t> value) { held.push_back(std::move(value)); }
WEFT_REGISTER_FUNCTION(hold);

TEST_F(ShutdownTest, NamesTheHolderOfAReferenceThatIsLeft) {
  Mutex mutex;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) {
    MutexLock lock(mutex);
    lines.emplace_back(line);
  });
  WorkerWorld world(2);
  {
    WorkerScope scope(world[0]);
    rpc_sync("worker1", hold, make_rref(int64_t{5}));
  }
  // Everything that worker1 sends about references is lost, also that it drops them. Worker1 does
  // not hear that the time is up, so it has not left when worker0 looks.
  world.network().set_filter([](const FrameHeader& header) {
    const rpc_internal::Topic topic =
        header.source.index == 1 ? rpc_internal::Topic::kRRef : rpc_internal::Topic::kMembership;
    const bool lost =
        header.kind == FrameKind::kPost && header.function == static_cast<uint64_t>(topic);
    return lost ? InprocNetwork::Fate::kDrop : InprocNetwork::Fate::kDeliver;
  });
  const Future<void> first = world[0].shutdown_async({.timeout = 200ms});
  const Future<void> second = world[1].shutdown_async({.timeout = 200ms});
  EXPECT_EQ(first.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  (void)second.result();
  set_log_sink(nullptr);
  held.clear();
  MutexLock lock(mutex);
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("'worker0' ends with a reference left"),
                                    HasSubstr("(i64) owned here is held by"),
                                    HasSubstr("(worker 'worker1')"))));
}

TEST_F(ShutdownTest, ADeadWorkerIsNotWaitedForAndFailsCallsByName) {
  WorkerWorld world(3);
  Future<void> call = rpc_async(world[0].to("worker2"), blocked_then_calls, "worker1", 0);
  latch.wait_for_arrivals(1);
  world.kill(2);
  const absl::Status status = call.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'worker2'"));
  EXPECT_EQ(ran_of(status), Ran::kMaybe);
  std::vector<Future<void>> ends{world[0].shutdown_async(), world[1].shutdown_async()};
  wait_all(ends);
}

TEST_F(ShutdownTest, TheLeaderMayDieWhileOthersWait) {
  WorkerWorld world(3);
  std::vector<Future<void>> ends{world[1].shutdown_async(), world[2].shutdown_async()};
  EXPECT_FALSE(ends[0].wait_for(20ms));
  world.kill(0);
  wait_all(ends);
}

TEST_F(ShutdownTest, ServeReturnsWhenAllOthersHaveEnteredOrLeft) {
  WorkerWorld world(3);
  std::atomic<bool> served{false};
  std::thread server([&] {
    world[0].serve();
    served = true;
    world[0].shutdown();
  });
  EXPECT_EQ(rpc_sync(world[1].to("worker0"), plus_one, 1), 2);
  Future<void> leaves = world[1].shutdown_async({.graceful = false});
  leaves.wait();
  EXPECT_EQ(rpc_sync(world[2].to("worker0"), plus_one, 1), 2);
  EXPECT_FALSE(served);
  world[2].shutdown();
  server.join();
  EXPECT_TRUE(served);
}

TEST_F(ShutdownTest, LeavingFailsThePeersCallsAndTellsThemWho) {
  WorkerWorld world(2);
  Future<void> call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 0);
  latch.wait_for_arrivals(1);
  std::thread leaving([&] { world[1].shutdown({.graceful = false}); });
  const absl::Status status = call.result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("'worker1'"));
  latch.release();
  leaving.join();
}

TEST_F(ShutdownTest, ADestroyedWorkerLeavesThoughAHandlerNeverReturns) {
  WorkerWorld world(2);
  Future<void> call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 3);
  call.wait();
  call = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 0);
  latch.wait_for_arrivals(1);
  const auto before = std::chrono::steady_clock::now();
  world.destroy(1);
  EXPECT_LT(std::chrono::steady_clock::now() - before, 10s);
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kUnavailable);
  latch.release();
}

TEST_F(ShutdownTest, IsRefusedToAHandler) {
  WorkerWorld world(2);
  Future<void> outcome = rpc_async(world[0].to("worker1"), plus_one, 1)
                             .then(&world[0].runtime()->executor(),
                                   [&](const Future<int64_t>&) { world[0].shutdown(); });
  EXPECT_EQ(outcome.result().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ShutdownTest, EveryUseAfterwardsIsAnErrorAndASecondJoinWorks) {
  for (int incarnation = 0; incarnation < 3; ++incarnation) {
    WorkerWorld world(2);
    EXPECT_EQ(rpc_sync(world[0].to("worker1"), plus_one, 1), 2);
    const Destination kept = world[0].to("worker1");
    world.shutdown_all();
    EXPECT_THROW(world[0].to("worker1"), RpcError);
    EXPECT_THROW(world[0].serve(), RpcError);
    EXPECT_THROW(world[0].shutdown(), RpcError);
    EXPECT_FALSE(rpc_async(kept, plus_one, 1).result().ok());
  }
}

// The store and the options stay the same. Each round of the group must meet nothing of an earlier
// one.
TEST_F(ShutdownTest, AGroupThatHasEndedMayBeJoinedAgainWithTheSameOptions) {
  WorkerWorld world(2);
  for (uint32_t incarnation = 1; incarnation <= 3; ++incarnation) {
    if (incarnation > 1) world.join_again();
    EXPECT_EQ(world[0].id().incarnation, incarnation);
    EXPECT_EQ(rpc_sync(world[0].to("worker1"), plus_one, 1), 2);
    EXPECT_EQ(rpc_sync(world[1].to("worker0"), plus_one, 1), 2);
    world.shutdown_all();
  }
}

TEST_F(ShutdownTest, AGroupWhoseShutdownTimedOutMayBeJoinedAgain) {
  WorkerWorld world(2);
  const Future<void> running = rpc_async(world[0].to("worker1"), blocked_then_calls, "worker1", 0);
  latch.wait_for_arrivals(1);
  EXPECT_THROW(world.shutdown_all({.timeout = 1ms}), RpcError);
  world.join_again();
  EXPECT_EQ(rpc_sync(world[0].to("worker1"), plus_one, 1), 2);
  world.shutdown_all();
}

TEST_F(ShutdownTest, HandlesMayOutliveTheirWorker) {
  std::shared_ptr<RpcRuntime> kept;
  {
    WorkerWorld world(1);
    kept = world[0].runtime();
  }
  EXPECT_EQ(kept->name(), "worker0");
  EXPECT_FALSE(rpc_async(Destination(kept, "worker0"), plus_one, 1).result().ok());
}

size_t threads_of_this_process() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

TEST_F(ShutdownTest, LeavesNoThreadBehind) {
  { WorkerWorld warm(2); }
  const size_t before = threads_of_this_process();
  {
    WorkerWorld world(4);
    rpc_sync(world[0].to("worker1"), plus_one, 1);
    EXPECT_GT(threads_of_this_process(), before);
    world.shutdown_all();
  }
  EXPECT_EQ(threads_of_this_process(), before);
}

// ---- join

class JoinTest : public ::testing::Test {
 protected:
  // Joins all workers at the same time and returns the status of each.
  std::vector<absl::Status> join_all(std::vector<WorkerOptions> options) {
    std::vector<absl::Status> results(options.size());
    std::vector<std::unique_ptr<Worker>> workers(options.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < options.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          workers[i] = std::make_unique<Worker>(Worker::join(options[i]));
        } catch (const RpcError& error) {
          results[i] = error.status();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  WorkerWorld world_{0};
};

TEST_F(JoinTest, AMissingRankIsNamed) {
  WorkerOptions options = world_.options_of(0, 3);
  options.join_timeout = absl::Milliseconds(50);
  const absl::Status status = join_all({options})[0];
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1, 2"));
}

TEST_F(JoinTest, TwoWorkersWithOneNameFailAndSayIt) {
  std::vector<WorkerOptions> options{world_.options_of(0, 2), world_.options_of(1, 2)};
  for (WorkerOptions& each : options) each.name = "trainer";
  for (const absl::Status& status : join_all(options)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("trainer"));
  }
}

TEST_F(JoinTest, TwoIdeasOfTheWorldSizeFailAndSayBoth) {
  for (const absl::Status& status : join_all({world_.options_of(0, 2), world_.options_of(1, 3)})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("2"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("3"));
  }
}

TEST_F(JoinTest, BadOptionsAreRefusedBeforeAnythingIsOpened) {
  WorkerOptions options = world_.options_of(2, 2);
  EXPECT_EQ(join_all({options})[0].code(), absl::StatusCode::kInvalidArgument);
  options = world_.options_of(0, 1);
  options.name = "two words";
  EXPECT_THAT(std::string(join_all({options})[0].message()), HasSubstr("two words"));
  options.name.clear();
  options.threads = 0;
  EXPECT_THAT(std::string(join_all({options})[0].message()), HasSubstr("threads = 0"));
  options.threads = 1;
  options.call_credits = 0;
  EXPECT_THAT(std::string(join_all({options})[0].message()), HasSubstr("call_credits = 0"));
  options.call_credits = 1;
  options.spin = std::chrono::nanoseconds(-1);
  EXPECT_THAT(std::string(join_all({options})[0].message()), HasSubstr("spin = -1 ns"));
}

TEST(WorkerOptionsTest, ListensOnLoopbackOnlyIfTheStoreIsThere) {
  WorkerOptions options;
  options.place.master_addr = "127.0.0.1";
  EXPECT_EQ(options.effective_listen_host(), "127.0.0.1");
  options.place.master_addr = "::1";
  EXPECT_EQ(options.effective_listen_host(), "127.0.0.1");
  EXPECT_TRUE(options.stays_on_host());
  options.place.master_addr = "node7.example";
  EXPECT_NE(options.effective_listen_host(), "127.0.0.1");
  EXPECT_FALSE(options.stays_on_host());
  options.listen_host = "10.0.0.3";
  EXPECT_EQ(options.effective_listen_host(), "10.0.0.3");
  options.place.master_addr = "127.0.0.1";
  EXPECT_FALSE(options.stays_on_host());
}

}  // namespace
}  // namespace weft
