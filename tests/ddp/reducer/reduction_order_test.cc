#include "weft/ddp/reducer/reduction_order.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::ddp_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Options = ReducerCore::Options;
using Step = ReductionOrder::Step;

std::vector<std::string> names(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(absl::StrCat("p", i));
  return names;
}

// An arrival whose work is done at once.
Step arrive(ReductionOrder& order, size_t parameter) {
  absl::StatusOr<Step> step = order.arrived(parameter, /*used=*/true);
  EXPECT_TRUE(step.ok()) << step.status();
  if (!step.ok()) return {};
  if (step->has_work()) const Turns::Turn turn = order.turn(*step);
  return *std::move(step);
}

TEST(ReductionOrderTest, ThreadsWorkInTheOrderOfTheDecisions) {
  constexpr size_t kParameters = 64;
  constexpr size_t kThreads = 4;
  Buckets buckets;
  for (size_t i = 0; i < kParameters; ++i) buckets.push_back({i});
  ReductionOrder order(names(kParameters), Options());
  order.set_buckets(buckets);
  for (int pass = 0; pass < 20; ++pass) {
    ASSERT_TRUE(order.begin({}).ok());
    std::vector<size_t> reduced;  // no lock: a thread writes to it in its turn
    std::atomic<int> last = 0;
    std::vector<std::thread> threads;
    for (size_t first = 0; first < kThreads; ++first) {
      threads.emplace_back([&, first] {
        for (size_t parameter = first; parameter < kParameters; parameter += kThreads) {
          const absl::StatusOr<Step> step = order.arrived(parameter, /*used=*/true);
          ASSERT_TRUE(step.ok() && step->has_work());
          const Turns::Turn turn = order.turn(*step);
          for (const size_t bucket : step->actions.reduce) reduced.push_back(bucket);
          if (step->actions.last) ++last;
        }
      });
    }
    for (std::thread& one : threads) one.join();
    ASSERT_EQ(reduced.size(), kParameters);
    for (size_t i = 0; i < kParameters; ++i) EXPECT_EQ(reduced[i], i);
    EXPECT_EQ(last, 1);
    order.finished();
  }
  EXPECT_EQ(order.passes(), 20u);
}

TEST(ReductionOrderTest, GivesTheUsedParametersWithTheLastStepOnly) {
  ReductionOrder order(names(3), {.find_unused = true});
  order.set_buckets({{0}, {1, 2}});
  ASSERT_TRUE(order.begin({1}).ok());
  const Step first = arrive(order, 0);
  EXPECT_THAT(first.actions.write, ElementsAre(1, 0));
  EXPECT_THAT(first.used, ElementsAre(false, true));
  EXPECT_THAT(first.used_map, IsEmpty());
  const Step last = arrive(order, 2);
  EXPECT_TRUE(last.actions.last);
  EXPECT_THAT(last.used_map, ElementsAre(1, 0, 1));
  EXPECT_THAT(order.used().here, ElementsAre(true, false, true));
  EXPECT_TRUE(order.used().shared);
}

TEST(ReductionOrderTest, OneThreadQueuesTheEndOfACountingPass) {
  ReductionOrder order(names(2), {.static_graph = true});
  order.set_buckets({{0, 1}});
  EXPECT_FALSE(order.claim_end()) << "no pass";
  ASSERT_TRUE(order.begin({}).ok());
  EXPECT_TRUE(arrive(order, 0).queue_end);
  EXPECT_FALSE(arrive(order, 1).queue_end);
  EXPECT_FALSE(order.claim_end());
  const Step end = order.at_end();
  { const Turns::Turn turn = order.turn(end); }
  EXPECT_TRUE(end.actions.last);
  order.finished();

  ASSERT_TRUE(order.begin({}).ok());
  EXPECT_FALSE(order.claim_end()) << "only the first pass is reduced at its end";
  EXPECT_FALSE(arrive(order, 0).queue_end);
}

TEST(ReductionOrderTest, TellsWhenTheFirstGradientOfEachPassArrived) {
  ReductionOrder order(names(2), Options());
  order.set_buckets({{0, 1}});
  ReductionOrder::Clock::time_point before = ReductionOrder::Clock::now();
  for (int pass = 0; pass < 2; ++pass) {
    ASSERT_TRUE(order.begin({}).ok());
    arrive(order, 0);
    const auto between = ReductionOrder::Clock::now();
    arrive(order, 1);
    const auto arrived = order.finished();
    EXPECT_GE(arrived, before);
    EXPECT_LE(arrived, between);
    before = ReductionOrder::Clock::now();
  }
}

TEST(ReductionOrderTest, GivesTheOrderToBuildOnce) {
  ReductionOrder order(names(2), Options());
  order.set_buckets({{0, 1}});
  EXPECT_THAT(order.take_order_to_build(), IsEmpty());
  ASSERT_TRUE(order.begin({}).ok());
  arrive(order, 1);
  arrive(order, 0);
  order.finished();
  EXPECT_THAT(order.take_order_to_build(), ElementsAre(1, 0));
  EXPECT_THAT(order.take_order_to_build(), IsEmpty());
  EXPECT_THAT(order.order_before(), ElementsAre(1, 0));
}

TEST(ReductionOrderTest, CancelsAPassThatAnotherEngineRan) {
  ReductionOrder order(names(1), Options());
  order.set_buckets({{0}});
  EXPECT_FALSE(order.elsewhere()) << "no pass";
  EXPECT_FALSE(order.cancel_unseen());
  ASSERT_TRUE(order.begin({}).ok());
  EXPECT_TRUE(order.elsewhere());
  EXPECT_TRUE(order.cancel_unseen());
  EXPECT_FALSE(order.in_pass());

  ASSERT_TRUE(order.begin({}).ok());
  EXPECT_FALSE(order.cancel_unseen()) << "nothing was seen since begin";
  EXPECT_TRUE(order.elsewhere());
  arrive(order, 0);
  EXPECT_FALSE(order.cancel_unseen()) << "a gradient came here too";
}

TEST(ReductionOrderTest, CancelRefusesAPassThatHasRunInPart) {
  ReductionOrder order(names(2), Options());
  order.set_buckets({{0, 1}});
  EXPECT_TRUE(order.cancel().ok()) << "no pass";
  ASSERT_TRUE(order.begin({}).ok());
  EXPECT_TRUE(order.cancel().ok());
  EXPECT_FALSE(order.in_pass());
  ASSERT_TRUE(order.begin({}).ok());
  arrive(order, 0);
  EXPECT_THAT(std::string(order.cancel().message()), HasSubstr("'p1'"));
  EXPECT_THAT(order.missing(), ElementsAre("p1"));

  order.start_over({{1}, {0}});
  EXPECT_FALSE(order.in_pass());
  ASSERT_TRUE(order.begin({}).ok());
  EXPECT_THAT(arrive(order, 1).actions.reduce, ElementsAre(0));
}

}  // namespace
}  // namespace weft::ddp_internal
