// Workers over gRPC whose TCP connections break.
//
// Messages in flight must be sent again on new connections, and calls must run once. A worker that
// cannot be dialled any more is dead.
//
// Connections are cut after counted calls or bytes, drawn from a seed that each test prints.
// WEFT_SEED=n draws the same numbers again.
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/tests/rpc/transport/proxied_transport.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/worker_world.h"

namespace broken_stream_test {

using ::testing::HasSubstr;
using weft::Future;
using weft::MutexLock;
using weft::Ran;
using weft::RRef;
using weft::WorkerOptions;
using weft::testing::eventually;
using weft::testing::ProxiedNetwork;
using weft::testing::ProxiedTransport;
using weft::testing::TcpProxy;
using weft::testing::WorkerWorld;

// ---- Functions that the workers can run

int64_t same(int64_t value) { return value; }
WEFT_REGISTER_FUNCTION(same);

// Counts how often each call has run, by a number that its caller gave it.
struct Ledger {
  weft::Mutex mutex;
  std::map<int64_t, int> runs ABSL_GUARDED_BY(mutex);

  void enter(int64_t id) {
    MutexLock lock(mutex);
    ++runs[id];
  }
  int runs_of(int64_t id) {
    MutexLock lock(mutex);
    const auto found = runs.find(id);
    return found == runs.end() ? 0 : found->second;
  }
  size_t size() {
    MutexLock lock(mutex);
    return runs.size();
  }
  void clear() {
    MutexLock lock(mutex);
    runs.clear();
  }
};
Ledger ledger;

std::string enter_text(int64_t id, const std::string& text) {
  ledger.enter(id);
  return text;
}
WEFT_REGISTER_FUNCTION(enter_text);
at::Tensor enter_tensor(int64_t id, const at::Tensor& tensor) {
  ledger.enter(id);
  return tensor;
}
WEFT_REGISTER_FUNCTION(enter_tensor);

int64_t sum(int64_t a, int64_t b) { return a + b; }
WEFT_REGISTER_FUNCTION(sum);
int64_t read(const RRef<int64_t>& value) { return value.to_here(); }
WEFT_REGISTER_FUNCTION(read);

weft::Mutex shelf_mutex;
std::map<int64_t, RRef<int64_t>> shelf ABSL_GUARDED_BY(shelf_mutex);
void keep(int64_t slot, RRef<int64_t> value) {
  MutexLock lock(shelf_mutex);
  shelf[slot] = std::move(value);
}
WEFT_REGISTER_FUNCTION(keep);
void drop(int64_t slot) {
  RRef<int64_t> last;  // destroyed outside the lock
  MutexLock lock(shelf_mutex);
  last = std::move(shelf.at(slot));
  shelf.erase(slot);
}
WEFT_REGISTER_FUNCTION(drop);

// Holds handlers until the test releases them.
struct Latch {
  weft::Mutex mutex;
  weft::CondVar changed;
  bool open ABSL_GUARDED_BY(mutex) = false;
  int arrived ABSL_GUARDED_BY(mutex) = 0;

