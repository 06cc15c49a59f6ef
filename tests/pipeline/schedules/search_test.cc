// search_schedule(): never slower than the generators, and within memory.
#include "weft/pipeline/schedules/search.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/pipeline/schedules/schedules.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

enum class Placement { kOneEach, kModulo, kV };

ScheduleProblem problem_of(int workers, int micro_batches, Placement placement) {
  ScheduleProblem problem;
  const int stages = placement == Placement::kOneEach ? workers : 2 * workers;
  problem.graph = StageGraph::chain(stages);
  for (int stage = 0; stage < stages; ++stage) {
    const bool back = placement == Placement::kV && stage >= workers;
    problem.worker_of.push_back(back ? stages - 1 - stage : stage % workers);
  }
  problem.micro_batches = micro_batches;
  problem.costs.stages.resize(static_cast<size_t>(stages),
                              {.kept_bytes = 1, .kept_for_weights = 1});
  return problem;
}

// The step times of all generators for this placement, that fit into memory.
std::vector<double> generated(const ScheduleProblem& problem, Placement placement) {
  const int p = problem.workers(), m = problem.micro_batches;
  std::vector<absl::StatusOr<PipelineSchedule>> made;
  switch (placement) {
    case Placement::kOneEach:
      made = {schedules::fill_drain(p, m), schedules::one_forward_one_backward(p, m),
              schedules::zero_bubble(p, m), schedules::zero_bubble_h2(p, m)};
      break;
    case Placement::kModulo:
      made = {schedules::interleaved(p, m, 2), schedules::breadth_first(p, m, 2),
              schedules::zero_bubble(p, m, 2)};
      break;
    case Placement::kV:
      made = {schedules::zero_bubble_v(p, m), schedules::half_memory_v(p, m),
              schedules::dual_pipe_v(p, m)};
      break;
  }
  std::vector<double> times;
  for (const auto& schedule : made) {
    if (!schedule.ok()) continue;
    const SchedulePrice priced = price_schedule(*schedule, problem.graph, problem.costs).value();
    bool fits = true;
    for (size_t worker = 0; worker < problem.memory.size(); ++worker) {
      fits = fits && priced.workers[worker].peak_bytes <= problem.memory[worker];
    }
    if (fits) times.push_back(priced.step);
  }
  return times;
}

TEST(SearchTest, IsNeverSlowerThanAGeneratorAndStaysWithinMemory) {
  constexpr uint32_t kSeed = 20261128;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> time(0.2, 2);
  int faster = 0;
  for (int round = 0; round < 60; ++round) {
    const auto placement = static_cast<Placement>(round % 3);
    const int p = 2 + static_cast<int>(random() % 3), m = p * (1 + static_cast<int>(random() % 3));
    ScheduleProblem problem = problem_of(p, m, placement);
    for (StageCosts& costs : problem.costs.stages) {
      costs.forward = time(random);
      costs.input_gradients = time(random);
      costs.weight_gradients = time(random);
      costs.kept_bytes = 1 + static_cast<int64_t>(random() % 3);
      costs.kept_for_weights = static_cast<int64_t>(random()) % (costs.kept_bytes + 1);
    }
    if (round % 2 == 0) problem.costs.latency = 0.1;
    if (round % 4 == 0) problem.memory.assign(static_cast<size_t>(p), 8 * p);
    const absl::StatusOr<FoundSchedule> found = search_schedule(problem);
    ASSERT_TRUE(found.ok()) << found.status();
    ASSERT_EQ(check_schedule(found->schedule, problem.graph), absl::OkStatus());
    const std::vector<double> times = generated(problem, placement);
    if (times.empty()) continue;
    const double best = *std::min_element(times.begin(), times.end());
    EXPECT_LE(found->price.step, best) << found->name;
    faster += found->price.step < best * 0.999 ? 1 : 0;
    for (size_t worker = 0; worker < problem.memory.size(); ++worker) {
      EXPECT_LE(found->price.workers[worker].peak_bytes, problem.memory[worker]);
    }
  }
  EXPECT_GT(faster, 20) << "of 60";
}

