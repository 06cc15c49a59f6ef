// Workers that die, hang, come back, join late and leave, over both transports.
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/rpc/function.h"
#include "weft/rpc/rendezvous/death_records.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace weft::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

int64_t one_more(int64_t x) { return x + 1; }
WEFT_REGISTER_FUNCTION(one_more);

class Counter {
 public:
  explicit Counter(int64_t start) : value_(start) {}
  int64_t value() const { return value_; }

 private:
  int64_t value_;
};
WEFT_REGISTER_CLASS(Counter, weft::constructor<int64_t>(), &Counter::value);

class DynamicGroupTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  Worker& join(const std::string& name) { return world_.join(world_.options_of(name)); }

  WorkerWorld world_{GetParam()};
};

TEST_P(DynamicGroupTest, WorkersJoinAtAnyTime) {
  Worker& a = join("a");
  EXPECT_EQ(rpc_sync(a.to("a"), one_more, 1), 2);
  Worker& b = join("b");
  EXPECT_EQ(rpc_sync(b.to("a"), one_more, 2), 3);
  EXPECT_EQ(rpc_sync(a.to("b"), one_more, 3), 4);
  Worker& c = join("c");
  EXPECT_EQ(rpc_sync(c.to("a"), one_more, 4), 5);
  EXPECT_EQ(rpc_sync(b.to("c"), one_more, 5), 6);
  EXPECT_EQ(a.workers().size(), 3u);
}

TEST_P(DynamicGroupTest, RankAndWorldSizeDoNotCount) {
  Worker& a = join("a");
  WorkerOptions options = world_.options_of("b");
  options.place.rank = 7;  // not 0: that one would host the store
  options.place.world_size = 1;
  Worker& b = world_.join(options);
  options.name = "c";
  options.place.world_size = 0;
  Worker& c = world_.join(options);
  EXPECT_EQ(rpc_sync(c.to("a"), one_more, 1), 2);
  EXPECT_EQ(rpc_sync(c.to("b"), one_more, 2), 3);
  EXPECT_EQ(b.id().index, 1u);
  EXPECT_EQ(a.workers().size(), 3u);
}

TEST_P(DynamicGroupTest, ManyJoinAtOnce) {
  std::vector<std::unique_ptr<Worker>> workers(6);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < workers.size(); ++i) {
    threads.emplace_back([&, i] {
      workers[i] =
          std::make_unique<Worker>(Worker::join(world_.options_of("worker" + std::to_string(i))));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& caller : workers) {
    for (size_t i = 0; i < workers.size(); ++i) {
      const std::string name = "worker" + std::to_string(i);
      caller->wait_for(name, seconds(20));
      EXPECT_EQ(rpc_sync(caller->to(name), one_more, 7), 8);
    }
  }
}

TEST_P(DynamicGroupTest, LeavingEndsCleanly) {
  Worker& a = join("a");
  Worker& b = join("b");
  {
    const RRef<Counter> mine = remote<Counter>(b.to("a"), 5);
    EXPECT_EQ(mine.rpc_sync(&Counter::value), 5);
    b.shutdown();
    // The owner has already dropped what this worker held.
    EXPECT_EQ(a.debug_info().owned_values, 0u);
    EXPECT_EQ(a.debug_info().forks, 0u);
  }
  while (a.debug_info().agent.live_peers > 1) std::this_thread::yield();
  const absl::Status error = error_of([&] { rpc_sync(a.to("b"), one_more, 1); });
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ran_of(error), Ran::kNo);
  // Its name can be taken again at once.
  Worker& again = join("b");
  EXPECT_EQ(rpc_sync(a.to("b"), one_more, 1), 2);
  EXPECT_GT(again.id().incarnation, 1u);
}

TEST_P(DynamicGroupTest, LeavingWaitsForThoseWhoReferToItsValues) {
  Worker& a = join("a");
  Worker& b = join("b");
  auto held = std::make_unique<RRef<Counter>>(remote<Counter>(b.to("a"), 9));
  EXPECT_EQ(held->rpc_sync(&Counter::value), 9);
  const Future<void> left = a.shutdown_async();
  EXPECT_FALSE(left.wait_for(milliseconds(100)));
  EXPECT_EQ(held->rpc_sync(&Counter::value), 9);
  held = nullptr;
  left.wait();
}

