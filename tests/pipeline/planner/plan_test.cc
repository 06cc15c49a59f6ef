// plan_pipeline(): cuts, micro-batches and schedule, against trying everything.
#include "weft/pipeline/planner/plan.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/pipeline/schedules/search.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All layers cost the same on all workers.
PlanProblem equal_layers(int workers, int layers, int micro_batches) {
  const std::vector<StageCosts> each(static_cast<size_t>(layers));
  return {.divisions = {{micro_batches, std::vector(static_cast<size_t>(workers), each)}}};
}

// The shortest step of any cuts, with stages placed one per worker, looped or in a V, without
// swaps in the schedule.
double shortest_of_all(const PlanProblem& problem) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const PlanDivision& division : problem.divisions) {
    const auto p = static_cast<int>(division.layers.size());
    const auto n = static_cast<int64_t>(division.layers.front().size());
    for (int placement = 0; placement < 3; ++placement) {
      ScheduleProblem schedules;
      const int stages = placement == 0 ? p : 2 * p;
      schedules.graph = StageGraph::chain(stages);
      schedules.micro_batches = division.micro_batches;
      schedules.costs.latency = problem.latency;
      schedules.memory = problem.memory;
      schedules.most_swaps = 0;
      for (int stage = 0; stage < stages; ++stage) {
        schedules.worker_of.push_back(placement == 2 && stage >= p ? stages - 1 - stage
                                                                   : stage % p);
      }
      const std::function<void(std::vector<int64_t>)> go_on = [&](std::vector<int64_t> cuts) {
        if (static_cast<int>(cuts.size()) == stages) {
          cuts.push_back(n);
          schedules.costs.stages = costs_of_stages(division, cuts, schedules.worker_of);
          const auto found = search_schedule(schedules);
          if (found.ok()) shortest = std::min(shortest, found->price.step);
          return;
        }
        const int64_t left = stages - static_cast<int64_t>(cuts.size());
        for (int64_t next = cuts.back() + 1; next + left <= n; ++next) {
          std::vector<int64_t> longer = cuts;
          longer.push_back(next);
          go_on(longer);
        }
      };
      if (n >= stages) go_on({0});
    }
  }
  return shortest;
}

TEST(PlanTest, CutsEqualLayersEqually) {
  const absl::StatusOr<PipelinePlan> plan = plan_pipeline(equal_layers(2, 6, 4));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(check_schedule(plan->schedule, StageGraph::chain(plan->stages())), absl::OkStatus());
  EXPECT_EQ(plan->cuts.front(), 0);
  EXPECT_EQ(plan->cuts.back(), 6);
  // 9 units of a micro-batch per worker. One stage per worker would take 4 * 9 + 3.
  EXPECT_LT(plan->price.step, 4 * 9 + 3);
  const absl::StatusOr<PipelinePlan> two = plan_pipeline(equal_layers(2, 2, 4));
  EXPECT_THAT(two->cuts, ElementsAre(0, 1, 2));
  EXPECT_THAT(two->worker_of, ElementsAre(0, 1));
}

TEST(PlanTest, AloneAWorkerTakesAllLayersAndTheDivisionThatIsFastest) {
  PlanProblem problem = equal_layers(1, 3, 2);
  problem.divisions.push_back(equal_layers(1, 3, 4).divisions.front());
  for (StageCosts& layer : problem.divisions[1].layers[0]) {
    layer.forward = layer.input_gradients = layer.weight_gradients = 0.4;  // less than half
  }
  const absl::StatusOr<PipelinePlan> plan = plan_pipeline(problem);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->cuts, ElementsAre(0, 3));
  EXPECT_EQ(plan->schedule.micro_batches(), 4);
  EXPECT_DOUBLE_EQ(plan->price.step, 4 * 9 * 0.4);
}

TEST(PlanTest, MovesCutsIfThereAreTooManyWaysToTryAll) {
  // With equal cuts, 4 stages take 370.
  EXPECT_LE(plan_pipeline(equal_layers(2, 40, 6))->price.step, 365);
}

