// Workers for which the system has no more threads, over every transport.
//
// worker_process_test has the case with the system's own limit.
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/thread.h"
#include "weft/rpc/batching/batching.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/store/rendezvous.h"
#include "weft/tests/support/worker_world.h"
#include "weft/tests/worker/nested_calls.h"

namespace thread_limit_test {

using nested_calls::executed;
using nested_calls::nest;
using ::testing::HasSubstr;
using weft::Ran;
using weft::RpcError;
using weft::ThreadLimit;
using weft::Worker;
using weft::WorkerOptions;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

class ThreadLimitTest : public nested_calls::OverTransports {
 protected:
  static WorkerWorld::Customize with_one_thread() {
    return over_transport([](size_t, WorkerOptions& options) { options.threads = 1; });
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, ThreadLimitTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

int64_t twice(int64_t value) { return 2 * value; }
WEFT_REGISTER_FUNCTION(twice);

std::optional<weft::Promise<void>> door;
std::atomic<bool> at_the_door{false};
class Booth {
 public:
  void hold() {
    at_the_door = true;
    at_the_door.notify_all();
    door->future().wait();
  }
  void pass() { executed.fetch_add(1); }
};
WEFT_REGISTER_CLASS(Booth, weft::constructor<>(), &Booth::hold, &Booth::pass, weft::serial);

std::optional<weft::Batcher<at::Tensor(at::Tensor)>> batcher;
int64_t batched(int64_t value) {
  return (*batcher)(at::full({1}, value, at::kLong)).wait().item<int64_t>();
}
WEFT_REGISTER_FUNCTION(batched);

TEST_P(ThreadLimitTest, JoinNamesTheThreadThatTheSystemRefuses) {
  for (int more = 0; more < 20; ++more) {
    WorkerWorld world(0);
    WorkerOptions options = world.options_of(0, 1);
    WorkerWorld::over(GetParam())(0, options);
    std::optional<Worker> worker;
    try {
      const ThreadLimit limit(more);
      worker.emplace(Worker::join(options));
    } catch (const RpcError& refused) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused.what();
      EXPECT_EQ(refused.ran(), Ran::kNo);
      EXPECT_EQ(refused.worker(), "worker0");
      EXPECT_THAT(refused.what(), HasSubstr("no thread can be started for "));
      continue;
    }
    EXPECT_GE(more, 4) << "clock, end, handlers and store have a thread each";
    EXPECT_EQ(weft::rpc_sync(worker->to("worker0"), twice, 21), 42);
    worker->shutdown();
    return;
  }
  FAIL() << "it never joined";
}

TEST_P(ThreadLimitTest, AWorkerWithTheThreadsOfItsJoinAnswersAndEnds) {
  WorkerWorld world(2, with_one_thread());
  EXPECT_EQ(weft::rpc_sync(world[0].to("worker1"), twice, 1), 2);
  const ThreadLimit none(0);
  std::vector<weft::Future<int64_t>> calls;
  for (int64_t i = 0; i < 200; ++i) {
    calls.push_back(weft::rpc_async(world[i % 2].to(world.name(1 - i % 2)), twice, i));
  }
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(calls[i].wait(), 2 * i);
  world.shutdown_all();
}

// Each level of the call chain holds a thread. When none is left, the deepest call is refused, and
// all levels above it fail.
TEST_P(ThreadLimitTest, ANestedCallForWhichNoThreadIsLeftIsRefusedNotExecuted) {
  WorkerWorld world(2, with_one_thread());
  EXPECT_EQ(weft::rpc_sync(world[0].to("worker1"), twice, 1), 2);
  EXPECT_EQ(weft::rpc_sync(world[1].to("worker0"), twice, 1), 2);
  constexpr int64_t kDepth = 64;
  const auto chain = [&] {
    return weft::rpc_sync(world[0].to("worker1"), nest, world.name(1), world.name(0), kDepth);
  };
  executed = 0;
  {
    const ThreadLimit none(0);
    try {
      chain();
      FAIL() << "64 handlers waited on a few threads";
    } catch (const RpcError& refused) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused.what();
      EXPECT_THAT(refused.what(),
                  HasSubstr(absl::StrCat("called at depth ", executed.load(), " of ")));
    }
    EXPECT_GT(none.refused(), 0);
    EXPECT_EQ(weft::rpc_sync(world[0].to("worker1"), twice, 3), 6) << "the threads are free again";
  }
  executed = 0;
  EXPECT_EQ(chain(), kDepth);
  EXPECT_EQ(executed, kDepth + 1);
  world.shutdown_all();
}

TEST_P(ThreadLimitTest, SoIsACallOfAWorkerToItself) {
  WorkerWorld world(1, with_one_thread());
  const ThreadLimit none(0);
  executed = 0;
  try {
    weft::rpc_sync(world[0].to("worker0"), nest, world.name(0), world.name(0), 8);
    FAIL() << "8 handlers waited on one thread";
  } catch (const RpcError& refused) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused.what();
    EXPECT_THAT(refused.what(), HasSubstr("called at depth 1 of "));
  }
  EXPECT_EQ(executed, 1);
  world.shutdown_all();
}