TEST_P(DynamicGroupTest, WhatIsStillReferredToAtTheTimeoutIsNamed) {
  Worker& a = join("a");
  Worker& b = join("b");
  const RRef<Counter> held = remote<Counter>(b.to("a"), 9);
  EXPECT_EQ(held.rpc_sync(&Counter::value), 9);
  const absl::Status error = error_of([&] { a.shutdown(milliseconds(100)); });
  EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("a reference is left"), HasSubstr("worker 'b'")));
  // A call in flight when the goodbye comes is Unavailable. Later calls are RRefLost.
  absl::Status lost;
  do {
    lost = error_of([&] { held.rpc_sync(&Counter::value); });
    ASSERT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  } while (!is_rref_lost(lost));
}

TEST_P(DynamicGroupTest, AJoinerMeetsALeavingWorker) {
  Worker& a = join("a");
  Worker& b = join("b");
  auto held = std::make_unique<RRef<Counter>>(remote<Counter>(b.to("a"), 9));
  EXPECT_EQ(held->rpc_sync(&Counter::value), 9);
  const Future<void> left = a.shutdown_async();
  EXPECT_FALSE(left.wait_for(milliseconds(50)));
  Worker& c = join("c");
  EXPECT_EQ(rpc_sync(c.to("b"), one_more, 4), 5);
  EXPECT_EQ(held->rpc_sync(&Counter::value), 9);
  held = nullptr;
  left.wait();
}

INSTANTIATE_TEST_SUITE_P(Transports, DynamicGroupTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return to_string(info.param); });

class Deaths : public ::testing::Test {
 protected:
  // The deaths of which one worker was told, by name.
  struct Log {
    Mutex mutex;
    std::map<std::string, absl::Status> died ABSL_GUARDED_BY(mutex);
    std::atomic<int> joined{0};
  };
  Worker& join(const std::string& name) {
    WorkerOptions options = world_.options_of(name);
    auto log = std::make_shared<Log>();
    logs_[name] = log;
    options.on_member_change = [log](const WorkerInfo& worker, MemberChange change,
                                     const absl::Status& why) {
      if (change == MemberChange::kJoined) ++log->joined;
      if (change != MemberChange::kDied) return;
      const MutexLock lock(log->mutex);
      log->died[worker.name] = why;
    };
    return world_.join(std::move(options));
  }
  std::optional<absl::Status> death(const std::string& at, const std::string& of) {
    Log& log = *logs_[at];
    const MutexLock lock(log.mutex);
    const auto found = log.died.find(of);
    if (found == log.died.end()) return std::nullopt;
    return found->second;
  }
  // Waits until `at` has heard of the death of `of`.
  absl::Status wait_for_death(const std::string& at, const std::string& of) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      if (auto why = death(at, of)) return *why;
      std::this_thread::yield();
    }
    return absl::DeadlineExceededError("did not hear of it");
  }

  WorkerWorld world_{TransportKind::kInproc};
  std::map<std::string, std::shared_ptr<Log>> logs_;
};

TEST_F(Deaths, ADeathRecordReachesEverybody) {
  Worker& a = join("a");
  join("b");
  join("c");
  Worker& victim = join("victim");
  const RRef<Counter> held = remote<Counter>(a.to("victim"), 1);
  EXPECT_EQ(held.rpc_sync(&Counter::value), 1);
  world_.kill(victim);
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_EQ(wait_for_death(name, "victim").code(), absl::StatusCode::kUnavailable) << name;
  }
  EXPECT_TRUE(is_rref_lost(error_of([&] { held.rpc_sync(&Counter::value); })));
  DeathRecords list(world_.store(), "weft", 0);
  const auto death_records = list.read();
  EXPECT_EQ(death_records->size(), 1u);
}

