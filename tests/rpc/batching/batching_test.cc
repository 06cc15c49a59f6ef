// Many callers share one execution: which calls are joined, and when.
#include "weft/rpc/batching/batching.h"

#include <deque>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/batching/batching_fixture.h"

namespace batching_test {

TEST_F(Batching, ACallThatFindsNothingRunningRunsAtOnce) {
  Numbers twice(run);
  EXPECT_EQ(twice(row(3)).wait()[0].item<double>(), 6);
  EXPECT_THAT(watched.sizes(), ElementsAre(1));
}

TEST_F(Batching, WhatArrivesDuringABatchIsTheNext) {
  Numbers twice(run);
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{twice(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 1; i < 6; ++i) futures.push_back(twice(row(i)));
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 5));
  EXPECT_EQ(twice.stats().batches, 2u);
  EXPECT_EQ(twice.stats().calls, 6u);
  EXPECT_EQ(twice.stats().largest, 5u);
  EXPECT_EQ(twice.stats().mean(), 3);
}

TEST_F(Batching, NoBatchIsLargerThanItsBound) {
  Numbers twice(run, {.max_size = 2});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{twice(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 1; i < 6; ++i) futures.push_back(twice(row(i)));
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 2, 2, 1));
}

TEST_F(Batching, AsManyBatchesRunAtOnceAsAllowed) {
  Numbers twice(run, {.max_size = 1, .max_running = 2});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures;
  for (int i = 0; i < 4; ++i) futures.push_back(twice(row(i)));
  ASSERT_TRUE(watched.has_begun(2));
  ASSERT_TRUE(waits(twice, 2));
  EXPECT_EQ(watched.sizes().size(), 2u);
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4, 6));
}

TEST_F(Batching, UntilFullBatchesWaitForTheirLastCallOrAFlush) {
  Numbers twice(run, {.max_size = 3, .max_wait = weft::kUntilFull});
  std::vector<Future<at::Tensor>> futures{twice(row(1)), twice(row(2))};
  EXPECT_EQ(twice.stats().pending, 2u);
  futures.push_back(twice(row(3)));
  EXPECT_THAT(values(futures), ElementsAre(2, 4, 6));
  futures = {twice(row(4)), twice(row(5))};
  EXPECT_EQ(twice.stats().pending, 2u);
  twice.flush();
  EXPECT_THAT(values(futures), ElementsAre(8, 10));
  EXPECT_THAT(watched.sizes(), ElementsAre(3, 2));
}

TEST_F(Batching, WhatIsFullAfterTheSizeWasLoweredRunsAtOnce) {
  Numbers twice(run, {.max_size = 3, .max_wait = weft::kUntilFull});
  std::vector<Future<at::Tensor>> futures{twice(row(1)), twice(row(2))};
  EXPECT_EQ(twice.stats().pending, 2u);
  twice.set_max_size(2);  // the third caller has died
  EXPECT_THAT(values(futures), ElementsAre(2, 4));
  twice.set_max_size(4);
  futures = {twice(row(3)), twice(row(4)), twice(row(5))};
  EXPECT_EQ(twice.stats().pending, 3u);
  futures.push_back(twice(row(6)));
  EXPECT_THAT(values(futures), ElementsAre(6, 8, 10, 12));
  EXPECT_THAT(watched.sizes(), ElementsAre(2, 4));
}

TEST_F(Batching, ASizeHoldsForWorkersThatAreCalledLater) {
  Numbers twice(run, {.max_size = 3, .max_wait = weft::kUntilFull});
  twice.set_max_size(2);
  const weft::CallScopeGuard other(world_.scope(1));
  std::vector<Future<at::Tensor>> futures{twice(row(1)), twice(row(2))};
  EXPECT_THAT(values(futures), ElementsAre(2, 4));
}

