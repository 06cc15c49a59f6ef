#include "weft/async/future.h"

#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;
using MoveOnly = std::unique_ptr<int>;

absl::StatusCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const RpcError& error) {
    return error.status().code();
  }
  return absl::StatusCode::kOk;
}

TEST(FutureTest, CompletesOnce) {
  Promise<int> promise;
  Future<int> future = promise.future();
  EXPECT_FALSE(future.done());
  EXPECT_FALSE(future.wait_for(std::chrono::nanoseconds(1)));
  EXPECT_TRUE(promise.set(1));
  EXPECT_FALSE(promise.set(2));
  EXPECT_FALSE(promise.set_error(absl::InternalError("late")));
  future.cancel();
  EXPECT_EQ(future.wait(), 1);
}

TEST(FutureTest, OneOfManyRacingCompletionsWins) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise;
    Future<int> future = promise.future();
    std::atomic<int> won{0};
    std::atomic<int> winner{0};
    std::vector<std::thread> threads;
    for (int i = 1; i <= 3; ++i) {
      threads.emplace_back([&, i] {
        if (promise.set(i)) {
          ++won;
          winner = i;
        }
      });
    }
    EXPECT_GT(future.wait(), 0);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    EXPECT_EQ(future.wait(), winner.load());
  }
}

TEST(FutureTest, ADroppedPromiseIsCancelledAndMayHaveRun) {
  Future<int> future;
  EXPECT_FALSE(future.valid());
  {
    Promise<int> promise;
    future = promise.future();
    Promise<int> moved = std::move(promise);  // one promise, one drop
    EXPECT_FALSE(future.done());
  }
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ran_of(future.result().status()), Ran::kMaybe);
  EXPECT_EQ(code_of([&] { future.wait(); }), absl::StatusCode::kCancelled);
}