// One member never hears that the joiner has met all. The other member calls the joiner while its
// join fails.
TEST_F(Deaths, AJoinThatFailsEndsWhatCallsHaveBegun) {
  Worker& a = join("a");
  Worker& b = join("b");
  world_.network().set_filter([to = a.id()](const FrameHeader& header) {
    const bool cut =
        header.kind == FrameKind::kPost && header.source.index > 1 && header.destination == to;
    return cut ? InprocNetwork::Fate::kDrop : InprocNetwork::Fate::kDeliver;
  });
  for (int i = 0; i < 5; ++i) {  // under one name: a join that failed does not keep it
    std::atomic<bool> over{false};
    std::thread caller([&] {
      while (!over) (void)error_of([&] { rpc_sync(b.to("late"), one_more, 1); });
    });
    WorkerOptions options = world_.options_of("late");
    options.join_timeout = absl::Milliseconds(200);
    const absl::Status error = error_of([&] { Worker::join(std::move(options)); });
    EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded) << error;
    over = true;
    caller.join();
  }
}

// Two workers are cut off from each other only. One of them is declared dead, for all.
TEST_F(Deaths, OfTwoThatAreCutApartOneIsFenced) {
  Worker& a = join("a");
  Worker& b = join("b");
  Worker& c = join("c");
  std::map<WorkerId, std::string> names{{a.id(), "a"}, {b.id(), "b"}};
  world_.network().set_filter([x = a.id(), y = b.id()](const FrameHeader& header) {
    const bool cut = (header.source == x && header.destination == y) ||
                     (header.source == y && header.destination == x);
    return cut ? InprocNetwork::Fate::kDrop : InprocNetwork::Fate::kDeliver;
  });
  const absl::Status error =
      error_of([&] { rpc_sync(a.to("b", {.timeout = seconds(30)}), one_more, 1); });
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ran_of(error), Ran::kMaybe);
  DeathRecords list(world_.store(), "weft", 0);
  const auto death_records = list.read();
  ASSERT_EQ(death_records->size(), 1u);
  const WorkerId dead = death_records->front().dead;
  ASSERT_TRUE(names.contains(dead)) << dead;
  EXPECT_EQ(wait_for_death("c", names[dead]).code(), absl::StatusCode::kUnavailable);
  Worker& survivor = dead == a.id() ? b : a;
  Worker& fenced = dead == a.id() ? a : b;
  EXPECT_EQ(rpc_sync(survivor.to("c"), one_more, 1), 2);
  EXPECT_EQ(wait_for_death(names[dead], "c").code(), absl::StatusCode::kUnavailable);
  const absl::Status own = error_of([&] { rpc_sync(fenced.to("c"), one_more, 1); });
  EXPECT_THAT(std::string(own.message()),
              AllOf(HasSubstr("is out of reach"), HasSubstr("was declared dead by worker")));
  EXPECT_EQ(ran_of(own), Ran::kNo);
  const absl::Status awaited = error_of([&] { fenced.wait_for("nobody", seconds(30)); });
  EXPECT_EQ(awaited.code(), absl::StatusCode::kUnavailable) << awaited;
  (void)c;
}

// Only one direction is cut: requests arrive, replies do not.
TEST_F(Deaths, AOneWayCutEndsTheCall) {
  Worker& a = join("a");
  Worker& b = join("b");
  world_.network().set_filter([from = b.id(), to = a.id()](const FrameHeader& header) {
    const bool cut = header.source == from && header.destination == to;
    return cut ? InprocNetwork::Fate::kDrop : InprocNetwork::Fate::kDeliver;
  });
  const absl::Status error =
      error_of([&] { rpc_sync(a.to("b", {.timeout = seconds(30)}), one_more, 1); });
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ran_of(error), Ran::kMaybe);
}

TEST_F(Deaths, ADeadWorkersNameReturnsAsANewIncarnation) {
  Worker& a = join("a");
  Worker& first = join("b");
  const RRef<Counter> lost = remote<Counter>(a.to("b"), 1);
  EXPECT_EQ(lost.rpc_sync(&Counter::value), 1);
  world_.kill(first);
  EXPECT_EQ(wait_for_death("a", "b").code(), absl::StatusCode::kUnavailable);
  const Future<WorkerInfo> back = a.wait_for_async("b", seconds(20));
  EXPECT_FALSE(back.done());
  Worker& second = join("b");
  EXPECT_EQ(back.wait().id, second.id());
  EXPECT_EQ(second.id().index, first.id().index);
  EXPECT_EQ(rpc_sync(a.to("b"), one_more, 1), 2);
  EXPECT_EQ(a.workers().size(), 2u);
  // A reference to the earlier incarnation never refers to the later one.
  EXPECT_TRUE(is_rref_lost(error_of([&] { lost.rpc_sync(&Counter::value); })));
  EXPECT_TRUE(is_rref_lost(error_of([&] { lost.rpc_sync(&Counter::value); })));
}