TEST_F(Batching, ASizeThatOptionsCouldNotHaveIsRefused) {
  Numbers twice(run, {.name = "twice", .max_size = 2, .max_pending = 4});
  EXPECT_THAT(weft::testing::error_of([&] { twice.set_max_size(0); }).message(),
              HasSubstr("'twice': max_size must be at least 1"));
  EXPECT_THAT(weft::testing::error_of([&] { twice.set_max_size(5); }).message(),
              HasSubstr("max_pending (4)"));
  EXPECT_EQ(twice.stats().size, 0u);  // no worker was called
  EXPECT_EQ(twice(row(2)).wait()[0].item<double>(), 4);
  EXPECT_EQ(twice.stats().size, 2u);
}

TEST_F(Batching, TheOldestWaitsNoLongerThanItsTime) {
  Numbers twice(run, {.max_size = 3, .max_wait = milliseconds(2)});
  std::vector<Future<at::Tensor>> futures{twice(row(1))};
  EXPECT_THAT(values(futures), ElementsAre(2));  // only the timer started it
}

TEST_F(Batching, CallsThatDoNotFitRunApart) {
  Numbers twice([](at::Tensor x) {
    watched.pass(static_cast<size_t>(x.size(0)));
    TORCH_CHECK(x.size(1) == 2, "expected rows of 2 numbers, got ", x.size(1));
    return x * 2;
  });
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{twice(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  futures.push_back(twice(row(1)));
  Future<at::Tensor> wrong_shape = twice(at::ones({3}));
  Future<at::Tensor> wrong_type = twice(at::ones({2}, at::kLong));
  futures.push_back(twice(row(2)));
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4));
  EXPECT_THAT(wrong_shape.result().status().message(), HasSubstr("rows of 2 numbers, got 3"));
  EXPECT_EQ(wrong_type.wait().scalar_type(), at::kLong);
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 2, 1, 1));
}

TEST_F(Batching, AListMayHoldAnErrorForOne) {
  using Lists = std::vector<absl::StatusOr<std::string>>;
  Batcher<std::string(at::Tensor, std::string)> batcher(
      [](std::vector<at::Tensor> x, std::vector<std::string> names) -> Lists {
        watched.pass(x.size());
        Lists results;
        for (size_t i = 0; i < x.size(); ++i) {
          if (x[i].dim() == 0) {
            results.push_back(absl::InvalidArgumentError(names[i] + " has no dimension"));
          } else {
            results.push_back(absl::StrCat(names[i], " ", x[i].size(0)));
          }
        }
        return results;
      });
  const auto held = watched.hold();
  (void)batcher(row(0), "first");
  ASSERT_TRUE(watched.has_begun(1));
  const auto a = batcher(at::ones({3}), "a");
  const auto b = batcher(at::ones({}), "b");
  const auto c = batcher(at::ones({5, 2}), "c");
  held.release();
  EXPECT_EQ(a.wait(), "a 3");
  EXPECT_EQ(b.result().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(b.result().status().message(), HasSubstr("b has no dimension"));
  EXPECT_EQ(c.wait(), "c 5");
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 3));  // shapes do not separate lists
}

struct Sample {
  at::Tensor picture;
  std::vector<at::Tensor> masks;
};
auto weft_fields(Sample& sample) { return std::tie(sample.picture, sample.masks); }