TEST(SearchTest, SplitsTheBackwardOnlyWhereThatHelps) {
  ScheduleProblem alone = problem_of(1, 3, Placement::kOneEach);
  EXPECT_EQ(search_schedule(alone)->price.step, 9);
  ScheduleProblem two = problem_of(2, 6, Placement::kOneEach);
  EXPECT_EQ(search_schedule(two)->price.step, 19);  // 3 m + 1; fill-drain takes 21
}

TEST(SearchTest, RecomputesWhereMemoryDoesNotSuffice) {
  ScheduleProblem problem = problem_of(2, 6, Placement::kOneEach);
  for (StageCosts& costs : problem.costs.stages) {
    costs.kept_bytes = 100;
    costs.input_bytes = 1;
    costs.kept_for_weights = 0;
  }
  problem.recompute = true;
  problem.memory = {150, 150};  // for the results of one micro-batch, and the inputs of many
  const absl::StatusOr<FoundSchedule> found = search_schedule(problem);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->schedule.to_csv(), HasSubstr("0R0"));
  EXPECT_THAT(found->schedule.to_csv(), Not(HasSubstr("1R0")))
      << "the last stage needs no second micro-batch before its backward";
  ASSERT_EQ(check_schedule(found->schedule, problem.graph), absl::OkStatus());
  for (const auto& worker : found->price.workers) EXPECT_LE(worker.peak_bytes, 150);
  // One micro-batch at a time, without recomputing, would keep one of the workers idle.
  EXPECT_LT(found->price.step, 6 * 6);
  problem.recompute = false;
  EXPECT_THAT(search_schedule(problem)->schedule.to_csv(), Not(HasSubstr("R")));
  problem.recompute = true;
  problem.memory = {700, 700};
  EXPECT_THAT(search_schedule(problem)->schedule.to_csv(), Not(HasSubstr("R")));
}

TEST(SearchTest, AMemoryLimitThatNothingMeetsIsNamed) {
  ScheduleProblem problem = problem_of(2, 4, Placement::kOneEach);
  for (StageCosts& costs : problem.costs.stages) costs.kept_bytes = 100;
  problem.memory = {99, 1000};
  const absl::Status status = search_schedule(problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      std::string(status.message()),
      "no schedule fits into the workers' memory; worker 0 has 99 bytes, and one micro-batch at "
      "a time needs 100");
}

TEST(SearchTest, AProblemThatContradictsItselfIsRefused) {
  const ScheduleProblem good = problem_of(2, 4, Placement::kOneEach);
  const auto refused = [&](const std::function<void(ScheduleProblem&)>& damage,
                           const std::string& message) {
    ScheduleProblem problem = good;
    damage(problem);
    const absl::Status status = search_schedule(problem).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  refused([](auto& problem) { problem.graph = {}; }, "at least one stage");
  refused([](auto& problem) { problem.micro_batches = 0; }, "at least 1 micro-batch, not 0");
  refused([](auto& problem) { problem.worker_of.pop_back(); }, "1 stages are placed, of 2");
  refused([](auto& problem) { problem.costs.stages.pop_back(); },
          "the costs are of 1 stages, and the pipeline has 2");
  refused([](auto& problem) { problem.costs.latency = -1; }, "a latency of -1 seconds");
  refused([](auto& problem) { problem.graph.inputs[1] = {1}; },
          "stage 1 takes the outputs of stage 1");
  refused([](auto& problem) { problem.micro_batches = 1 << 30; }, "micro-batches have more than");
  refused([](auto& problem) { problem.worker_of = {0, 2}; }, "not numbered from 0 without gaps");
  refused([](auto& problem) { problem.memory = {1, 2, 3}; }, "3 memory limits for 2 workers");
}

}  // namespace
}  // namespace weft