TEST_F(Deaths, ANameIsNotTakenFromAWorkerThatLives) {
  Worker& a = join("a");
  const absl::Status error = error_of([&] { Worker::join(world_.options_of("a")); });
  EXPECT_EQ(error.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(rpc_sync(a.to("a"), one_more, 1), 2);
}

TEST_F(Deaths, WaitingForAWorkerEnds) {
  Worker& a = join("a");
  const absl::Status late = error_of([&] { a.wait_for("nobody", milliseconds(20)); });
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("'nobody'"));
  const Future<WorkerInfo> never = a.wait_for_async("nobody", absl::InfiniteDuration());
  a.shutdown();
  EXPECT_EQ(never.result().status().code(), absl::StatusCode::kCancelled);
}

// Two workers keep a lease as long as they share something, and no longer.
TEST_F(Deaths, IdleWorkersExchangeNothing) {
  WorkerOptions options = world_.options_of("a");
  options.lease = {milliseconds(10), milliseconds(1000), milliseconds(500), milliseconds(50)};
  Worker& a = world_.join(std::move(options));
  options = world_.options_of("b");
  options.lease = {milliseconds(10), milliseconds(1000), milliseconds(500), milliseconds(50)};
  Worker& b = world_.join(std::move(options));
  auto heartbeats = std::make_shared<std::atomic<int>>(0);
  world_.network().set_filter([heartbeats](const FrameHeader& header) {
    if (header.kind == FrameKind::kHeartbeat) ++*heartbeats;
    return InprocNetwork::Fate::kDeliver;
  });
  {
    const RRef<Counter> held = remote<Counter>(a.to("b"), 1);
    EXPECT_EQ(held.rpc_sync(&Counter::value), 1);
    while (a.debug_info().leases == 0 || b.debug_info().leases == 0) std::this_thread::yield();
    // The reference keeps the lease, long after the last call.
    const int before = *heartbeats;
    while (*heartbeats < before + 100) std::this_thread::yield();
    EXPECT_EQ(a.debug_info().leases, 1u);
  }
  while (a.debug_info().leases + b.debug_info().leases > 0) std::this_thread::yield();
  const int after = *heartbeats;
  const auto until = std::chrono::steady_clock::now() + milliseconds(100);
  while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(*heartbeats, after);
}

// When a call fails because its owner died, all references to that owner are lost too.
TEST(StaticGroup, AReferenceIsLostAsSoonAsCallsFail) {
  WorkerWorld world(2);
  const RRef<Counter> lost = remote<Counter>(world[0].to("worker1"), 1);
  EXPECT_EQ(lost.rpc_sync(&Counter::value), 1);
  world.network().set_filter([](const FrameHeader&) { return InprocNetwork::Fate::kDrop; });
  const auto pending = rpc_async(world[0].to("worker1"), one_more, 1);
  std::promise<absl::Status> found;
  pending.state()->on_complete_inline(
      [&] { found.set_value(lost.rpc_async(&Counter::value).result().status()); });
  world.kill(1);
  const absl::Status status = found.get_future().get();
  EXPECT_TRUE(is_rref_lost(status)) << status;
}

// Kubernetes counts no restarts: the process finds out itself that it is the second one.
TEST(StaticGroup, AReplacementJoinsOnceTheGroupKnowsThatTheRankIsDead) {
  WorkerWorld world(3);
  EXPECT_FALSE(world[2].restarted());
  world.kill(2);
  WorkerOptions options = world.options_of(2, 3);
  options.place.replaces_the_dead = true;
  Worker& second = world.join(options);
  EXPECT_TRUE(second.restarted());
  EXPECT_EQ(second.id(), (WorkerId{2, 2}));
  EXPECT_EQ(world[0].wait_for("worker2", seconds(20)).id, second.id());
  EXPECT_EQ(rpc_sync(world[0].to("worker2"), one_more, 2), 3);
  world.shutdown_all();
}

