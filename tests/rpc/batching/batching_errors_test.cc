// Errors of many callers that share one execution: who gets which error, who gives up, and how a
// batcher is destroyed.
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/batching/batching.h"
#include "weft/tests/rpc/batching/batching_fixture.h"

namespace batching_test {

// Gives batches time to begin where they should not. The time is not counted in yields, because on
// a busy machine each yield may take long.
void give_time_for(size_t batches) {
  const auto until = std::chrono::steady_clock::now() + milliseconds(50);
  while (watched.sizes().size() < batches && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
}

TEST_F(Batching, WhatTheFunctionThrowsReachesItsBatchAndNoOther) {
  Numbers twice(run);
  const auto held = watched.hold();
  Future<at::Tensor> first = twice(row(1));
  ASSERT_TRUE(watched.has_begun(1));
  std::vector<Future<at::Tensor>> futures{twice(row(1)), twice(row(-1))};
  held.release();
  EXPECT_TRUE(first.result().ok());
  EXPECT_THAT(codes(futures), ElementsAre(absl::StatusCode::kUnknown, absl::StatusCode::kUnknown));
  EXPECT_THAT(futures[0].result().status().message(), HasSubstr("negative numbers among 2"));
  EXPECT_EQ(weft::ran_of(futures[0].result().status()), weft::Ran::kYes);
  EXPECT_TRUE(twice(row(1)).result().ok());
}

TEST_F(Batching, ErrorsCanBeTracedToTheCallsThatCauseThem) {
  Numbers twice(run, {.isolate_errors = true});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{twice(row(1))};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 0; i < 8; ++i) futures.push_back(twice(row(i == 2 || i == 7 ? -1 : 1)));
  held.release();
  for (size_t i = 0; i < futures.size(); ++i) {
    EXPECT_EQ(futures[i].result().ok(), i != 3 && i != 8) << i;
  }
  EXPECT_THAT(futures[3].result().status().message(), HasSubstr("negative numbers among 1"));
  EXPECT_EQ(twice.stats().batches, 2u);
}

TEST_F(Batching, WhatCannotBeJoinedOrDividedIsNamed) {
  Numbers sum([](at::Tensor x) { return x.sum(0); }, {.name = "sum"});
  const absl::Status status = sum(row(1)).result().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("'sum'"));
  EXPECT_THAT(status.message(), HasSubstr("[2] for 1 calls; its first dimension must be 1"));

  const absl::Status sparse = sum(at::ones({2, 2}).to_sparse()).result().status();
  EXPECT_EQ(sparse.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(sparse.message(), HasSubstr("'sum': a tensor of layout Sparse"));
  EXPECT_EQ(weft::ran_of(sparse), weft::Ran::kNo);

  Numbers rows([](at::Tensor x) { return x; }, {.join = weft::BatchJoin::kConcatenate});
  EXPECT_EQ(rows(at::ones({})).result().status().code(), absl::StatusCode::kInvalidArgument);

  Batcher<int(at::Tensor)> lists([](std::vector<at::Tensor>) { return std::vector<int>(3); });
  EXPECT_THAT(lists(row(1)).result().status().message(), HasSubstr("3 results for 1 calls"));
}

TEST_F(Batching, ACallerThatCancelsIsLeftOut) {
  Numbers batcher(run);
  const Serving serving(*this, batcher);
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{weft::rpc_async("w1", twice, row(1))};
  ASSERT_TRUE(watched.has_begun(1));
  futures.push_back(weft::rpc_async("w1", twice, row(2)));
  Future<at::Tensor> cancelled = weft::rpc_async("w1", twice, row(-3));
  ASSERT_TRUE(waits(batcher, 2));
  cancelled.cancel();
  ASSERT_TRUE(waits(batcher, 1));  // without waiting for a batch
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(2, 4));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 1));
  EXPECT_EQ(batcher.stats().abandoned, 1u);
}

TEST_F(Batching, AFlushIsNotForWhoComesInPlaceOfOneThatGaveUp) {
  Numbers batcher(run, {.max_size = 2, .max_wait = weft::kUntilFull});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{batcher(row(0))};
  batcher.flush();
  ASSERT_TRUE(watched.has_begun(1));
  Future<at::Tensor> cancelled = batcher(row(-1));
  futures.push_back(batcher(row(1)));
  futures.push_back(batcher(row(2)));
  batcher.flush();
  cancelled.cancel();
  ASSERT_TRUE(waits(batcher, 2));
  const Future<at::Tensor> later = batcher(row(3));
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4));
  give_time_for(3);
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 2));
  EXPECT_EQ(batcher.stats().pending, 1u);
  batcher.flush();
  EXPECT_TRUE(later.result().ok());
}

