// Calls inside calls with hardly any threads or credit, and cancelled work, over every transport.
#include <algorithm>
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"
#include "weft/tests/worker/nested_calls.h"

namespace nesting_test {

using namespace std::chrono_literals;
using nested_calls::nest;
using weft::CallContext;
using weft::Future;
using weft::WorkerOptions;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

class NestingTest : public nested_calls::OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, NestingTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

void little(size_t, WorkerOptions& options) {
  options.threads = 1;
  options.call_credits = 2;
}
// One thread only. It waits without telling the executor, and no second one may be started.
void one_thread(size_t, WorkerOptions& options) { options.threads = options.max_threads = 1; }

TEST_P(NestingTest, EightChainsAtOnceEach64DeepNeedNeitherThreadsNorCredit) {
  WorkerWorld world(2, over_transport(little));
  std::vector<Future<int64_t>> chains;
  for (int chain = 0; chain < 8; ++chain) {
    const size_t from = chain % 2, to = 1 - from;
    chains.push_back(weft::rpc_async(world[from].to(world.name(to)), nest, world.name(to),
                                     world.name(from), 63));
  }
  for (Future<int64_t>& chain : chains) EXPECT_EQ(chain.wait(), 63);
  world.shutdown_all();
}

// The worker that joins later dials the other one, whose address does or does not name shared
// memory.
TEST(MixedTransports, AWorkerWithoutSharedMemoryAndOneWithItCallEachOther) {
  for (const bool later_is_without : {true, false}) {
    WorkerWorld world(TransportKind::kGrpc);
    WorkerOptions first = world.options_of("first"), later = world.options_of("later");
    (later_is_without ? later : first).same_host = WorkerOptions::SameHost::kOff;
    weft::Worker& one = world.join(std::move(first));
    weft::Worker& other = world.join(std::move(later));
    EXPECT_EQ(
        weft::rpc_sync(other.to("first"), nest, std::string("first"), std::string("later"), 3), 3);
    EXPECT_EQ(weft::rpc_sync(one.to("later"), nest, std::string("later"), std::string("first"), 3),
              3);
    world.shutdown_all();
  }
}

// A wait that the executor cannot see.
struct Door {
  weft::Mutex mutex;
  weft::CondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = false;
  int arrived ABSL_GUARDED_BY(mutex) = 0;