// A `remote` is accepted before its function runs, so the reference learns of the refusal.
TEST_P(ThreadLimitTest, AnObjectForWhichNoThreadIsLeftIsRefusedToItsReference) {
  WorkerWorld world(1, with_one_thread());
  const ThreadLimit none(0);
  std::atomic<bool> waits{false};
  weft::Promise<void> release;
  Worker& worker = world[0];
  worker.runtime()->executor().schedule([&waits, go = release.future()] {
    waits = true;
    waits.notify_all();
    go.wait();
  });
  waits.wait(false);
  auto reference = weft::remote(worker.to("worker0"), twice, int64_t{1});
  const auto value = reference.to_here_async();
  EXPECT_EQ(value.result().status().code(), absl::StatusCode::kResourceExhausted)
      << value.result().status();
  EXPECT_EQ(weft::ran_of(value.result().status()), Ran::kNo);
  release.set_value();
  world.shutdown_all();
}

// These calls wait at the object, not in the executor. When the call inside the object ends, its
// thread takes a waiting task, as the other thread did before.
TEST_P(ThreadLimitTest, CallsThatWaitAtASerialObjectAreRefusedOnceNoThreadIsLeft) {
  WorkerWorld world(1, WorkerWorld::over(GetParam(), [](size_t, WorkerOptions& options) {
                      options.threads = options.max_threads = 2;
                    }));
  Worker& worker = world[0];
  weft::Executor& executor = worker.runtime()->executor();
  const weft::RRef<Booth> booth = weft::remote<Booth>(worker.to("worker0"));
  booth.rpc_sync(&Booth::pass);
  door.emplace();
  at_the_door = false;
  executed = 0;
  const weft::Future<void> inside = booth.rpc_async(&Booth::hold);
  at_the_door.wait(false);
  std::vector<weft::Future<void>> behind;
  for (int i = 0; i < 3; ++i) {
    behind.push_back(booth.with({.timeout = std::chrono::seconds(20)}).rpc_async(&Booth::pass));
  }
  // This call comes after the others. So the second thread has brought all of them to the object.
  EXPECT_EQ(weft::rpc_sync(worker.to("worker0"), twice, 1), 2);
  weft::Promise<void> release;
  std::atomic<bool> second_waits{false};
  executor.schedule([&second_waits, go = release.future()] {
    second_waits = true;
    second_waits.notify_all();
    go.wait();
  });
  second_waits.wait(false);
  executor.schedule([go = release.future()] { go.wait(); });
  door->set_value();
  EXPECT_TRUE(inside.result().ok());
  for (const weft::Future<void>& call : behind) {
    const absl::Status status = call.result().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  }
  EXPECT_EQ(executed, 0);
  release.set_value();
  weft::Promise<void> thread_is_free;
  executor.schedule([&thread_is_free] { thread_is_free.set_value(); });
  thread_is_free.future().wait();
  booth.rpc_sync(&Booth::pass);
  EXPECT_EQ(executed, 1) << "the object is free again";
  world.shutdown_all();
}

// The handler that waits for the batch holds the only thread.
TEST_P(ThreadLimitTest, ABatchForWhichNoThreadIsLeftIsRefused) {
  WorkerWorld world(1, with_one_thread());
  executed = 0;
  batcher.emplace([](const at::Tensor& values) {
    executed.fetch_add(values.size(0));
    return values * 2;
  });
  {
    const ThreadLimit none(0);
    try {
      weft::rpc_sync(world[0].to("worker0"), batched, 4);
      FAIL() << "a handler and the batch that it waited for ran on one thread";
    } catch (const RpcError& refused) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused.what();
      EXPECT_THAT(refused.what(), HasSubstr("no thread is left for a batch of 1 calls"));
    }
  }
  EXPECT_EQ(executed, 0);
  EXPECT_EQ(weft::rpc_sync(world[0].to("worker0"), batched, 4), 8);
  EXPECT_EQ(executed, 1);
  world.shutdown_all();
  batcher.reset();
}

TEST(ThreadLimitAtTheStore, OpeningItSaysThatNoThreadIsLeft) {
  const ThreadLimit none(0);
  const auto hosted = weft::host_rendezvous_store({.host = "127.0.0.1", .port = 0});
  EXPECT_EQ(hosted.status().code(), absl::StatusCode::kResourceExhausted) << hosted.status();
  EXPECT_THAT(std::string(hosted.status().message()), HasSubstr("rendezvous store at 127.0.0.1"));
}

}  // namespace thread_limit_test