TEST_F(Batching, StructsAreConcatenatedFieldByFieldAndDividedByTheirRows) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  Batcher<Pair(Sample, at::Tensor)> batcher(
      [](Sample sample, at::Tensor offset) -> Pair {
        watched.pass(static_cast<size_t>(sample.picture.size(0)));
        return {sample.picture + offset, sample.masks.at(0) * sample.masks.at(1)};
      },
      {.join = weft::BatchJoin::kConcatenate});
  const auto sample = [](int64_t rows, double value) {
    return Sample{at::full({rows, 3}, value), {at::full({rows}, value), at::full({rows}, 10.)}};
  };
  const auto held = watched.hold();
  (void)batcher(sample(1, 0), at::zeros({1, 3}));
  ASSERT_TRUE(watched.has_begun(1));
  const auto two = batcher(sample(2, 2), at::full({2, 3}, 0.5));
  const auto three = batcher(sample(3, 3), at::full({3, 3}, 0.25));
  auto short_list = sample(2, 2);
  short_list.masks.pop_back();
  const auto apart = batcher(short_list, at::full({2, 3}, 0.5));
  const auto uneven = batcher(sample(3, 3), at::full({2, 3}, 0.5));
  held.release();
  EXPECT_TRUE(at::equal(two.wait().first, at::full({2, 3}, 2.5)));
  EXPECT_TRUE(at::equal(two.wait().second, at::full({2}, 20.)));
  EXPECT_TRUE(at::equal(three.wait().first, at::full({3, 3}, 3.25)));
  EXPECT_TRUE(at::equal(three.wait().second, at::full({3}, 30.)));
  EXPECT_EQ(apart.result().status().code(), absl::StatusCode::kUnknown);  // masks.at(1)
  EXPECT_THAT(uneven.result().status().message(), HasSubstr("3 and 2 rows"));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 5, 2));
}

TEST_F(Batching, AFunctionWithoutResultTellsThatItRan) {
  std::atomic<int64_t> sum{0};
  Batcher<void(at::Tensor)> add([&](at::Tensor x) { sum += x.sum().item<int64_t>(); });
  add(at::tensor({1, 2})).wait();
  EXPECT_EQ(sum, 3);
}

TEST_F(Batching, ABatcherMayStandInFrontOfRemoteCalls) {
  Numbers halves(
      [](at::Tensor x) {
        watched.pass(static_cast<size_t>(x.size(0)));
        return weft::rpc_async("w1", half, x);
      },
      {.isolate_errors = true});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{halves(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 1; i < 4; ++i) futures.push_back(halves(row(i)));
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 0.5, 1, 1.5));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 3));
  Numbers nobody([](at::Tensor x) { return weft::rpc_async("nobody", half, x); },
                 {.isolate_errors = true});
  EXPECT_EQ(nobody(row(1)).result().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Batching, AFunctionOfBothFormsNeedsNoSignature) {
  Batcher batcher(half, {.max_size = 8});
  EXPECT_EQ(batcher(row(3)).wait()[0].item<double>(), 1.5);
}

TEST_F(Batching, RemoteCallersOfAMethodAreServedTogether) {
  const auto doubler = weft::remote<Doubler>("w1");
  std::vector<Future<at::Tensor>> futures;
  std::vector<double> expected;
  for (int i = 0; i < 100; ++i) {
    weft::CallScopeGuard scope(world_.scope(0));
    futures.push_back(doubler.rpc_async(&Doubler::twice, row(i)));
    expected.push_back(2 * i);
  }
  EXPECT_EQ(values(futures), expected);
}

TEST_F(Batching, CallsOfDifferentContextsRunApart) {
  Numbers batcher(run);
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{batcher(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  for (uint64_t i = 1; i < 5; ++i) {
    weft::CallScope scope = world_.scope(0);
    scope.context = {world_.id(0), i % 2 + 1};
    weft::CallScopeGuard guard(scope);
    futures.push_back(batcher(row(static_cast<double>(i))));
  }
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 2, 2));
}

TEST_F(Batching, ABatchRunsForItsWorkerUntilItsLastCallersDeadline) {
  std::vector<weft::TimePoint> deadlines;
  std::vector<std::string> workers;
  Numbers batcher(
      [&](at::Tensor x) {
        deadlines.push_back(weft::CallScope::current().deadline);
        workers.push_back(weft::CallScope::current().runtime->name());
        return run(x);
      },
      {.max_size = 3, .max_wait = weft::kUntilFull});
  std::vector<Future<at::Tensor>> futures;
  const weft::TimePoint now = std::chrono::steady_clock::now();
  for (int i = 1; i < 4; ++i) {
    weft::CallScope scope = world_.scope(1);
    scope.deadline = now + std::chrono::hours(i % 3 + 1);
    weft::CallScopeGuard guard(scope);
    futures.push_back(batcher(row(i)));
  }
  EXPECT_THAT(values(futures), ElementsAre(2, 4, 6));
  EXPECT_THAT(deadlines, ElementsAre(now + std::chrono::hours(3)));
  EXPECT_THAT(workers, ElementsAre("w1"));
}