// As a pod whose program has thrown: the others are told that it leaves, and it is not dead.
TEST(StaticGroup, AReplacementJoinsAfterAProcessThatLeftWithoutShutdown) {
  WorkerWorld world(3);
  world.destroy(2);
  WorkerOptions options = world.options_of(2, 3);
  options.place.replaces_the_dead = true;
  options.place.group_epoch = 0;
  Worker& second = world.join(options);
  EXPECT_TRUE(second.restarted());
  EXPECT_EQ(rpc_sync(second.to("worker0"), one_more, 1), 2);
  world.shutdown_all();
}

// In a static group, a rank that comes back finds the workers that lived on.
TEST(StaticGroup, ARestartedRankIsANewIncarnationOfTheGroup) {
  WorkerWorld world(3);
  const RRef<Counter> lost = remote<Counter>(world[0].to("worker2"), 1);
  EXPECT_EQ(lost.rpc_sync(&Counter::value), 1);
  world.kill(2);
  Worker& second = world.restart(2);
  EXPECT_EQ(rpc_sync(second.to("worker0"), one_more, 1), 2);
  EXPECT_EQ(world[0].wait_for("worker2", seconds(20)).id, second.id());
  EXPECT_EQ(rpc_sync(world[0].to("worker2"), one_more, 2), 3);
  EXPECT_EQ(rpc_sync(world[1].to("worker2"), one_more, 3), 4);
  // The new incarnation may be known before the death record of the earlier one. A call in flight
  // when the death record comes is Unavailable. Later calls are RRefLost.
  absl::Status gone;
  do {
    gone = error_of([&] { lost.rpc_sync(&Counter::value); });
    ASSERT_EQ(gone.code(), absl::StatusCode::kUnavailable) << gone;
  } while (!is_rref_lost(gone));
  world.shutdown_all();
}

// Static groups whose workers share nothing, so that no lease would show that one hangs.
class HangingTest : public ::testing::Test {
 protected:
  static void quickly(size_t, WorkerOptions& options) {
    options.lease = {milliseconds(10), milliseconds(1000), milliseconds(500), milliseconds(50)};
  }
  // Waits for 100 heartbeats, long after the workers last shared anything. From then on the worker
  // neither hears nor sends anything.
  void hang(WorkerWorld& world, size_t rank) {
    auto heartbeats = std::make_shared<std::atomic<int>>(0);
    world.network().set_filter([heartbeats](const FrameHeader& header) {
      if (header.kind == FrameKind::kHeartbeat) ++*heartbeats;
      return InprocNetwork::Fate::kDeliver;
    });
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (*heartbeats < 100) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "nobody looks after it";
      std::this_thread::yield();
    }
    world.network().set_filter([who = world[rank].id()](const FrameHeader& header) {
      const bool lost = header.source == who || header.destination == who;
      return lost ? InprocNetwork::Fate::kDrop : InprocNetwork::Fate::kDeliver;
    });
  }
};

TEST_F(HangingTest, AShutdownDoesNotWaitForOneThatHangs) {
  WorkerWorld world(3, quickly);
  std::vector<Future<void>> ends{world[0].shutdown_async(), world[1].shutdown_async()};
  hang(world, 2);
  wait_all(ends);
}

TEST_F(HangingTest, ServingDoesNotWaitForOneThatHangs) {
  WorkerWorld world(2, quickly);
  std::thread serving([&] { world[0].serve(); });
  hang(world, 1);
  serving.join();
  world[0].shutdown();
}

// The others wait for the group's shutdown, and must wait for a rank that comes back meanwhile.
TEST(StaticGroup, ARankMayComeBackWhileOthersWaitForTheEnd) {
  WorkerWorld world(3);
  world.kill(2);
  const Future<void> end = world[0].shutdown_async();
  Worker& second = world.restart(2);
  EXPECT_EQ(rpc_sync(second.to("worker1"), one_more, 1), 2);
  EXPECT_FALSE(end.done());
  std::vector<Future<void>> ends{end, world[1].shutdown_async(), second.shutdown_async()};
  wait_all(ends);
}

}  // namespace
}  // namespace weft::testing