  void pass() {
    weft::MutexLock lock(mutex);
    ++arrived;
    changed.notify_all();
    while (!open) changed.wait(mutex);
  }
  void set(bool value) {
    weft::MutexLock lock(mutex);
    open = value;
    arrived = 0;
    changed.notify_all();
  }
  void wait_for_one() {
    weft::MutexLock lock(mutex);
    while (arrived == 0) changed.wait(mutex);
  }
};
Door door;
void wait_at_door() { door.pass(); }
WEFT_REGISTER_FUNCTION(wait_at_door);
void set_door(bool open) { door.set(open); }
WEFT_REGISTER_FUNCTION(set_door);

TEST_P(NestingTest, AHandlerThatWaitsOnItsOwnConditionVariableDoesNotStarveItsWaker) {
  WorkerWorld world(2, over_transport(little));
  door.set(false);
  Future<void> waiter = weft::rpc_async(world[0].to("worker1"), wait_at_door);
  door.wait_for_one();
  EXPECT_EQ(weft::rpc_sync(world[0].to("worker1"), nest, std::string("worker1"),
                           std::string("worker0"), 8),
            8);
  weft::rpc_sync(world[0].to("worker1"), set_door, true);
  waiter.wait();
  world.shutdown_all();
}

// Each level waits on a condition variable for a continuation, which needs another thread.
int64_t nest_unseen(const std::string& here, const std::string& there, int64_t depth);
WEFT_REGISTER_FUNCTION(nest_unseen);
int64_t nest_unseen(const std::string& here, const std::string& there, int64_t depth) {
  if (depth == 0) return 0;
  struct Answer {
    weft::Mutex mutex;
    weft::CondVar changed;
    std::optional<int64_t> value ABSL_GUARDED_BY(mutex);
  };
  auto answer = std::make_shared<Answer>();
  (void)weft::rpc_async(there, nest_unseen, there, here, depth - 1)
      .then([answer](const Future<int64_t>& inner) {
        const int64_t value = inner.wait();
        weft::MutexLock lock(answer->mutex);
        answer->value = value;
        answer->changed.notify_all();
      });
  weft::MutexLock lock(answer->mutex);
  while (!answer->value) answer->changed.wait(answer->mutex);
  return 1 + *answer->value;
}

TEST_P(NestingTest, AChainOfWaitsThatNobodyAnnouncesCompletes) {
  WorkerWorld world(2, over_transport(little));
  EXPECT_EQ(weft::rpc_sync(world[0].to("worker1"), nest_unseen, std::string("worker1"),
                           std::string("worker0"), 24),
            24);
  world.shutdown_all();
}

std::atomic<bool> polling{false};
std::atomic<weft::TimePoint> stopped{weft::TimePoint()};
void poll_until_cancelled(CallContext& context) {
  polling = true;
  while (!context.cancelled()) std::this_thread::yield();
  stopped = std::chrono::steady_clock::now();
  polling = false;
}
WEFT_REGISTER_FUNCTION(poll_until_cancelled);

TEST_P(NestingTest, AHandlerThatPollsStopsWithin50MillisecondsOfACancel) {
  WorkerWorld world(2, over_transport(nullptr));
  std::vector<weft::Nanoseconds> delays;
  for (int i = 0; i < 21; ++i) {
    Future<void> call = weft::rpc_async(world[0].to("worker1"), poll_until_cancelled);
    while (!polling) std::this_thread::yield();
    const auto begin = std::chrono::steady_clock::now();
    call.cancel();
    EXPECT_EQ(call.result().status().code(), absl::StatusCode::kCancelled);
    while (polling) std::this_thread::yield();  // it polls for ever if it is not told
    delays.push_back(stopped.load() - begin);
  }
  // The median is checked, since a machine may be too busy to run anything for 50 ms.
  std::nth_element(delays.begin(), delays.begin() + 10, delays.end());
  EXPECT_LT(delays[10], 50ms);
  world.shutdown_all();
}

TEST_P(NestingTest, AHandlerThatPollsStopsWhenItsCallerLeaves) {
  WorkerWorld world(2, over_transport(nullptr));
  Future<void> call = weft::rpc_async(world[0].to("worker1"), poll_until_cancelled);
  while (!polling) std::this_thread::yield();
  world[0].shutdown({.graceful = false});
  while (polling) std::this_thread::yield();
  EXPECT_FALSE(call.result().ok());
}

std::atomic<int> ran{0};
void count_run() { ++ran; }
WEFT_REGISTER_FUNCTION(count_run);
void at_once() {}
WEFT_REGISTER_FUNCTION(at_once, weft::run_inline);

TEST_P(NestingTest, CancelledCallsThatWaitInTheQueueNeverStart) {
  WorkerWorld world(2, over_transport(one_thread));
  door.set(false);
  ran = 0;
  Future<void> first = weft::rpc_async(world[0].to("worker1"), wait_at_door);
  door.wait_for_one();
  std::vector<Future<void>> queued;
  for (int i = 0; i < 16; ++i) {
    queued.push_back(weft::rpc_async(world[0].to("worker1"), count_run));
  }
  for (Future<void>& call : queued) call.cancel();
  // This call follows the cancels and is answered (or refused) without a thread. So the cancels
  // have arrived.
  (void)weft::rpc_async(world[0].to("worker1"), at_once).result();
  door.set(true);
  first.wait();
  world.shutdown_all();
  EXPECT_EQ(ran, 0);
}

TEST_P(NestingTest, CancelledCallsThatWaitForCreditAreNeverSent) {
  WorkerWorld world(2, over_transport([](size_t rank, WorkerOptions& options) {
                      one_thread(rank, options);
                      options.call_credits = 2;
                    }));
  door.set(false);
  ran = 0;
  Future<void> first = weft::rpc_async(world[0].to("worker1"), wait_at_door);
  door.wait_for_one();
  // Two calls wait at worker1. The others wait for credit here.
  std::vector<Future<void>> there, here;
  for (int i = 0; i < 2; ++i) there.push_back(weft::rpc_async(world[0].to("worker1"), count_run));
  for (int i = 0; i < 16; ++i) here.push_back(weft::rpc_async(world[0].to("worker1"), count_run));
  for (Future<void>& call : here) call.cancel();
  door.set(true);
  size_t done = 0;
  for (Future<void>& call : there) done += call.result().ok();  // or refused: no thread was left
  first.wait();
  world.shutdown_all();
  EXPECT_EQ(static_cast<size_t>(ran), done);
}

}  // namespace nesting_test