TEST_F(Batching, WorkersOfAProcessRunTheirOwnCalls) {
  std::atomic<int> wrong{0};
  Numbers batcher(
      [&](at::Tensor x) {
        const auto& scope = weft::CallScope::current();
        if (weft::Executor::current() != &scope.runtime->executor()) ++wrong;
        if (scope.runtime->name() != absl::StrCat("w", x[0][0].item<int64_t>())) ++wrong;
        return run(x);
      },
      {.max_running = 2});
  std::vector<Future<at::Tensor>> futures;
  const auto held = watched.hold();
  for (size_t i = 0; i < 12; ++i) {
    weft::CallScopeGuard scope(world_.scope(i % 3));
    futures.push_back(batcher(row(static_cast<double>(i % 3))));
  }
  held.release();
  for (auto& future : futures) EXPECT_TRUE(future.result().ok());
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(batcher.stats().calls, 12u);
}

TEST_F(Batching, AFlushDuringABatchIsForWhatWaits) {
  Numbers batcher(run, {.max_size = 4, .max_wait = weft::kUntilFull});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{batcher(row(0))};
  batcher.flush();
  ASSERT_TRUE(watched.has_begun(1));
  futures.push_back(batcher(row(1)));
  futures.push_back(batcher(row(2)));
  batcher.flush();
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 2));
  const Future<at::Tensor> later = batcher(row(3));
  EXPECT_EQ(batcher.stats().pending, 1u);
  batcher.flush();
  EXPECT_TRUE(later.result().ok());
}

