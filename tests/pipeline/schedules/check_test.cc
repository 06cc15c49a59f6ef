// check_schedule(): what makes a schedule impossible, and how the error names it.
#include <algorithm>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/pipeline/schedules/price.h"
#include "weft/pipeline/schedules/schedules.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

absl::Status check_chain(const std::string& csv, int stages = 2) {
  return check_schedule(PipelineSchedule::from_csv(csv).value(), StageGraph::chain(stages));
}

TEST(CheckTest, AcceptsHalvesRecomputingReductionsAndEvaluation) {
  EXPECT_EQ(check_chain("0F0,0R0,0B0,0G\n1F0,1I0,1W0\n"), absl::OkStatus());
  EXPECT_EQ(check_chain("0F0,0F1\n1F0,1F1\n"), absl::OkStatus());
}

TEST(CheckTest, NamesTheActionThatIsWrong) {
  for (const auto& [csv, message] : {
           std::pair("0F0,0B0\n1F0\n", "1B0 is missing"),
           std::pair("0F0,0B0\n1F0,1I0\n", "1W0 is missing"),
           std::pair("0F0,0B0\n1F0,1W0\n", "1I0 is missing"),
           std::pair("0F0,0F2,0B0,0B2\n1F0,1F2,1B0,1B2\n", "0F1 is missing"),
           std::pair("0F0,0B0\n", "1F0 is missing"),
           std::pair("0F0,0F0,0B0\n1F0,1B0\n", "row 1: 0F0 is there twice"),
           std::pair("0F0,0B0,0I0\n1F0,1B0\n", "0I0 is a half of 0B0, which is there too"),
           std::pair("0F0,0B0\n1F0,0F1\n", "stage 0 is in row 1 (0F0) and in row 2 (0F1)"),
           std::pair("0F0,0B0\n1F0,1B0,2F0\n",
                     "row 2: 2F0 is out of range; the pipeline has 2 stages"),
           std::pair("\n", "0F0 is missing"),
       }) {
    const absl::Status status = check_chain(csv);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << csv;
    EXPECT_EQ(std::string(status.message()), message);
  }
}

TEST(CheckTest, ShowsTheCircleInWhichWorkersWait) {
  const absl::Status circle = check_chain("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  EXPECT_EQ(circle.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(circle.message()),
            "the schedule cannot run: row 1 waits at 0B0 for 1B0, row 2 waits at 1F1 for 0F1");
  const absl::Status itself = check_chain("0F0,0B0\n1B0,1F0\n");
  EXPECT_EQ(std::string(itself.message()), "the schedule cannot run: row 2 waits at 1B0 for 1F0");
  EXPECT_THAT(std::string(check_chain("0F0,0G,0B0\n1F0,1B0\n").message()),
              HasSubstr("row 1 waits at 0G for 0B0"));
}

TEST(CheckTest, FollowsSkipLinks) {
  StageGraph graph = StageGraph::chain(3);
  graph.inputs[2] = {0, 1};
  const PipelineSchedule schedule =
      PipelineSchedule::from_csv("0F0,0B0\n1F0,1B0\n2F0,2B0\n").value();
  EXPECT_EQ(check_schedule(schedule, graph), absl::OkStatus());
  // Stage 0 needs the gradients of both.
  const auto late = PipelineSchedule::from_csv("0F0,1F0,1B0,0B0\n2B0,2F0\n").value();
  EXPECT_THAT(std::string(check_schedule(late, graph).message()),
              HasSubstr("row 2 waits at 2B0 for 2F0"));
}

TEST(CheckTest, AStageGraphThatIsNoneIsRefused) {
  const PipelineSchedule schedule = PipelineSchedule::from_csv("0F0,0B0\n1F0,1B0\n").value();
  for (const std::vector<int>& inputs : {std::vector{1}, {2}, {-1}, {0, 0}}) {
    const absl::Status status = check_schedule(schedule, StageGraph{{{}, inputs}});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("its inputs must be ascending stages below it"));
  }
}

TEST(CheckTest, NumbersBeyondTheBoundsAreRefused) {
  const auto refused = [](const std::vector<StageAction>& row) {
    const absl::Status status = check_schedule({{row}}, StageGraph::chain(1));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused({{0, StageWork::kForward, 1 << 20}}), HasSubstr("is out of range"));
  EXPECT_THAT(refused({{0, StageWork::kForward, -1}}), HasSubstr("is out of range"));
  EXPECT_THAT(refused({{0, StageWork::kForward, 0}, {0, StageWork::kReduce, 1}}),
              HasSubstr("0G is for the whole step, not for micro-batch 1"));
  const auto large = schedules::fill_drain(1 << 12, 1 << 12).status();
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.message()), HasSubstr("have more than 4194304 actions"));
}

// Takes one action out, repeats one, moves one to another row or out of range, or swaps two that
// need each other. The error names an action that the damage touched.
TEST(CheckTest, TenThousandDamagedSchedulesAreRefused) {
  constexpr uint32_t kSeed = 20261128;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(kSeed);
  const auto below = [&](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
  };
  for (int round = 0; round < 10'000; ++round) {
    const int p = 2 + static_cast<int>(below(4)), m = 2 * p + static_cast<int>(below(4));
    const absl::StatusOr<PipelineSchedule> made[] = {
        schedules::one_forward_one_backward(p, m), schedules::zero_bubble(p, m),
        schedules::zero_bubble_v(p, m), schedules::dual_pipe_v(p, m),
        schedules::breadth_first(p, m, 2)};
    PipelineSchedule damaged = made[below(5)].value();
    const int stages = damaged.stages();
    std::vector<StageAction>& row = damaged.workers[below(damaged.workers.size())];
    const size_t at = below(row.size());
    std::set<std::string> touched = {row[at].to_string()};
    const StageAction action = row[at];
    switch (below(5)) {
      case 0:
        row.erase(row.begin() + static_cast<ptrdiff_t>(at));
        break;
      case 1:
        row.insert(row.begin() + static_cast<ptrdiff_t>(below(row.size())), action);
        break;
      case 2:
        row[at].stage += stages;
        touched.insert(row[at].to_string());
        break;
      case 3: {
        auto& other = damaged.workers[(static_cast<size_t>(&row - damaged.workers.data()) + 1) %
                                      damaged.workers.size()];
        row.erase(row.begin() + static_cast<ptrdiff_t>(at));
        other.insert(other.begin() + static_cast<ptrdiff_t>(below(other.size())), action);
        break;
      }
      case 4: {  // a backward before its own forward
        const auto forward = std::find_if(row.begin(), row.end(), [&](const StageAction& each) {
          return each.work == StageWork::kForward;
        });
        const auto backward = std::find_if(row.begin(), row.end(), [&](const StageAction& each) {
          const bool first_part =
              each.work == StageWork::kInputGradients || each.work == StageWork::kBackward;
          return first_part && each.stage == forward->stage &&
                 each.micro_batch == forward->micro_batch;
        });
        touched = {forward->to_string(), backward->to_string()};
        std::iter_swap(forward, backward);
        break;
      }
    }
    const absl::Status status = check_schedule(damaged, StageGraph::chain(stages));
    ASSERT_FALSE(status.ok()) << damaged.to_csv();
    const bool named = std::any_of(touched.begin(), touched.end(), [&](const std::string& name) {
      return std::string(status.message()).find(name) != std::string::npos;
    });
    ASSERT_TRUE(named) << status << "\n"
                       << ::testing::PrintToString(touched) << "\n"
                       << damaged.to_csv();
  }
}

}  // namespace
}  // namespace weft
