// RunCore: what a worker does next, with messages in random orders.
#include "weft/pipeline/runner/run_core.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/pipeline/schedules/schedules.h"

namespace weft::pipeline_internal {
namespace {

using ::testing::HasSubstr;

PipelineSchedule of_csv(const std::string& csv) { return PipelineSchedule::from_csv(csv).value(); }

std::string next_of(RunCore& core) {
  const RunPlan::Action* const action = core.next();
  return action == nullptr ? "" : action->action.to_string();
}

TEST(RunCoreTest, TheRowWaitsForMessagesAndKeepsItsOrder) {
  const auto plan = RunPlan::make(of_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
                                  StageGraph::chain(2), /*worker=*/1)
                        .value();
  RunCore core(plan);
  EXPECT_EQ(next_of(core), "");
  EXPECT_EQ(core.waits_for()->to_string(), "0F0 for stage 1");
  ASSERT_TRUE(core.arrived({{0, StageWork::kForward, 1}, 1}).ok());
  EXPECT_EQ(next_of(core), "") << "an F is not done before its turn";
  ASSERT_TRUE(core.arrived({{0, StageWork::kForward, 0}, 1}).ok());
  EXPECT_EQ(next_of(core), "1F0");
  EXPECT_EQ(next_of(core), "1B0");
  EXPECT_EQ(next_of(core), "1F1");
  EXPECT_FALSE(core.finished());
  EXPECT_EQ(next_of(core), "1B1");
  EXPECT_TRUE(core.finished());
  EXPECT_EQ(next_of(core), "");
  EXPECT_FALSE(core.waits_for().has_value());
}

TEST(RunCoreTest, AWeightGradientFillsTheWait) {
  const auto plan = RunPlan::make(of_csv("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n"),
                                  StageGraph::chain(2), 0)
                        .value();
  RunCore core(plan);
  EXPECT_EQ(next_of(core), "0F0");
  EXPECT_EQ(next_of(core), "0F1");
  EXPECT_EQ(next_of(core), "") << "there is no W whose I is done";
  ASSERT_TRUE(core.arrived({{1, StageWork::kInputGradients, 0}, 0}).ok());
  EXPECT_EQ(next_of(core), "0I0");
  EXPECT_EQ(next_of(core), "0W0") << "while 0I1 waits";
  EXPECT_EQ(next_of(core), "");
  ASSERT_TRUE(core.arrived({{1, StageWork::kInputGradients, 1}, 0}).ok());
  EXPECT_EQ(next_of(core), "0I1");
  EXPECT_EQ(next_of(core), "0W1");
  EXPECT_TRUE(core.finished());
}

TEST(RunCoreTest, MessagesThatTheStepDoesNotTakeAreRefused) {
  const auto plan = RunPlan::make(of_csv("0F0,0B0\n1F0,1B0\n"), StageGraph::chain(2), 1).value();
  RunCore core(plan);
  const StageMessage message{{0, StageWork::kForward, 0}, 1};
  ASSERT_TRUE(core.arrived(message).ok());
  EXPECT_EQ(std::string(core.arrived(message).message()), "0F0 for stage 1 came twice");
  for (const StageMessage& wrong : {StageMessage{{0, StageWork::kForward, 7}, 1},
                                    {{0, StageWork::kForward, 0}, 2},
                                    {{0, StageWork::kBackward, 0}, 1},
                                    {{1, StageWork::kForward, 0}, 1}}) {
    EXPECT_THAT(std::string(core.arrived(wrong).message()), HasSubstr("this worker takes no "));
  }
  EXPECT_THAT(
      std::string(RunPlan::make(of_csv("0F0,0B0\n"), StageGraph::chain(1), 1).status().message()),
      HasSubstr("worker 1 is none of the 1 of the schedule"));
}

// Runs a schedule on all workers. Messages take random times. Each action must run once, after what
// it takes has been made, and no message may be left.
void run_all(const PipelineSchedule& schedule, const StageGraph& graph, std::mt19937& random) {
  std::vector<RunCore> cores;
  std::vector<std::shared_ptr<const RunPlan>> plans;
  for (size_t worker = 0; worker < schedule.workers.size(); ++worker) {
    plans.push_back(RunPlan::make(schedule, graph, static_cast<int>(worker)).value());
    cores.emplace_back(plans.back());
  }
  std::vector<StageMessage> on_their_way;
  std::set<std::string> there, done;
  size_t made = 0, taken = 0, left = 0;
  for (const auto& row : schedule.workers) left += row.size();
  while (left > 0) {
    const size_t choice = random() % (cores.size() + on_their_way.size());
    if (choice >= cores.size()) {
      const auto at = on_their_way.begin() + static_cast<ptrdiff_t>(choice - cores.size());
      const int row = plans[0]->row_of[static_cast<size_t>(at->to_stage)];
      ASSERT_TRUE(cores[static_cast<size_t>(row)].arrived(*at).ok());
      there.insert(at->to_string());
      on_their_way.erase(at);
      continue;
    }
    const RunPlan::Action* const action = cores[choice].next();
    if (action == nullptr) continue;
    --left;
    ASSERT_TRUE(done.insert(action->action.to_string()).second);
    for (const StageMessage& message : action->takes) {
      ASSERT_TRUE(there.contains(message.to_string())) << action->action.to_string();
      ++taken;
    }
    for (const StageMessage& message : action->makes) {
      ++made;
      if (plans[choice]->from_others.contains(message)) {
        ADD_FAILURE() << message.to_string() << " comes from this worker";
      }
      const bool here =
          plans[0]->row_of[static_cast<size_t>(message.to_stage)] == static_cast<int>(choice);
      if (here) {
        there.insert(message.to_string());
      } else {
        on_their_way.push_back(message);
      }
    }
  }
  EXPECT_TRUE(on_their_way.empty());
  EXPECT_EQ(made, taken);
  for (const RunCore& core : cores) EXPECT_TRUE(core.finished());
}

TEST(RunCoreTest, EveryScheduleRunsWhateverTimeMessagesTake) {
  constexpr uint32_t kSeed = 20261128;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int p = 2 + static_cast<int>(random() % 4), m = 2 * p + static_cast<int>(random() % 5);
    for (const auto& schedule :
         {schedules::fill_drain(p, m), schedules::one_forward_one_backward(p, m),
          schedules::zero_bubble(p, m), schedules::zero_bubble_h2(p, m),
          schedules::zero_bubble_v(p, m), schedules::dual_pipe_v(p, m),
          schedules::breadth_first(p, m, 2), schedules::forward_only(p, m)}) {
      StageGraph graph = StageGraph::chain(schedule->stages());
      run_all(*schedule, graph, random);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(RunCoreTest, SkipLinksBringSeveralMessages) {
  std::mt19937 random(1);
  StageGraph graph = StageGraph::chain(4);
  graph.inputs[3] = {0, 1, 2};
  for (const auto& schedule : {schedules::zero_bubble(4, 8), schedules::fill_drain(4, 8)}) {
    run_all(*schedule, graph, random);
  }
  const auto plan = RunPlan::make(*schedules::zero_bubble(4, 8), graph, 0).value();
  EXPECT_EQ(plan->actions.front().makes.size(), 2u);  // for stages 1 and 3
}

}  // namespace
}  // namespace weft::pipeline_internal