TEST_F(Batching, AGoalLetsBatchesGrowFromOneCall) {
  Numbers batcher(run, {.latency_goal = std::chrono::hours(1)});
  const auto held = watched.hold();
  std::vector<Future<at::Tensor>> futures{batcher(row(0))};
  ASSERT_TRUE(watched.has_begun(1));
  for (int i = 1; i < 10; ++i) futures.push_back(batcher(row(i)));
  held.release();
  EXPECT_THAT(values(futures), ElementsAre(0, 2, 4, 6, 8, 10, 12, 14, 16, 18));
  EXPECT_THAT(watched.sizes(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(batcher.stats().late, 0u);

  Numbers slow(run, {.latency_goal = std::chrono::nanoseconds(1)});
  for (int i = 0; i < 3; ++i) slow(row(i)).wait();
  ASSERT_TRUE(eventually([&] { return slow.stats().late == 3; }));
  EXPECT_EQ(slow.stats().size, 1u);
}

TEST_F(Batching, EmptyAndUndefinedTensorsKeepTheirPlaces) {
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  Batcher<Pair(at::Tensor, at::Tensor)> batcher(
      [](at::Tensor x, at::Tensor maybe) {
        return Pair{x * 2, maybe};
      },
      {.max_size = 3, .max_wait = weft::kUntilFull, .join = weft::BatchJoin::kConcatenate});
  const auto one = batcher(at::ones({1, 2}), {}), none = batcher(at::ones({0, 2}), {}),
             two = batcher(at::ones({2, 2}), {});
  EXPECT_TRUE(at::equal(std::get<0>(one.wait()), at::full({1, 2}, 2.)));
  EXPECT_EQ(std::get<0>(none.wait()).sizes(), at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::equal(std::get<0>(two.wait()), at::full({2, 2}, 2.)));
  EXPECT_FALSE(std::get<1>(two.wait()).defined());

  EXPECT_THAT(batcher(at::Tensor(), at::Tensor()).result().status().message(),
              HasSubstr("a call without a tensor"));
}

TEST_F(Batching, ResultsNeedNotBeCopied) {
  Batcher<std::unique_ptr<int>(at::Tensor)> batcher([](std::vector<at::Tensor> tensors) {
    std::vector<std::unique_ptr<int>> sizes;
    for (const at::Tensor& tensor : tensors) {
      sizes.push_back(std::make_unique<int>(static_cast<int>(tensor.numel())));
    }
    return sizes;
  });
  EXPECT_EQ(*batcher(row(4)).wait(), 2);
}

TEST_F(Batching, WhatCannotBeCopiedIsGivenToListsAlone) {
  Batcher<int(std::unique_ptr<int>)> batcher([](std::vector<std::unique_ptr<int>> numbers) {
    std::vector<int> twice;
    for (const auto& number : numbers) twice.push_back(2 * *number);
    return twice;
  });
  EXPECT_EQ(batcher(std::make_unique<int>(4)).wait(), 8);
  const auto again = [] {
    return Batcher<int(std::unique_ptr<int>)>(
        [](std::vector<std::unique_ptr<int>>) { return std::vector<int>(); },
        {.isolate_errors = true});
  };
  EXPECT_THAT(weft::testing::error_of(again).message(), HasSubstr("cannot be copied"));
}

TEST_F(Batching, OutsideContextsGraphsAreNotShared) {
  Numbers batcher([](at::Tensor x) { return x.exp(); },
                  {.max_size = 2, .max_wait = weft::kUntilFull});
  at::Tensor a = row(1).requires_grad_(), b = row(2).requires_grad_();
  const Future<at::Tensor> x = batcher(a), y = batcher(b);
  x.wait().sum().backward();  // neither waited for the other
  y.wait().sum().backward();
  EXPECT_EQ(batcher.stats().batches, 2u);
  EXPECT_TRUE(at::allclose(a.grad(), row(1).exp()));
  EXPECT_TRUE(at::allclose(b.grad(), row(2).exp()));
}

TEST_F(Batching, ARegistryTakesABatcher) {
  weft::RegistryBuilder builder;
  const auto function = builder.add("served", Numbers(half));
  EXPECT_EQ(function.signature().text, "(tensor) -> tensor");
  EXPECT_TRUE(builder.build().ok());
}

// Callers on three workers and on threads of their own, with random shapes, joins and errors.
TEST_F(Batching, EveryCallerGetsItsOwnResultInRandomOrders) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  Numbers batcher(
      [](at::Tensor x) {
        TORCH_CHECK(x.ge(0).all().item<bool>(), "negative");
        return x * 2;
      },
      {.max_size = 5,
       .max_wait = std::chrono::microseconds(50),
       .max_running = 2,
       .isolate_errors = true});
  const Serving serving(*this, batcher);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (size_t caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937 random(seed + caller);
      weft::CallScopeGuard scope(world_.scope(caller % 3));
      std::deque<std::pair<double, Future<at::Tensor>>> open;
      for (int i = 0; i < 150; ++i) {
        const double value = static_cast<double>(random() % 1000) - 20;
        const int64_t length = 1 + static_cast<int64_t>(random() % 3);
        open.emplace_back(value, weft::rpc_async("w1", twice, at::full({length}, value)));
        if (random() % 40 == 0) open.back().second.cancel();
        while (open.size() > random() % 8) {
          const auto [value, future] = std::move(open.front());
          open.pop_front();
          const auto& result = future.result();
          if (absl::IsCancelled(result.status())) continue;
          if (result.ok() != (value >= 0)) ++wrong;
          if (result.ok() && (*result)[0].item<double>() != 2 * value) ++wrong;
        }
      }
      for (auto& [value, future] : open) (void)future.result();
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  ASSERT_TRUE(waits(batcher, 0));
  const weft::BatchStats stats = batcher.stats();
  EXPECT_LE(stats.largest, 5u);
  EXPECT_LE(stats.calls + stats.abandoned, 900u);
}

}  // namespace batching_test
