// A caller that is ten times as fast as its callee. What both of them hold must stay bounded.
#include <algorithm>
#include <atomic>
#include <malloc.h>
#include <optional>
#include <thread>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/eventually.h"
#include "weft/tests/support/worker_world.h"

namespace flood_test {

using weft::Future;
using weft::WorkerOptions;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

constexpr size_t kText = size_t{64} << 10;
constexpr size_t kTensor = size_t{2} << 20;  // sent from its own memory
constexpr size_t kWindow = size_t{8} << 20;  // bound of calls in flight, and of calls queued here

// On a busy machine a slow handler looks like one that stands still, so threads are added.
constexpr size_t kThreads = 4;

// Bytes that this process has from malloc. It is 0 under sanitizers, which have their own
// allocator.
size_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// True while the flood of this test has not met any bound yet.
std::atomic<bool> rising{false};

// Takes ten times as long as the caller usually needs for a call. On a busy machine the caller may
// be as slow, so no call ends before the first one was refused. It computes all the time, so that
// the executor does not add threads.
void compute_for(std::chrono::microseconds time) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto begin = now();
  while (now() < begin + time || (rising.load() && now() < begin + std::chrono::seconds(20))) {
  }
}
int64_t slow_size(const std::string& text) {
  compute_for(std::chrono::microseconds(500));
  return static_cast<int64_t>(text.size());
}
WEFT_REGISTER_FUNCTION(slow_size);
int64_t slow_numel(const at::Tensor& tensor) {
  compute_for(std::chrono::milliseconds(5));
  return tensor.numel();
}
WEFT_REGISTER_FUNCTION(slow_numel);

// Calls run one at a time and slower than they come, so they gather at the object.
class Desk {
 public:
  int64_t size(const std::string& text) { return slow_size(text); }
};
WEFT_REGISTER_CLASS(Desk, weft::constructor<>(), &Desk::size, weft::serial);

// Its method waits for another call to give the news.
std::optional<weft::Promise<int64_t>> news;
void give_news(int64_t value) { news->set(value); }
WEFT_REGISTER_FUNCTION(give_news);
class Reader {
 public:
  int64_t wait_for_news() {
    waits = true;
    return news->future().wait();
  }
  int64_t size(const std::string& text) { return static_cast<int64_t>(text.size()); }

  static inline std::atomic<bool> waits{false};
};
WEFT_REGISTER_CLASS(Reader, weft::constructor<>(), &Reader::wait_for_news, &Reader::size,
                    weft::serial);

// Calls to it may overtake each other. A later call finds this one inside.
Future<int64_t> begin_reading(const weft::RRef<Reader>& reader) {
  Reader::waits = false;
  Future<int64_t> reading = reader.rpc_async(&Reader::wait_for_news);
  EXPECT_TRUE(weft::testing::eventually([] { return Reader::waits.load(); }));
  return reading;
}

class FloodTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  static void narrow(size_t, WorkerOptions& options) {
    options.threads = 1;
    options.max_threads = kThreads;
    options.byte_credits = kWindow;
    options.max_queued_bytes = kWindow;
    options.default_timeout = absl::InfiniteDuration();
  }

  // Makes so many calls that 10 times the bound would pile up. Returns how many were refused.
  template <class Make>
  size_t flood(size_t bytes_per_call, Make make) {
    constexpr size_t kBound = 2 * kWindow;
    const size_t before = allocated();
    size_t peak = before, refused = 0;
    std::vector<Future<int64_t>> taken;
    rising = true;
    for (size_t sent = 0; sent < 10 * kBound; sent += bytes_per_call) {
      Future<int64_t> call = make();
      if (call.done() && call.result().status().code() == absl::StatusCode::kResourceExhausted) {
        EXPECT_EQ(weft::ran_of(call.result().status()), weft::Ran::kNo);
        ++refused;
        rising = false;
      } else {
        taken.push_back(std::move(call));
      }
      peak = std::max(peak, allocated());
      const weft::AgentInfo caller = world_[0].debug_info().agent;
      EXPECT_LE(caller.queued_calls * bytes_per_call, kWindow);
      // Posts need no credit. Each reference that this worker drops is one, of about 100 bytes.
      EXPECT_LE(caller.retained_bytes, 2 * kWindow + 1024 * (taken.size() + 1));
      const weft::AgentInfo callee = world_[1].debug_info().agent;
      // Calls that were not taken yet, and calls that wait there for their object.
      EXPECT_LE(callee.running_calls * bytes_per_call, 2 * kWindow + kThreads * bytes_per_call);
      if (::testing::Test::HasFailure()) break;
    }
    rising = false;
    for (Future<int64_t>& call : taken) {
      const absl::Status status = call.result().status();
      if (status.ok()) continue;  // else the callee had no thread left
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      EXPECT_EQ(weft::ran_of(status), weft::Ran::kNo);
    }
    // Calls that wait here, bytes in flight on the caller's side, on the wire, and at the callee.
    EXPECT_LE(peak - std::min(peak, before), 6 * kWindow);
    EXPECT_GT(refused, 0u) << "it was no flood";
    return refused;
  }

  WorkerWorld world_{2, WorkerWorld::over(GetParam(), narrow)};
};
INSTANTIATE_TEST_SUITE_P(Transports, FloodTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

TEST_P(FloodTest, OfTextsIsRefusedByTypeAndHoldsNoMoreThanItsBounds) {
  const std::string text(kText, 'x');
  flood(kText, [&] { return weft::rpc_async(world_[0].to("worker1"), slow_size, text); });
  world_.shutdown_all();
}

TEST_P(FloodTest, OfTensorsIsRefusedByTypeAndHoldsNoMoreThanItsBounds) {
  flood(kTensor, [&] {
    return weft::rpc_async(world_[0].to("worker1"), slow_numel,
                           at::full({kTensor / 4}, 1, at::dtype(at::kFloat)));
  });
  world_.shutdown_all();
}

TEST_P(FloodTest, OfOneSerialObjectHoldsNoMoreThanItsBounds) {
  const weft::RRef<Desk> desk = weft::remote<Desk>(world_[0].to("worker1"));
  const std::string text(kText, 'x');
  flood(kText, [&] { return desk.rpc_async(&Desk::size, text); });
  world_.shutdown_all();
}

TEST_P(FloodTest, OfRemoteCallsHoldsNoMoreThanItsBounds) {
  const std::string text(kText, 'x');
  const weft::Destination to = world_[0].to("worker1");
  flood(kText, [&] {
    const weft::RRef<int64_t> made = weft::remote(to, slow_size, text);
    const Future<void> creation = made.creation();
    if (creation.done() && !creation.result().ok()) {  // at once: nothing was sent
      return Future<int64_t>::ready(creation.result().status());
    }
    return creation.then([](const Future<void>& accepted) {
      (void)accepted.result();
      return int64_t{1};
    });
  });
  world_.shutdown_all();
}

// Calls that wait at an object hold no credit that the object's own call needs.
TEST_P(FloodTest, CallsThatWaitForAnObjectDoNotHoldUpWhatTheObjectWaitsFor) {
  news.emplace(nullptr);
  const weft::Destination to = world_[0].to("worker1");
  const weft::RRef<Reader> reader = weft::remote<Reader>(to);
  const Future<int64_t> reading = begin_reading(reader);
  // A window of them waits at the object. The others hold credit.
  std::vector<Future<int64_t>> parked;
  const std::string text(kText, 'x');
  for (size_t bytes = 0; bytes < kWindow + kWindow / 2; bytes += kText) {
    parked.push_back(reader.rpc_async(&Reader::size, text));
  }
  EXPECT_TRUE(weft::testing::eventually(
      [&] { return world_[1].debug_info().agent.running_calls == parked.size() + 1; }));
  weft::rpc_sync(world_[0].to("worker1", {.timeout = std::chrono::seconds(20)}), give_news, 7);
  EXPECT_EQ(reading.wait(), 7);
  for (const Future<int64_t>& call : parked) EXPECT_GT(call.wait(), 0);
  world_.shutdown_all();
}

TEST_P(FloodTest, ACallThatWaitsForAnObjectLeavesItsQueueWhenItsCallerDoesNotWaitAnyMore) {
  news.emplace(nullptr);
  const weft::Destination to = world_[0].to("worker1");
  const weft::RRef<Reader> reader = weft::remote<Reader>(to);
  const Future<int64_t> reading = begin_reading(reader);
  Future<int64_t> parked = reader.rpc_async(&Reader::size, std::string(kText, 'x'));
  const auto at_work = [&](size_t calls) {
    return weft::testing::eventually(
        [&] { return world_[1].debug_info().agent.running_calls == calls; });
  };
  EXPECT_TRUE(at_work(2));
  parked.cancel();
  EXPECT_TRUE(at_work(1)) << "it waits for the object, though for nobody";
  weft::rpc_sync(to, give_news, 7);
  EXPECT_EQ(reading.wait(), 7);
  world_.shutdown_all();
}

TEST_P(FloodTest, RpcSyncWaitsForItsTurnWhereRpcAsyncIsRefused) {
  const std::string text(kText, 'x');
  std::vector<Future<int64_t>> taken;
  while (true) {
    Future<int64_t> call = weft::rpc_async(world_[0].to("worker1"), slow_size, text);
    if (call.done() && !call.result().ok()) break;  // full
    taken.push_back(std::move(call));
  }
  std::vector<std::thread> callers;
  std::atomic<size_t> answered{0};
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int k = 0; k < 8; ++k) {
        answered += weft::rpc_sync(world_[0].to("worker1"), slow_size, text) == kText;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 32u);
  for (Future<int64_t>& call : taken) EXPECT_TRUE(call.result().ok()) << call.result().status();
  world_.shutdown_all();
}

TEST_P(FloodTest, RpcSyncWaitsNoLongerThanItsDeadline) {
  const at::Tensor tensor = at::full({kTensor / 4}, 1, at::dtype(at::kFloat));
  std::vector<Future<int64_t>> taken;
  while (true) {
    Future<int64_t> call = weft::rpc_async(world_[0].to("worker1"), slow_numel, tensor);
    if (call.done() && !call.result().ok()) break;  // full
    taken.push_back(std::move(call));
  }
  try {
    weft::rpc_sync(world_[0].to("worker1", {.timeout = std::chrono::milliseconds(1)}), slow_numel,
                   tensor);
    ADD_FAILURE() << "seven calls of 5 ms were answered before its own";
  } catch (const weft::RpcError& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded) << error.what();
    EXPECT_EQ(error.ran(), weft::Ran::kNo);
  }
  for (Future<int64_t>& call : taken) (void)call.result();
  world_.shutdown_all();
}

}  // namespace flood_test