TEST(FutureTest, AnAssignedOverPromiseIsDropped) {
  Promise<int> promise;
  Future<int> first = promise.future();
  promise = Promise<int>();
  EXPECT_EQ(first.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(promise.set(1));
}

TEST(FutureTest, ContinuationsAreScheduledNeverInline) {
  ManualExecutor executor;
  Promise<int> promise(&executor);
  std::vector<int> seen;
  Future<void> before =
      promise.future().then([&](const Future<int>& value) { seen.push_back(value.wait()); });
  promise.set(1);
  EXPECT_TRUE(seen.empty());  // not inside the completing call
  Future<void> after =
      promise.future().then([&](const Future<int>& value) { seen.push_back(10 + value.wait()); });
  EXPECT_TRUE(seen.empty());  // not inside then
  EXPECT_EQ(executor.run_all(), 2u);
  EXPECT_EQ(seen, (std::vector<int>{1, 11}));
  before.wait();
  after.wait();
}

TEST(FutureTest, AContinuationRunsOnTheExecutorItNames) {
  ManualExecutor own, other;
  Promise<int> promise(&own);
  Executor* ran_on = nullptr;
  Future<void> done =
      promise.future().then(&other, [&](const Future<int>&) { ran_on = Executor::current(); });
  promise.set(1);
  EXPECT_EQ(own.run_all(), 0u);
  EXPECT_EQ(other.run_all(), 1u);
  EXPECT_EQ(ran_on, &other);
}

TEST(FutureTest, WithoutAnyExecutorThenIsAnErrorNotAnInlineCall) {
  Promise<int> promise(nullptr);
  bool ran = false;
  Future<void> future = promise.future().then([&](const Future<int>&) { ran = true; });
  promise.set(1);
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(ran);
}

TEST(FutureTest, ThenPassesOnValuesFuturesStatusesAndExceptions) {
  ManualExecutor executor;
  Promise<int> promise(&executor);
  Promise<std::string> inner(&executor);
  const Future<int> future = promise.future();
  Future<int> value = future.then([](const Future<int>& f) { return f.wait() + 1; });
  Future<std::string> nested = future.then([&](const Future<int>&) { return inner.future(); });
  Future<int> status = future.then(
      [](const Future<int>&) -> absl::StatusOr<int> { return absl::OutOfRangeError("far"); });
  Future<int> thrown =
      future.then([](const Future<int>&) -> int { throw std::runtime_error("went wrong"); });
  Future<int> rpc_error = future.then([](const Future<int>&) -> int {
    throw RpcError(with_ran(absl::NotFoundError("gone"), Ran::kNo));
  });
  Future<int> odd = future.then([](const Future<int>&) -> int { throw 5; });
  Future<int> empty = future.then([](const Future<int>&) { return Future<int>(); });
  promise.set(1);
  EXPECT_EQ(executor.run_all(), 7u);
  EXPECT_EQ(value.wait(), 2);
  EXPECT_FALSE(nested.done());
  inner.set("inside");
  EXPECT_EQ(nested.wait(), "inside");
  EXPECT_EQ(status.result().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(thrown.result().status().code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(thrown.result().status().message()),
              HasSubstr("std::runtime_error: went wrong"));
  EXPECT_EQ(rpc_error.result().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ran_of(rpc_error.result().status()), Ran::kNo);
  EXPECT_THAT(std::string(odd.result().status().message()), HasSubstr("int"));
  EXPECT_EQ(empty.result().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FutureTest, AnErrorReachesTheContinuationAndWhatItThrowsOn) {
  ManualExecutor executor;
  Promise<int> promise(&executor);
  Future<int> next = promise.future().then([](const Future<int>& f) { return f.wait(); });
  promise.set_error(absl::DataLossError("x"));
  executor.run_all();
  EXPECT_EQ(next.result().status().code(), absl::StatusCode::kDataLoss);
}

// The text has the form of LibTorch's what(), because this room does not know LibTorch's types.
TEST(FutureTest, TheStackThatLibTorchAppendsToAnErrorIsNotPassedOn) {
  ManualExecutor executor;
  Promise<int> promise(&executor);
  const Future<int> next = promise.future().then([](const Future<int>&) -> int {
    throw std::runtime_error(
        "sizes 2 and 3\ndo not fit\nException raised from f at a.cc:7 (most recent call "
        "first):\nframe #0: g() + 0x1 (0x7f in libc10.so)\n");
  });
  promise.set(1);
  executor.run_all();
  EXPECT_EQ(next.result().status().message(), "std::runtime_error: sizes 2 and 3\ndo not fit");
}

TEST(FutureTest, AMoveOnlyValueIsMovedOutByItsSoleReader) {
  Promise<MoveOnly> promise;
  Future<MoveOnly> future = promise.future();
  promise.set(std::make_unique<int>(7));
  const MoveOnly value = std::move(future).wait();
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(*value, 7);
}

TEST(FutureTest, AMoveOnlyValueThatOthersReadStaysWhole) {
  Promise<MoveOnly> promise;
  Future<MoveOnly> future = promise.future();
  const Future<MoveOnly> other = future;
  promise.set(std::make_unique<int>(7));
  EXPECT_EQ(code_of([&] { (void)std::move(future).wait(); }),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*other.wait(), 7);
}

TEST(FutureTest, AMoveOnlyValueIsMovedOutOnce) {
  Promise<MoveOnly> promise;
  promise.set(std::make_unique<int>(7));
  EXPECT_EQ(*promise.future().wait(), 7);
  EXPECT_EQ(code_of([&] { (void)promise.future().wait(); }), absl::StatusCode::kFailedPrecondition);
}

TEST(FutureTest, AMovedOutValueIsGoneForEveryReader) {
  Promise<MoveOnly> promise;
  promise.set(std::make_unique<int>(7));
  Future<MoveOnly> future = promise.future();
  EXPECT_EQ(*std::move(future).wait(), 7);
  EXPECT_EQ(code_of([&] { (void)future.wait(); }), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] { (void)std::move(future).wait(); }),
            absl::StatusCode::kFailedPrecondition);
  const Future<MoveOnly> later = promise.future();
  EXPECT_EQ(later.result().status().code(), absl::StatusCode::kFailedPrecondition);

  auto text = Future<std::string>::ready("moved");
  EXPECT_EQ(std::move(text).wait(), "moved");
  EXPECT_EQ(code_of([&] { (void)text.wait(); }), absl::StatusCode::kFailedPrecondition);
}

// A reader sees the whole value or none, whichever of the two threads comes first.
TEST(FutureTest, AReaderThatComesWhileTheValueIsMovedOutSeesAllOfItOrNothing) {
  for (int round = 0; round < 500; ++round) {
    const Promise<MoveOnly> promise;
    Future<MoveOnly> future = promise.future();
    promise.set(std::make_unique<int>(round));
    std::thread taking(
        [&] { (void)code_of([&] { EXPECT_EQ(*std::move(future).wait(), round); }); });
    const Future<MoveOnly> other = promise.future();
    const absl::StatusCode read = code_of([&] {
      const MoveOnly& value = other.wait();
      ASSERT_NE(value, nullptr);
      EXPECT_EQ(*value, round);
    });
    taking.join();
    EXPECT_THAT(read,
                ::testing::AnyOf(absl::StatusCode::kOk, absl::StatusCode::kFailedPrecondition));
  }
}

TEST(FutureTest, AContinuationDoesNotTakeAMoveOnlyValueFromOtherReadersOfTheFutureThatItGives) {
  ManualExecutor executor;
  Promise<MoveOnly> promise;
  const Future<MoveOnly> inner = promise.future();
  const auto give = [inner](const Future<void>&) { return inner; };
  Future<MoveOnly> before = Future<void>::ready(Unit{}).then(&executor, give);
  executor.run_all();
  promise.set(std::make_unique<int>(7));
  Future<MoveOnly> after = Future<void>::ready(Unit{}).then(&executor, give);
  executor.run_all();
  EXPECT_EQ(before.result().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(after.result().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*inner.wait(), 7);
}

TEST(FutureTest, AContinuationMayGiveAFutureThatOnlyItHolds) {
  ManualExecutor executor;
  Promise<MoveOnly> promise;
  promise.set(std::make_unique<int>(7));
  Future<MoveOnly> given = Future<void>::ready(Unit{}).then(
      &executor, [inner = promise.future()](const Future<void>&) { return inner; });
  executor.run_all();
  EXPECT_EQ(*std::move(given).wait(), 7);
}

// The completing thread may still hold its promise when the waiter wakes up.
TEST(FutureTest, TheCompletingThreadIsNoReader) {
  for (int round = 0; round < 500; ++round) {
    auto promise = std::make_unique<Promise<MoveOnly>>();
    Future<MoveOnly> future = promise->future();
    std::thread completing(
        [promise = std::move(promise), round] { promise->set(std::make_unique<int>(round)); });
    EXPECT_EQ(code_of([&] { EXPECT_EQ(*std::move(future).wait(), round); }), absl::StatusCode::kOk);
    completing.join();
  }
}

TEST(FutureTest, ACopyableValueIsCopiedWhileThePromiseMayGiveMoreFutures) {
  Promise<std::string> promise;
  promise.set("kept");
  EXPECT_EQ(promise.future().wait(), "kept");
  EXPECT_EQ(promise.future().wait(), "kept");
}

TEST(FutureTest, CancelCompletesAtOnceThenTellsTheWorker) {
  Promise<int> promise;
  const Future<int> future = promise.future();
  bool done_in_hook = false;
  int told = 0;
  future.state()->set_on_cancel([&] {
    ++told;
    done_in_hook = future.done();
  });
  future.cancel();
  future.cancel();
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(done_in_hook);
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ran_of(future.result().status()), Ran::kMaybe);
  EXPECT_FALSE(promise.set(1));
}

TEST(FutureTest, ACompleteFutureDropsItsCancelHook) {
  const auto owned = std::make_shared<int>(1);
  Promise<int> promise;
  promise.state()->set_on_cancel([owned] { FAIL() << "it was complete"; });
  promise.set(1);
  EXPECT_EQ(owned.use_count(), 1);
  promise.state()->set_on_cancel([owned] { FAIL() << "it was complete"; });
  EXPECT_EQ(owned.use_count(), 1);
  promise.future().cancel();
}

struct CountingListener final : async_internal::CompletionListener {
  void completed() override { ++completions; }
  int completions = 0;
};

TEST(FutureTest, AListenerIsToldOfTheCompletionOnce) {
  Promise<int> promise;
  CountingListener listener, second;
  EXPECT_TRUE(promise.state()->listen(&listener));
  EXPECT_FALSE(promise.state()->listen(&second)) << "there is one already";
  promise.set(1);
  EXPECT_EQ(listener.completions, 1);
  EXPECT_EQ(second.completions, 0);
  EXPECT_FALSE(promise.state()->listen(&second)) << "it is complete";
}

TEST(FutureTest, AListenerThatIsForgottenIsNotTold) {
  Promise<int> promise;
  CountingListener listener;
  EXPECT_TRUE(promise.state()->listen(&listener));
  promise.state()->forget_listener();
  promise.set(1);
  EXPECT_EQ(listener.completions, 0);
}

TEST(FutureTest, CollectAllKeepsTheOrderAndWaitsForTheLast) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  Future<std::vector<int>> all = collect_all(futures);
  promises[2].set(3);
  promises[0].set(1);
  EXPECT_FALSE(all.done());
  promises[1].set(2);
  EXPECT_EQ(all.wait(), (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(collect_all(std::vector<Future<int>>()).wait().empty());
}

TEST(FutureTest, CollectAllGivesTheFirstErrorAfterTheLastIsComplete) {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  Future<std::vector<int>> all = collect_all(futures);
  promises[2].set_error(absl::InternalError("third"));
  promises[1].set_error(absl::AbortedError("second"));
  EXPECT_FALSE(all.done());
  promises[0].set(1);
  EXPECT_EQ(all.result().status().code(), absl::StatusCode::kAborted);
}

TEST(FutureTest, WaitAllThrowsTheFirstErrorAfterAllAreComplete) {
  Promise<int> slow;
  std::vector<Future<int>> futures = {Future<int>::ready(absl::AbortedError("first")),
                                      Future<int>::ready(absl::InternalError("second")),
                                      slow.future()};
  std::atomic<bool> completed{false};
  std::thread completing([&] {
    completed = true;
    slow.set(1);
  });
  EXPECT_EQ(code_of([&] { wait_all(futures); }), absl::StatusCode::kAborted);
  EXPECT_TRUE(completed);
  completing.join();
}

TEST(FutureTest, TheConsumeHookRunsOnEachReadingThreadBeforeItReads) {
  Promise<int> promise;
  const Future<int> future = promise.future();
  Mutex mutex;
  std::vector<std::thread::id> readers;
  future.state()->set_on_consume(std::make_shared<const std::function<void()>>([&] {
    MutexLock lock(mutex);
    readers.push_back(std::this_thread::get_id());
  }));
  std::thread::id other;
  std::thread reading([&] {
    other = std::this_thread::get_id();
    future.wait();
  });
  promise.set(1);
  reading.join();
  future.wait();
  EXPECT_EQ(readers, (std::vector<std::thread::id>{other, std::this_thread::get_id()}));
}

TEST(FutureTest, ContinuationsCarryTheScopeOfWhoMadeThem) {
  struct Carrier : ScopeCarrier {
    int carried = 0;
    Task carry(Task task) override {
      ++carried;
      return task;
    }
  } carrier;
  ScopeCarrier* const before = ScopeCarrier::installed();
  ScopeCarrier::install(&carrier);
  ManualExecutor executor;
  Promise<int> promise(&executor);
  Future<void> future = promise.future().then([](const Future<int>&) {});
  ScopeCarrier::install(before);
  EXPECT_EQ(carrier.carried, 1);
}

}  // namespace
}  // namespace weft