  void close() {
    MutexLock lock(mutex);
    open = false;
    arrived = 0;
  }
  void release() {
    MutexLock lock(mutex);
    open = true;
    changed.notify_all();
  }
  void pass() {
    MutexLock lock(mutex);
    ++arrived;
    changed.notify_all();
    while (!open) changed.wait(mutex);
  }
  void wait_for_arrivals(int count) {
    MutexLock lock(mutex);
    while (arrived < count) changed.wait(mutex);
  }
};
Latch latch;
void hold() { latch.pass(); }
WEFT_REGISTER_FUNCTION(hold);
// While one call is held, the next one waits at the object and is still in the worker's queue.
class Booth {
 public:
  void hold() { latch.pass(); }
};
WEFT_REGISTER_CLASS(Booth, weft::constructor<>(), &Booth::hold, weft::serial);

// ---- Fixture

WorkerWorld::Customize through(const std::shared_ptr<ProxiedNetwork>& network) {
  return [network](size_t, WorkerOptions& options) {
    options.transport = [network](weft::Clock& clock) {
      return std::make_unique<ProxiedTransport>(clock, network);
    };
  };
}

uint64_t seed_of_this_run() {
  const char* given = std::getenv("WEFT_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

class BrokenStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint64_t seed = seed_of_this_run();
    std::cout << "WEFT_SEED=" << seed << std::endl;
    random_.seed(seed);
    ledger.clear();
    latch.close();
  }

  size_t pick(size_t from, size_t to) { return from + random_() % (to - from + 1); }

  // Makes every pair talk over a connection that was made after the last cut. Then both ends have
  // it, and nobody dials until the next cut.
  static void reconnect(WorkerWorld& world, size_t workers) {
    for (size_t from = 0; from < workers; ++from) {
      for (size_t to = from + 1; to < workers; ++to) {
        EXPECT_EQ(weft::rpc_sync(world[from].to(WorkerWorld::name(to)), same, 42), 42);
      }
    }
  }
  void cut() {
    EXPECT_GE(network_->cut(pick(0, 1) == 0 ? TcpProxy::Cut::kReset : TcpProxy::Cut::kClose), 1u);
    ++cuts_;
  }

  std::mt19937_64 random_;
  const std::shared_ptr<ProxiedNetwork> network_ = std::make_shared<ProxiedNetwork>();
  size_t cuts_ = 0;
};

// ---- Tests

TEST_F(BrokenStreamTest, EveryCallRunsOnceAndIsAnsweredHoweverOftenTheConnectionsBreak) {
  constexpr size_t kCalls = 600;
  constexpr size_t kLarge = size_t{100} << 10;  // travels on the bulk stream
  struct Call {
    std::string text;
    Future<std::string> reply;
  };
  WorkerWorld world(2, through(network_));
  std::vector<Call> calls;
  const auto issue = [&](size_t count) {
    for (; count > 0; --count) {
      const size_t from = calls.size() % 2;
      const auto id = static_cast<int64_t>(calls.size());
      std::string text(pick(0, 7) == 0 ? kLarge : 10, static_cast<char>('a' + id % 26));
      text += std::to_string(id);
      Future<std::string> reply =
          weft::rpc_async(world[from].to(WorkerWorld::name(1 - from)), enter_text, id, text);
      calls.push_back({std::move(text), std::move(reply)});
    }
  };
  reconnect(world, 2);
  while (calls.size() < kCalls) {
    issue(pick(1, 30));
    cut();
    issue(pick(0, 15));  // the workers are not connected
    reconnect(world, 2);
  }
  for (size_t id = 0; id < calls.size(); ++id) {
    const absl::StatusOr<std::string>& reply = calls[id].reply.result();
    EXPECT_TRUE(reply.ok()) << "call " << id << ": " << reply.status();
    EXPECT_TRUE(!reply.ok() || *reply == calls[id].text) << "call " << id;
    EXPECT_EQ(ledger.runs_of(static_cast<int64_t>(id)), 1) << "call " << id;
  }
  EXPECT_EQ(ledger.size(), calls.size());
  EXPECT_EQ(network_->proxy().cuts(), cuts_);
  EXPECT_GT(network_->proxy().connections(), cuts_);  // each cut was followed by another connection
  world.shutdown_all();
}

// The connection is cut while the argument is being sent, or while the result is.
TEST_F(BrokenStreamTest, ALargeTensorInFlightArrivesIntactAndOnce) {
  constexpr size_t kBytes = size_t{8} << 20;
  const at::Tensor tensor = at::arange(int64_t{kBytes / 4}, at::dtype(at::kInt));
  int64_t id = 0;
  for (const size_t from : {0, 1}) {
    for (const bool in_result : {false, true}) {
      const auto network = std::make_shared<ProxiedNetwork>();
      WorkerWorld world(2, through(network));
      reconnect(world, 2);
      network->cut_after(pick(kBytes / 8, kBytes / 8 * 7) + (in_result ? kBytes : 0));
      const Future<at::Tensor> reply =
          weft::rpc_async(world[from].to(WorkerWorld::name(1 - from)), enter_tensor, ++id, tensor);
      ASSERT_TRUE(reply.result().ok()) << reply.result().status();
      EXPECT_TRUE(at::equal(reply.wait(), tensor));
      EXPECT_EQ(network->proxy().cuts(), 1u);
      EXPECT_EQ(ledger.runs_of(id), 1);
      world.shutdown_all();
    }
  }
}

TEST_F(BrokenStreamTest, ReferencesMadeLentAndDroppedAcrossCutsAreAllLetGo) {
  constexpr size_t kWorkers = 3;
  constexpr size_t kReferences = 120;
  WorkerWorld world(kWorkers, through(network_));
  std::vector<Future<int64_t>> theirs_read, mine_read;
  std::vector<Future<void>> kept, dropped;
  const auto issue = [&](size_t count) {
    const weft::WorkerScope scope(world[0]);
    for (; count > 0; --count) {
      const auto slot = static_cast<int64_t>(kept.size());
      // Owned by worker1, sent to worker2 twice, and dropped here at once.
      const RRef<int64_t> theirs = weft::remote("worker1", sum, slot, 1);
      theirs_read.push_back(weft::rpc_async("worker2", read, theirs));
      kept.push_back(weft::rpc_async("worker2", keep, slot, theirs));
      // Owned here, sent to worker1.
      mine_read.push_back(weft::rpc_async("worker1", read, weft::make_rref(int64_t{slot})));
    }
  };
  const auto let_go = [&](size_t count) {
    const weft::WorkerScope scope(world[0]);
    for (; count > 0; --count) {
      const size_t slot = dropped.size();
      kept[slot].wait();
      dropped.push_back(weft::rpc_async("worker2", drop, static_cast<int64_t>(slot)));
    }
  };
  reconnect(world, kWorkers);
  while (kept.size() < kReferences) {
    issue(pick(1, 10));
    let_go(pick(0, kept.size() - dropped.size()));
    cut();
    issue(pick(0, 5));  // the workers are not connected
    reconnect(world, kWorkers);
  }
  let_go(kept.size() - dropped.size());
  weft::wait_all(dropped);
  for (size_t slot = 0; slot < kept.size(); ++slot) {
    EXPECT_EQ(theirs_read[slot].wait(), static_cast<int64_t>(slot) + 1);
    EXPECT_EQ(mine_read[slot].wait(), static_cast<int64_t>(slot));
  }
  for (size_t rank = 0; rank < kWorkers; ++rank) {
    weft::DebugInfo info;
    EXPECT_TRUE(eventually([&] {
      info = world[rank].debug_info();
      return info.owned_values + info.forks + info.references + info.pending_references == 0;
    })) << WorkerWorld::name(rank)
        << " has " << info.owned_values << " values, " << info.forks << " forks, "
        << info.references << " references, " << info.pending_references << " unconfirmed";
  }
  world.shutdown_all();
}

TEST_F(BrokenStreamTest, AWorkerThatCannotBeDialledAnyMoreIsDeadByName) {
  WorkerWorld world(2, [&](size_t rank, WorkerOptions& options) {
    through(network_)(rank, options);
    options.call_credits = 1;
    options.max_queued_calls = 1;  // it also bounds calls at a serial object
  });
  reconnect(world, 2);
  const weft::Destination there = world[0].to("worker1");
  const RRef<Booth> booth = weft::remote<Booth>(there);
  const Future<void> running = booth.rpc_async(&Booth::hold);
  const Future<void> back = weft::rpc_async(world[1].to("worker0"), hold);
  latch.wait_for_arrivals(2);
  // The first of these calls waits at the booth. The second then has the only credit. The third
  // does not leave this worker.
  const auto has_left = [&] {
    return eventually([&] { return world[0].debug_info().agent.queued_calls == 0; });
  };
  const Future<void> waiting = booth.rpc_async(&Booth::hold);
  ASSERT_TRUE(has_left());
  const Future<void> holding = booth.rpc_async(&Booth::hold);
  ASSERT_TRUE(has_left());
  const Future<void> unsent = booth.rpc_async(&Booth::hold);

  network_->proxy().refuse();
  EXPECT_GE(network_->cut(TcpProxy::Cut::kReset), 1u);

  const auto expect_dead = [](const Future<void>& call, const std::string& name) {
    const absl::Status status = call.result().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("'" + name + "'"));
    EXPECT_EQ(weft::worker_of(status), name) << status;
    return weft::ran_of(status);
  };
  EXPECT_EQ(expect_dead(running, "worker1"), Ran::kMaybe);
  EXPECT_EQ(expect_dead(waiting, "worker1"), Ran::kMaybe);
  EXPECT_EQ(expect_dead(holding, "worker1"), Ran::kMaybe);
  EXPECT_EQ(expect_dead(unsent, "worker1"), Ran::kNo);
  EXPECT_EQ(expect_dead(back, "worker0"), Ran::kMaybe);
  EXPECT_EQ(expect_dead(weft::rpc_async(there, hold), "worker1"), Ran::kNo);
  for (size_t rank : {0, 1}) {
    const weft::AgentInfo info = world[rank].debug_info().agent;
    EXPECT_EQ(info.live_peers, 1u) << "itself";
    EXPECT_EQ(info.pending_calls, 0u);
  }
  latch.release();
  world.shutdown_all();
}

}  // namespace broken_stream_test
