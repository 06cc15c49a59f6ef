// price_schedule(): times and memory of small schedules, worked out by hand.
#include "weft/pipeline/schedules/price.h"

#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace weft {
namespace {

SchedulePrice price_of(const std::string& csv, const PipelineCosts& costs) {
  const auto schedule = PipelineSchedule::from_csv(csv).value();
  return price_schedule(schedule, StageGraph::chain(static_cast<int>(costs.stages.size())), costs)
      .value();
}

TEST(PriceTest, AnActionBeginsWhenWhatItNeedsHasCome) {
  PipelineCosts costs;
  costs.stages = {{.forward = 2, .input_gradients = 3, .weight_gradients = 5, .output_bytes = 100},
                  {.forward = 7, .input_gradients = 11, .weight_gradients = 13}};
  costs.latency = 0.5;
  costs.bytes_per_second = 200;
  const SchedulePrice price = price_of("0F0,0B0\n1F0,1I0,1W0\n", costs);
  // A message takes 0.5 s, and 100 bytes another 0.5 s.
  EXPECT_EQ(price.workers[1].spans[0].begin, 3);
  EXPECT_EQ(price.workers[1].spans[1].end, 21);
  EXPECT_EQ(price.workers[1].spans[2].end, 34);
  EXPECT_EQ(price.workers[0].spans[1].begin, 22);
  EXPECT_EQ(price.workers[0].spans[1].end, 30);
  EXPECT_EQ(price.step, 34);
  EXPECT_EQ(price.workers[0].busy, 10);
  EXPECT_EQ(price.workers[1].busy, 31);
  EXPECT_DOUBLE_EQ(price.idle_share(), 1 - 41.0 / 68);
}

TEST(PriceTest, CountsMessagesAndBytesBetweenWorkersOnly) {
  PipelineCosts costs;
  costs.stages = {{.output_bytes = 100}, {.output_bytes = 40}, {.output_bytes = 7}};
  const SchedulePrice price = price_of("0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n2F0,2F1,2B0,2B1\n", costs);
  EXPECT_EQ(price.workers[0].messages_sent, 2);  // the outputs of stage 1
  EXPECT_EQ(price.workers[0].bytes_sent, 80);
  EXPECT_EQ(price.workers[1].messages_sent, 2);  // their gradients
  EXPECT_EQ(price.workers[1].bytes_sent, 80);
}

TEST(PriceTest, MemoryFollowsFromTheOrder) {
  PipelineCosts costs;
  costs.stages = {{.input_bytes = 1, .kept_bytes = 10, .kept_for_weights = 4}};
  EXPECT_EQ(price_of("0F0,0F1,0B0,0B1\n", costs).workers[0].peak_bytes, 20);
  EXPECT_EQ(price_of("0F0,0B0,0F1,0B1\n", costs).workers[0].peak_bytes, 10);
  EXPECT_EQ(price_of("0F0,0I0,0F1,0I1,0W0,0W1\n", costs).workers[0].peak_bytes, 14);
  // An F before an R keeps its results until it ends, beside the inputs of both micro-batches.
  EXPECT_EQ(price_of("0F0,0F1,0R0,0B0,0R1,0B1\n", costs).workers[0].peak_bytes, 12);
  EXPECT_EQ(price_of("0F0,0F1\n", costs).workers[0].peak_bytes, 10) << "evaluation keeps nothing";
}

TEST(PriceTest, GradientsThatWaitForAnEarlierMicroBatchCount) {
  PipelineCosts costs;
  costs.stages = {{.kept_bytes = 10, .gradient_bytes = 100}};
  const auto peak = [&](const std::string& csv) {
    return price_of(csv, costs).workers[0].peak_bytes;
  };
  EXPECT_EQ(peak("0F0,0B0\n"), 110);
  EXPECT_EQ(peak("0F0,0F1,0B0,0B1\n"), 210) << "the sum, and what is added to it";
  EXPECT_EQ(peak("0F0,0F1,0F2,0B0,0B1,0B2\n"), 220);
  EXPECT_EQ(peak("0F0,0F1,0F2,0B2,0B1,0B0\n"), 310) << "all three wait";
}

TEST(PriceTest, RecomputingTakesAForward) {
  PipelineCosts costs;
  costs.stages = {{.forward = 2, .input_gradients = 3, .weight_gradients = 5}};
  EXPECT_EQ(price_of("0F0,0R0,0B0\n", costs).step, 12);
}

TEST(PriceTest, CostsOfOtherStagesAreRefused) {
  PipelineCosts costs;
  costs.stages.resize(3);
  const auto refused =
      price_schedule(PipelineSchedule::from_csv("0F0,0B0\n").value(), StageGraph::chain(1), costs);
  EXPECT_EQ(std::string(refused.status().message()),
            "the costs are of 3 stages, and the pipeline has 1");
}

TEST(PriceTest, ImpossibleCostsAreRefused) {
  const auto refused = [](const std::function<void(PipelineCosts&)>& damage) {
    PipelineCosts costs;
    costs.stages.resize(1);
    damage(costs);
    const auto priced = price_schedule(PipelineSchedule::from_csv("0F0,0B0\n").value(),
                                       StageGraph::chain(1), costs);
    EXPECT_EQ(priced.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(priced.status().message());
  };
  const std::string time = "stage 0: a time is negative or no number";
  EXPECT_EQ(refused([](auto& costs) { costs.stages[0].forward = -1; }), time);
  EXPECT_EQ(refused([](auto& costs) { costs.stages[0].weight_gradients = std::nan(""); }), time);
  EXPECT_EQ(refused([](auto& costs) { costs.stages[0].kept_bytes = -5; }),
            "stage 0: -5 bytes are not from 0 to 2^40");
  EXPECT_EQ(refused([](auto& costs) { costs.bytes_per_second = 0; }),
            "a latency of 0 seconds or a rate of 0 bytes per second is impossible");
}

}  // namespace
}  // namespace weft