TEST_F(Batching, ACallWhoseDeadlinePassesIsLeftOut) {
  Numbers batcher(run);
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{batcher(row(1))};
  ASSERT_TRUE(watched.has_begun(1));
  weft::CallScope scope = world_.scope(0);
  scope.deadline = std::chrono::steady_clock::now() + milliseconds(1);
  Future<at::Tensor> late;
  {
    weft::CallScopeGuard guard(scope);
    late = batcher(row(-4));
  }
  while (std::chrono::steady_clock::now() < scope.deadline) std::this_thread::yield();
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(2));
  EXPECT_EQ(late.result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(weft::ran_of(late.result().status()), weft::Ran::kNo);
  EXPECT_THAT(watched.sizes(), ElementsAre(1));
  EXPECT_EQ(batcher.stats().abandoned, 1u);
}

TEST_F(Batching, WhoGaveUpDoesNotMakeABatchFull) {
  Numbers batcher(run, {.max_size = 2, .max_wait = weft::kUntilFull});
  const Serving serving(*this, batcher);
  const auto call = [&](double value) { return weft::rpc_async("w1", twice, row(value)); };
  Future<at::Tensor> killed;
  {
    weft::CallScopeGuard scope(world_.scope(2));
    killed = call(-1);
  }
  ASSERT_TRUE(waits(batcher, 1));
  world_.kill(2);
  ASSERT_TRUE(waits(batcher, 0));  // given up though no batch comes

  const Future<at::Tensor> local = batcher(row(-2));
  EXPECT_EQ(batcher.stats().pending, 1u);
  local.cancel();
  ASSERT_TRUE(waits(batcher, 0));

  std::vector<Future<at::Tensor>> futures{call(1)};
  ASSERT_TRUE(waits(batcher, 1));
  EXPECT_TRUE(watched.sizes().empty());
  futures.push_back(call(2));
  EXPECT_THAT(values(futures), ElementsAre(2, 4));
}

weft::Promise<int>* never_kept = nullptr;
Future<int> never() { return never_kept->future(); }
WEFT_REGISTER_FUNCTION(never);

// A server learns of a trainer's death from its own call to that trainer. It then waits for one
// call less.
TEST_F(Batching, WhoLearnsOfADeathFindsTheCallsOfTheDeadGivenUp) {
  weft::Promise<int> kept(nullptr);
  never_kept = &kept;
  Numbers batcher(run, {.max_size = 3, .max_wait = weft::kUntilFull});
  const Serving serving(*this, batcher);
  const auto call = [&](double value) { return weft::rpc_async("w1", twice, row(value)); };
  Future<int> made_there;
  {
    weft::CallScopeGuard scope(world_.scope(1));
    made_there = weft::rpc_async("w2", never);
    made_there.state()->on_complete_inline([&] {
      batcher.set_max_size(2);
      give_time_for(1);
    });
  }
  Future<at::Tensor> of_the_dead;
  {
    weft::CallScopeGuard scope(world_.scope(2));
    of_the_dead = call(-1);
  }
  std::vector<Future<at::Tensor>> futures{call(1)};
  ASSERT_TRUE(waits(batcher, 2));
  world_.kill(2);
  EXPECT_FALSE(made_there.result().ok());
  ASSERT_TRUE(waits(batcher, 1));
  EXPECT_TRUE(watched.sizes().empty());
  futures.push_back(call(2));
  EXPECT_THAT(values(futures), ElementsAre(2, 4));
  kept.set(1);
}

