// Calls inside calls with hardly any threads or credit, cancelled work, and floods.
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"

namespace weft {
namespace {

using testing::WorkerWorld;
using namespace std::chrono_literals;

void little(size_t, WorkerOptions& options) {
  options.threads = 1;
  options.call_credits = 2;
}

int64_t nest(const std::string& here, const std::string& there, int64_t depth);
WEFT_REGISTER_FUNCTION(nest);
int64_t nest(const std::string& here, const std::string& there, int64_t depth) {
  return depth == 0 ? 0 : 1 + rpc_sync(there, nest, there, here, depth - 1);
}

TEST(NestingTest, EightChainsAtOnceEach64DeepNeedNeitherThreadsNorCredit) {
  WorkerWorld world(2, little);
  std::vector<Future<int64_t>> chains;
  for (int chain = 0; chain < 8; ++chain) {
    const size_t from = chain % 2, to = 1 - from;
    chains.push_back(
        rpc_async(world[from].to(world.name(to)), nest, world.name(to), world.name(from), 63));
  }
  for (Future<int64_t>& chain : chains) EXPECT_EQ(chain.wait(), 63);
  world.shutdown_all();
}

// A wait that the executor cannot see: the second call opens what the first one waits for.
struct Door {
  Mutex mutex;
  CondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = false;
  std::atomic<int> started{0};
};
Door door;

void wait_at_door() {
  ++door.started;
  MutexLock lock(door.mutex);
  while (!door.open) door.changed.wait(door.mutex);
}
WEFT_REGISTER_FUNCTION(wait_at_door);
void set_door(bool open) {
  MutexLock lock(door.mutex);
  door.open = open;
  door.changed.notify_all();
}
WEFT_REGISTER_FUNCTION(set_door);

TEST(NestingTest, AHandlerThatWaitsOnItsOwnConditionVariableDoesNotStarveItsWaker) {
  WorkerWorld world(2, little);
  set_door(false);
  Future<void> waiter = rpc_async(world[0].to("worker1"), wait_at_door);
  Future<int64_t> chain =
      rpc_async(world[0].to("worker1"), nest, std::string("worker1"), std::string("worker0"), 8);
  EXPECT_EQ(chain.wait(), 8);
  rpc_sync(world[0].to("worker1"), set_door, true);
  waiter.wait();
  world.shutdown_all();
}

std::atomic<int> polls_ended{0};
void poll_until_cancelled(CallContext& context) {
  ++door.started;
  while (!context.cancelled()) std::this_thread::yield();
  ++polls_ended;
}
WEFT_REGISTER_FUNCTION(poll_until_cancelled);

std::atomic<int> ran{0};
void count_run() { ++ran; }
WEFT_REGISTER_FUNCTION(count_run);

void at_once() {}
WEFT_REGISTER_FUNCTION(at_once, run_inline);

TEST(NestingTest, AHandlerSeesThatItsCallWasCancelled) {
  WorkerWorld world(2);
  door.started = 0;
  polls_ended = 0;
  Future<void> call = rpc_async(world[0].to("worker1"), poll_until_cancelled);
  while (door.started == 0) std::this_thread::yield();
  call.cancel();
  EXPECT_EQ(call.result().status().code(), absl::StatusCode::kCancelled);
  world.shutdown_all();  // waits for the handler, which would poll for ever
  EXPECT_EQ(polls_ended, 1);
}

TEST(NestingTest, CancelledCallsThatWaitInTheQueueNeverStart) {
  // One thread, which waits without saying so, and no second one to be had.
  WorkerWorld world(2, [](size_t, WorkerOptions& options) {
    options.threads = 1;
    options.max_threads = 1;
  });
  set_door(false);
  door.started = 0;
  ran = 0;
  Future<void> first = rpc_async(world[0].to("worker1"), wait_at_door);
  while (door.started == 0) std::this_thread::yield();
  std::vector<Future<void>> queued;
  for (int i = 0; i < 16; ++i) queued.push_back(rpc_async(world[0].to("worker1"), count_run));
  for (Future<void>& call : queued) call.cancel();
  // Travels behind the cancels and is answered (or refused) without a thread: they have arrived.
  (void)rpc_async(world[0].to("worker1"), at_once).result();
  set_door(true);
  first.wait();
  world.shutdown_all();
  EXPECT_EQ(ran, 0);
}

int64_t size_of(const std::string& text) { return static_cast<int64_t>(text.size()); }
WEFT_REGISTER_FUNCTION(size_of);

TEST(NestingTest, AFloodIsRefusedByTypeAndHoldsNoMoreThanTheBound) {
  constexpr size_t kBound = size_t{1} << 20;
  WorkerWorld world(2, [](size_t, WorkerOptions& options) {
    options.threads = 1;
    options.call_credits = 4;
    options.byte_credits = kBound;
    options.max_queued_bytes = kBound;
  });
  set_door(false);
  Future<void> blocked = rpc_async(world[0].to("worker1"), wait_at_door);
  const std::string text(64 << 10, 'x');
  std::vector<Future<int64_t>> flood;
  size_t refused = 0;
  for (int i = 0; i < 200; ++i) {
    Future<int64_t> call = rpc_async(world[0].to("worker1"), size_of, text);
    if (call.done() && call.result().status().code() == absl::StatusCode::kResourceExhausted) {
      EXPECT_EQ(ran_of(call.result().status()), Ran::kNo);
      ++refused;
    } else {
      flood.push_back(std::move(call));
    }
    const AgentInfo info = world[0].debug_info().agent;
    ASSERT_LE(info.queued_calls * text.size(), kBound);
  }
  set_door(true);
  for (Future<int64_t>& call : flood) {
    const auto& result = call.result();
    if (result.ok()) {
      EXPECT_EQ(*result, static_cast<int64_t>(text.size()));
    }
  }
  blocked.wait();
  world.shutdown_all();
  RecordProperty("refused", static_cast<int>(refused));
}

}  // namespace
}  // namespace weft