TEST(PlanTest, IsAsFastAsTheBestOfAllCuts) {
  constexpr uint32_t kSeed = 20261128;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> time(0.2, 2);
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    PlanProblem problem = equal_layers(2, 7, 3);
    problem.divisions.push_back(equal_layers(2, 7, 2).divisions.front());
    problem.latency = round == 0 ? 0.3 : 0;
    for (PlanDivision& division : problem.divisions) {
      for (auto& layers : division.layers) {
        for (StageCosts& layer : layers) {
          layer.forward = time(random);
          layer.input_gradients = time(random);
          layer.weight_gradients = time(random);
        }
      }
    }
    const absl::StatusOr<PipelinePlan> plan = plan_pipeline(problem);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const double best = shortest_of_all(problem);
    EXPECT_LE(plan->price.step, best * (1 + 1e-9));
  }
}

TEST(PlanTest, StaysWithinMemory) {
  PlanProblem problem = equal_layers(2, 6, 3);
  for (auto& layers : problem.divisions.front().layers) {
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i].input_bytes = layers[i].output_bytes = 1;
      layers[i].kept_bytes = i < 2 ? 40 : 10;  // the first layers are large
    }
  }
  const absl::StatusOr<PipelinePlan> free = plan_pipeline(problem);
  ASSERT_TRUE(free.ok()) << free.status();
  int64_t most = 0;
  for (const auto& worker : free->price.workers) most = std::max(most, worker.peak_bytes);
  double step = free->price.step;
  for (const int64_t limit : {most - 1, most / 2, int64_t{100}}) {
    SCOPED_TRACE(limit);
    problem.memory = {limit, limit};
    const absl::StatusOr<PipelinePlan> plan = plan_pipeline(problem);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const auto& worker : plan->price.workers) EXPECT_LE(worker.peak_bytes, limit);
    EXPECT_GE(plan->price.step, step);
    step = plan->price.step;
  }
  problem.memory = {20, 20};
  const absl::Status status = plan_pipeline(problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 20 bytes, and one micro-batch"));
}

TEST(PlanTest, FindsSkewedCutsIfOneWorkerHasMostOfTheMemory) {
  PlanProblem problem = equal_layers(3, 30, 2);
  for (auto& layers : problem.divisions.front().layers) {
    for (StageCosts& layer : layers) layer.kept_bytes = 10;
  }
  problem.memory = {1000, 30, 30};  // equal cuts need 100 of each worker
  const absl::StatusOr<PipelinePlan> plan = plan_pipeline(problem);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (size_t worker = 0; worker < 3; ++worker) {
    EXPECT_LE(plan->price.workers[worker].peak_bytes, problem.memory[worker]);
  }
}

TEST(PlanTest, MessagesThatCostTimeMakeFewerBoundariesBetter) {
  PlanProblem problem = equal_layers(2, 6, 4);
  EXPECT_EQ(plan_pipeline(problem)->stages(), 4);
  problem.latency = 20;
  EXPECT_EQ(plan_pipeline(problem)->stages(), 2);
}

TEST(PlanTest, AProblemThatContradictsItselfIsRefused) {
  const auto refused = [&](const std::function<void(PlanProblem&)>& damage,
                           const std::string& message) {
    PlanProblem problem = equal_layers(2, 4, 2);
    damage(problem);
    const absl::Status status = plan_pipeline(problem).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  refused([](auto& problem) { problem.divisions.clear(); }, "a number of micro-batches to try");
  refused([](auto& problem) { problem.divisions[0].layers.clear(); }, "needs a worker");
  refused([](auto& problem) { problem = equal_layers(3, 2, 2); },
          "3 workers cannot share 2 layers");
  refused([](auto& problem) { problem.divisions[0].layers[1].pop_back(); },
          "worker 1 has costs of 3 layers, of 4");
  refused([](auto& problem) { problem.divisions.push_back(equal_layers(1, 4, 2).divisions[0]); },
          "costs of 1 workers for 2 micro-batches, and of 2");
  refused([](auto& problem) { problem.divisions[0].micro_batches = 0; },
          "at least 1 micro-batch, not 0");
  refused([](auto& problem) { problem.divisions[0].layers[0][0].forward = -1; }, "stage 0");
  refused([](auto& problem) { problem.memory = {1}; }, "1 memory limits for 2 workers");
}

}  // namespace
}  // namespace weft
