// A function runs exactly once for each call, even if frames arrive twice, or the connection breaks
// between the run and its answer. There are 1,000 calls of each kind and an exact ledger.
//
// The repetitions and cuts are drawn from a seed that each test prints. WEFT_SEED=n draws the same
// again.
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/chaos/network/repeating_transport.h"
#include "weft/tests/rpc/transport/proxied_transport.h"
#include "weft/tests/support/random_test.h"
#include "weft/tests/support/worker_world.h"

namespace at_most_once_test {

using weft::Future;
using weft::MutexLock;
using weft::WorkerOptions;
using weft::chaos::RepeatingTransport;
using weft::testing::ProxiedNetwork;
using weft::testing::ProxiedTransport;
using weft::testing::TcpProxy;
using weft::testing::WorkerWorld;

constexpr int64_t kTimes = 1000;

// How often each call has run, by the number that its caller gave it, and the promises that wait.
struct Ledger {
  weft::Mutex mutex;
  weft::CondVar changed;
  std::map<int64_t, int> runs ABSL_GUARDED_BY(mutex);
  std::map<int64_t, weft::Promise<int64_t>> waiting ABSL_GUARDED_BY(mutex);

  void enter(int64_t id) {
    MutexLock lock(mutex);
    ++runs[id];
    changed.notify_all();
  }
  void clear() {
    MutexLock lock(mutex);
    runs.clear();
    waiting.clear();
  }
  // Checks that each call from 0 to `calls` - 1 ran once, and that nothing else ran.
  void expect_exactly(int64_t calls) {
    MutexLock lock(mutex);
    EXPECT_EQ(runs.size(), static_cast<size_t>(calls));
    for (const auto& [id, count] : runs) EXPECT_EQ(count, 1) << "call " << id;
  }
};
Ledger ledger;

int64_t answer(int64_t id) {
  ledger.enter(id);
  return 3 * id + 1;
}
WEFT_REGISTER_FUNCTION(answer);

std::string answer_text(int64_t id, const std::string& text) {
  ledger.enter(id);
  return text;
}
WEFT_REGISTER_FUNCTION(answer_text);

int64_t relay(const std::string& to, int64_t first, int64_t second) {
  ledger.enter(first);
  return weft::rpc_sync(to, answer, second);
}
WEFT_REGISTER_FUNCTION(relay);

// Runs at once, and is answered when the test says so.
Future<int64_t> answer_when_told(int64_t id) {
  weft::Promise<int64_t> promise;
  Future<int64_t> future = promise.future();
  MutexLock lock(ledger.mutex);
  ++ledger.runs[id];
  ledger.waiting.emplace(id, std::move(promise));
  ledger.changed.notify_all();
  return future;
}
WEFT_REGISTER_FUNCTION(answer_when_told);

class AtMostOnceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    seed_ = weft::random_test_seed();
    std::cout << "WEFT_SEED=" << seed_ << std::endl;
    ledger.clear();
  }

  uint64_t seed_ = 0;
};

// ---- Repetitions

class RepetitionTest : public AtMostOnceTest {
 protected:
  WorkerWorld::Customize repeating() {
    return [this](size_t rank, WorkerOptions& options) {
      options.transport = [this, rank](weft::Clock& clock) {
        return std::make_unique<RepeatingTransport>(clock, seed_ + rank, repeated_);
      };
    };
  }

  std::atomic<uint64_t> repeated_{0};  // calls
};

TEST_F(RepetitionTest, ACallThatArrivesTwiceRunsOnceAndIsAnsweredOnce) {
  {
    WorkerWorld world(2, repeating());
    int64_t id = 0;
    // The last frames of a connection may still wait for their repetition.
    while (repeated_.load() < static_cast<uint64_t>(kTimes)) {
      std::vector<std::pair<int64_t, Future<int64_t>>> answers;
      for (int i = 0; i < 100; ++i, ++id) {
        const size_t from = id % 2;
        answers.emplace_back(
            id, weft::rpc_async(world[from].to(WorkerWorld::name(1 - from)), answer, id));
      }
      for (const auto& [number, reply] : answers) EXPECT_EQ(reply.wait(), 3 * number + 1);
      ASSERT_LT(id, 100 * kTimes) << "hardly anything is repeated";
    }
    world.shutdown_all();
    ledger.expect_exactly(id);
  }
  EXPECT_GE(repeated_.load(), static_cast<uint64_t>(kTimes));
}