TEST_F(Batching, WhatIsNeverFullEndsWithItsDeadline) {
  // Inside another batch there is a deadline, but no call that could be cancelled.
  Numbers inner(run, {.max_size = 2, .max_wait = weft::kUntilFull});
  Numbers outer([&](at::Tensor x) {
    return inner(x[0]).then([](const Future<at::Tensor>& y) { return y.wait().unsqueeze(0); });
  });
  weft::CallScope scope = world_.scope(0);
  scope.deadline = std::chrono::steady_clock::now() + milliseconds(300);
  weft::CallScopeGuard guard(scope);
  EXPECT_EQ(outer(row(1)).result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(inner.stats().abandoned, 1u);
}

TEST_F(Batching, DeadlinesHoldWhileAllPlacesAreTaken) {
  Numbers batcher(run);
  const auto held = watched.hold();
  const Future<at::Tensor> runs = batcher(row(1));
  ASSERT_TRUE(watched.has_begun(1));
  weft::CallScope scope = world_.scope(0);
  scope.deadline = std::chrono::steady_clock::now() + milliseconds(5);
  weft::CallScopeGuard guard(scope);
  EXPECT_EQ(batcher(row(2)).result().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(batcher.stats().pending, 0u);
}

// The scope of a handler that a call by `remote` runs: it may run on after the call's own time is
// over.
TEST_F(Batching, ACallByRemoteOutlivesTheTimeOfItsCreation) {
  Numbers batcher(run);
  weft::SystemClock clock;
  weft::CallScope scope = world_.scope(0);
  scope.call_context = std::make_shared<weft::CallContext>(clock, world_.id(1), "w1", clock.now());
  ASSERT_TRUE(scope.call_context->cancelled());
  weft::CallScopeGuard guard(scope);
  EXPECT_TRUE(batcher(row(3)).result().ok());
}

TEST_F(Batching, AHandlerMayCancelItsOwnCall) {
  Numbers batcher(run, {.max_wait = weft::kUntilFull});
  weft::SystemClock clock;
  weft::CallScope scope = world_.scope(0);
  scope.call_context = std::make_shared<weft::CallContext>(clock, world_.id(1), "w1", weft::kNever);
  weft::CallScopeGuard guard(scope);
  const Future<at::Tensor> one = batcher(row(1));
  const Future<at::Tensor> other = batcher(row(1));
  one.cancel();
  ASSERT_TRUE(waits(batcher, 1));
  scope.call_context->cancel();
  ASSERT_TRUE(waits(batcher, 0));
  EXPECT_EQ(other.result().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(Batching, MoreThanMayWaitAreRefused) {
  Numbers batcher(run, {.name = "small", .max_size = 2, .max_pending = 2});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{batcher(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 1; i < 4; ++i) futures.push_back(batcher(row(i)));
  EXPECT_EQ(futures.back().result().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(futures.back().result().status().message(), HasSubstr("'small': 2 calls wait"));
  futures.pop_back();
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4));
  EXPECT_EQ(batcher.stats().refused, 1u);
}

TEST_F(Batching, MoreBytesOrShapesThanMayWaitAreRefused) {
  Numbers batcher(run, {.max_pending_bytes = 200, .max_groups = 2});
  const auto held = watched.hold();
  const Future<at::Tensor> runs = batcher(row(0));
  ASSERT_TRUE(watched.has_begun(1));
  const Future<at::Tensor> large = batcher(at::zeros({100}, at::kDouble));  // alone it may
  EXPECT_THAT(batcher(row(0)).result().status().message(), HasSubstr("hold 800 bytes"));
  held.release();
  EXPECT_TRUE(large.result().ok());

  const auto again = watched.hold();
  const Future<at::Tensor> also_runs = batcher(row(0));
  ASSERT_TRUE(watched.has_begun(3));  // it does not wait, nor does its shape
  const auto of_length = [&](int64_t length) { return batcher(at::zeros({length})); };
  const Future<at::Tensor> one = of_length(1), four = of_length(4), five = of_length(5),
                           four_again = of_length(4);
  EXPECT_THAT(std::string(five.result().status().message()), HasSubstr("calls of 2 shapes or"));
  EXPECT_EQ(weft::ran_of(five.result().status()), weft::Ran::kNo);
  four.cancel();
  four_again.cancel();
  ASSERT_TRUE(waits(batcher, 1));
  const Future<at::Tensor> six = of_length(6);  // there is room again, though no batch has finished
  EXPECT_EQ(batcher.stats().pending, 2u);
  again.release();
  EXPECT_TRUE(one.result().ok() && six.result().ok());
}

struct Update {
  std::vector<at::Tensor> gradients;
  std::map<std::string, std::optional<std::vector<float>>> notes;
  int64_t trainer = 0;
  friend auto weft_fields(Update& update) {
    return std::tie(update.gradients, update.notes, update.trainer);
  }
};

TEST_F(Batching, BytesThatWaitAreThoseOfAllThatCallsBring) {
  const auto bytes = [](const auto& value) { return weft::rpc_internal::value_bytes(value); };
  EXPECT_EQ(bytes(int64_t{1}), 0u);
  EXPECT_EQ(bytes(std::tuple(std::string(10, 'x'), std::vector<bool>(5))), 15u);
  EXPECT_EQ(bytes(at::ones({100, 100}).to_sparse()), 10'000u * (2 * 8 + 4));
  EXPECT_EQ(bytes(std::variant<int, std::string>("four")), 4u);
  EXPECT_EQ(bytes(std::make_shared<std::string>("four")), 4u);
  Update update{{at::zeros({25})}, {{"why", std::vector<float>(50)}, {"", std::nullopt}}, 1};
  const size_t all = bytes(update);
  EXPECT_GT(all, 300u);
  EXPECT_LT(all, 500u);

  Batcher<int(Update)> batcher(
      [](const std::vector<Update>& updates) {
        watched.pass(updates.size());
        return std::vector<int>(updates.size());
      },
      {.max_pending_bytes = 2 * all});
  const auto held = watched.hold();
  std::vector<Future<int>> futures{batcher(update)};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 0; i < 2; ++i) futures.push_back(batcher(update));
  EXPECT_EQ(batcher(update).result().status().code(), absl::StatusCode::kResourceExhausted);
  held.release();
  for (auto& future : futures) EXPECT_TRUE(future.result().ok());
}

TEST_F(Batching, AtItsEndWaitingCallsFailAndRunningOnesFinish) {
  auto batcher = std::make_unique<Numbers>(run);
  const auto held = watched.hold();
  const Future<at::Tensor> runs = (*batcher)(row(1));
  ASSERT_TRUE(watched.has_begun(1));
  const Future<at::Tensor> waits = (*batcher)(row(2));
  std::thread ending([&] { batcher.reset(); });
  EXPECT_EQ(waits.result().status().code(), absl::StatusCode::kCancelled);
  held.release();
  ending.join();
  EXPECT_TRUE(runs.result().ok());
}

TEST_F(Batching, EndingInsideWaitsForTheOtherBatches) {
  std::unique_ptr<Numbers> batcher;
  std::atomic<bool> other_ended{false}, ended_first{false};
  batcher = std::make_unique<Numbers>(
      [&](at::Tensor x) {
        if (x[0][0].item<double>() == 1) {
          watched.pass(1);
          other_ended = true;
        } else {
          batcher.reset();
          ended_first = !other_ended;
        }
        return x;
      },
      BatchOptions{.max_size = 1, .max_running = 2});
  const auto held = watched.hold();
  const Future<at::Tensor> other = (*batcher)(row(1));
  ASSERT_TRUE(watched.has_begun(1));
  const Future<at::Tensor> ends = (*batcher)(row(2));
  held.release();
  EXPECT_TRUE(other.result().ok());
  EXPECT_TRUE(ends.result().ok());
  EXPECT_FALSE(ended_first);
}

TEST_F(Batching, AHandlerThatWaitsForItsBatchDoesNotKeepTheWorker) {
  Numbers batcher(run, {.max_wait = weft::kUntilFull});
  absl::Status status;
  const Future<int> handler =
      Future<int>::ready(1).then(&world_.executor(0), [&](const Future<int>&) {
        weft::CallScopeGuard scope(world_.scope(0));
        status = batcher(row(1)).result().status();
        return 1;
      });
  ASSERT_TRUE(waits(batcher, 1));
  world_.end();
  (void)handler.result();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(Batching, TheLastResultMayEndIt) {
  // Only its caller's continuation holds the batcher, as a method call holds its object.
  auto batcher = std::make_shared<Numbers>(run);
  const Future<at::Tensor> result = (*batcher)(row(1));
  const Future<void> ended =
      result.then([batcher](const Future<at::Tensor>&) mutable { batcher.reset(); });
  batcher.reset();
  ended.wait();
}

TEST_F(Batching, ItMayEndInsideItsOwnFunction) {
  std::unique_ptr<Numbers> batcher;
  batcher = std::make_unique<Numbers>([&](at::Tensor x) {
    batcher.reset();
    return x;
  });
  EXPECT_TRUE((*batcher)(row(1)).result().ok());
}

TEST_F(Batching, WhatWaitsWhenItsWorkerEndsIsCancelled) {
  Numbers batcher(run, {.max_size = 1});
  const auto held = watched.hold();
  const Future<at::Tensor> runs = batcher(row(0));
  ASSERT_TRUE(watched.has_begun(1));
  const Future<at::Tensor> waits = batcher(row(1));
  std::thread ending([&] { world_.end(); });
  ASSERT_TRUE(eventually([&] {  // the executor drops its tasks unrun
    auto probe = std::make_shared<std::atomic<bool>>(false);
    world_.executor(0).schedule([probe] { *probe = true; });
    return probe.use_count() == 1 && !*probe;
  }));
  held.release();
  EXPECT_TRUE(runs.result().ok());
  EXPECT_EQ(waits.result().status().code(), absl::StatusCode::kCancelled);
  ending.join();
}

TEST_F(Batching, WhatIsNeverFullEndsWithItsWorker) {
  Numbers batcher(run, {.max_wait = weft::kUntilFull});
  const Future<at::Tensor> waits = batcher(row(1));
  EXPECT_FALSE(waits.done());
  world_.end();
  EXPECT_EQ(waits.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(weft::ran_of(waits.result().status()), weft::Ran::kNo);
}

TEST_F(Batching, ErrorsOfRemoteCallsAreTracedOneAfterTheOther) {
  std::atomic<int> under_way{0}, most{0}, times{0};
  Numbers batcher(
      [&](at::Tensor x) {
        ++times;
        most = std::max(most.load(), ++under_way);
        return weft::rpc_async("w1", half_of_positive, x).then([&](const Future<at::Tensor>& y) {
          --under_way;
          return y.wait();
        });
      },
      {.max_wait = weft::kUntilFull, .isolate_errors = true});
  std::vector<Future<at::Tensor>> futures;
  for (int i = 0; i < 8; ++i) futures.push_back(batcher(row(i == 5 ? -1 : i)));
  batcher.flush();
  for (size_t i = 0; i < futures.size(); ++i) EXPECT_EQ(futures[i].result().ok(), i != 5) << i;
  EXPECT_EQ(most, 1);
  EXPECT_EQ(times, 7);  // 8, 4, 4, 2, 1, 1, 2

  world_.kill(1);
  times = 0;
  futures = {batcher(row(1)), batcher(row(2))};
  batcher.flush();
  EXPECT_THAT(codes(futures),
              ElementsAre(absl::StatusCode::kUnavailable, absl::StatusCode::kUnavailable));
  EXPECT_EQ(times, 1);  // it was not the fault of any one call
}

TEST_F(Batching, AResultThatCannotBeDividedIsNotTriedAgain) {
  std::atomic<int> times{0};
  Numbers batcher(
      [&](at::Tensor x) {
        ++times;
        return x.sum(0);
      },
      {.max_size = 3, .max_wait = weft::kUntilFull, .isolate_errors = true});
  std::vector<Future<at::Tensor>> futures{batcher(row(1)), batcher(row(1)), batcher(row(1))};
  for (auto& future : futures) {
    EXPECT_EQ(future.result().status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(weft::ran_of(future.result().status()), weft::Ran::kYes);
  }
  EXPECT_EQ(times, 1);
}

TEST_F(Batching, AnObjectMayEndWithTheLastResultOfItsMethod) {
  for (int i = 0; i < 20; ++i) {
    weft::CallScopeGuard scope(world_.scope(0));
    const auto result = weft::remote<Doubler>("w1").rpc_async(&Doubler::twice, row(i));
    EXPECT_EQ(result.wait()[0].item<double>(), 2 * i);
  }
}

TEST_F(Batching, OptionsThatContradictThemselvesAreNamed) {
  const auto error = [](BatchOptions options) {
    return std::string(
        weft::testing::error_of([&] { return Numbers(half, std::move(options)); }).message());
  };
  EXPECT_THAT(error({.name = "x", .max_size = 0}), HasSubstr("'x': max_size"));
  EXPECT_THAT(error({.max_running = 0}), HasSubstr("max_running"));
  EXPECT_THAT(error({.max_size = 9, .max_pending = 8}), HasSubstr("max_pending (8)"));
  EXPECT_THAT(error({.max_wait = milliseconds(-1)}), HasSubstr("max_wait"));
  EXPECT_THAT(error({.adaptive = true}), HasSubstr("adaptive"));
  EXPECT_THAT(error({.max_wait = weft::kUntilFull, .latency_goal = milliseconds(1)}),
              HasSubstr("latency_goal"));
}

TEST(BatchingAlone, WithoutAWorkerTheCallFails) {
  Numbers batcher(half);
  EXPECT_EQ(batcher(at::ones({2})).result().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace batching_test