TEST_F(RepetitionTest, NestedCallsAndLargeOnesToo) {
  constexpr int64_t kCalls = 200;
  WorkerWorld world(2, repeating());
  std::vector<Future<int64_t>> nested;
  std::vector<Future<std::string>> large;
  const auto text_of = [](int64_t id) {
    return std::string(size_t{100} << 10, static_cast<char>('a' + id % 26));  // on the bulk stream
  };
  for (int64_t i = 0; i < kCalls; ++i) {
    const size_t from = i % 2;
    const weft::Destination to = world[from].to(WorkerWorld::name(1 - from));
    nested.push_back(weft::rpc_async(to, relay, world[from].name(), 3 * i, 3 * i + 1));
    large.push_back(weft::rpc_async(to, answer_text, 3 * i + 2, text_of(i)));
  }
  for (int64_t i = 0; i < kCalls; ++i) {
    EXPECT_EQ(nested[i].wait(), 3 * (3 * i + 1) + 1);
    EXPECT_EQ(large[i].wait(), text_of(i));
  }
  world.shutdown_all();
  ledger.expect_exactly(3 * kCalls);
}

// ---- Cuts between the run and the answer

// One pair of workers whose connection is cut `times` times.
void cut_again_and_again(uint64_t seed, int64_t first, int64_t times) {
  std::mt19937_64 random(seed);
  const auto network = std::make_shared<ProxiedNetwork>();
  WorkerWorld world(2, [&network](size_t, WorkerOptions& options) {
    options.transport = [network](weft::Clock& clock) {
      return std::make_unique<ProxiedTransport>(clock, network);
    };
  });
  for (int64_t id = first; id < first + times; ++id) {
    const size_t from = random() % 2;
    const Future<int64_t> reply =
        weft::rpc_async(world[from].to(WorkerWorld::name(1 - from)), answer_when_told, id);
    weft::Promise<int64_t> promise(nullptr);
    {
      MutexLock lock(ledger.mutex);
      while (!ledger.waiting.contains(id)) ledger.changed.wait(ledger.mutex);
      promise = std::move(ledger.waiting.at(id));
      ledger.waiting.erase(id);
    }
    // It has run. Half of the cuts come before its answer is sent, half during the answer.
    if (random() % 2 == 0) {
      EXPECT_GE(network->cut(random() % 2 == 0 ? TcpProxy::Cut::kReset : TcpProxy::Cut::kClose),
                1u);
    } else {
      network->cut_after(1 + random() % 40);
    }
    promise.set(3 * id + 1);
    const absl::StatusOr<int64_t>& result = reply.result();
    ASSERT_TRUE(result.ok()) << "call " << id << ": " << result.status();
    EXPECT_EQ(*result, 3 * id + 1);
    // The cut has happened, and another connection has carried the answer.
    EXPECT_EQ(network->proxy().cuts(), static_cast<uint64_t>(id - first + 1)) << "call " << id;
  }
  world.shutdown_all();
}

// Several pairs at once, because each waits for its next connection most of the time.
TEST_F(AtMostOnceTest, ACallWhoseConnectionBreaksBeforeItsAnswerRanOnceAndIsAnswered) {
  constexpr int64_t kPairs = 4;
  std::vector<std::thread> pairs;
  for (int64_t pair = 0; pair < kPairs; ++pair) {
    pairs.emplace_back([this, pair] {
      cut_again_and_again(seed_ + static_cast<uint64_t>(pair), pair * kTimes / kPairs,
                          kTimes / kPairs);
    });
  }
  for (std::thread& pair : pairs) pair.join();
  ledger.expect_exactly(kTimes);
}

}  // namespace at_most_once_test
