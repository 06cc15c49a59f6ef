#include "weft/worker/launch/supervisor_core.h"

#include <signal.h>
#include <vector>

#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart = TimePoint(std::chrono::hours(1));

SupervisorOptions options(uint32_t processes, FailurePolicy policy, uint32_t restarts = 3) {
  SupervisorOptions result;
  result.processes = processes;
  result.on_failure = policy;
  result.max_restarts = restarts;
  result.grace = seconds(10);
  return result;
}

ExitStatus code(int value) { return {value, 0}; }
ExitStatus killed(int signal) { return {0, signal}; }

std::vector<Action> signals(std::vector<uint32_t> ranks, int signal) {
  std::vector<Action> result;
  for (const uint32_t rank : ranks) result.push_back({Action::Kind::kSignal, rank, 0, signal});
  return result;
}

std::vector<Action> restart(uint32_t rank, uint32_t count) {
  return {{Action::Kind::kStart, rank, count, 0}};
}

TEST(SupervisorCore, StartsEveryRankAndEndsWithZeroWhenAllDo) {
  SupervisorCore core(options(2, FailurePolicy::kEnd));
  EXPECT_EQ(core.start(), (std::vector<Action>{{Action::Kind::kStart, 0, 0, 0},
                                               {Action::Kind::kStart, 1, 0, 0}}));
  EXPECT_TRUE(core.on_exit(1, code(0), kStart).empty());
  EXPECT_FALSE(core.done());
  EXPECT_TRUE(core.on_exit(0, code(0), kStart).empty());
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.exit_code(), 0);
}

TEST(SupervisorCore, EndStopsTheOthersAndKeepsTheFirstCode) {
  SupervisorCore core(options(4, FailurePolicy::kEnd));
  core.start();
  core.on_exit(3, code(0), kStart);
  EXPECT_FALSE(core.asked_for(code(7)));
  EXPECT_EQ(core.on_exit(1, code(7), kStart), signals({0, 2}, SIGTERM));
  EXPECT_EQ(core.deadline(), kStart + seconds(10));
  EXPECT_TRUE(core.asked_for(killed(SIGTERM)));
  EXPECT_TRUE(core.asked_for(code(128 + SIGTERM))) << "it saved and left";
  EXPECT_TRUE(core.on_exit(0, killed(SIGTERM), kStart).empty());
  EXPECT_FALSE(core.asked_for(code(9)));
  EXPECT_TRUE(core.on_exit(2, code(9), kStart).empty());
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.exit_code(), 7);
  EXPECT_EQ(core.deadline(), std::nullopt);
}

TEST(SupervisorCore, ASignalledProcessCountsAs128PlusItsSignal) {
  SupervisorCore core(options(1, FailurePolicy::kEnd));
  core.start();
  core.on_exit(0, killed(SIGSEGV), kStart);
  EXPECT_EQ(core.exit_code(), 128 + SIGSEGV);
}

TEST(SupervisorCore, KillsWhoOutlivesTheGrace) {
  SupervisorCore core(options(3, FailurePolicy::kEnd));
  core.start();
  core.on_exit(0, code(1), kStart);
  EXPECT_TRUE(core.on_time(kStart + seconds(9)).empty());
  core.on_exit(2, killed(SIGTERM), kStart + seconds(9));
  EXPECT_EQ(core.on_time(kStart + seconds(10)), signals({1}, SIGKILL));
  EXPECT_EQ(core.deadline(), std::nullopt);
  EXPECT_TRUE(core.asked_for(killed(SIGKILL)));
  core.on_exit(1, killed(SIGKILL), kStart + seconds(10));
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.exit_code(), 1);
}

TEST(SupervisorCore, ContinueLeavesTheOthersAlone) {
  SupervisorCore core(options(3, FailurePolicy::kContinue));
  core.start();
  EXPECT_TRUE(core.on_exit(0, code(4), kStart).empty());
  EXPECT_TRUE(core.on_exit(1, code(5), kStart).empty());
  EXPECT_FALSE(core.done());
  EXPECT_EQ(core.deadline(), std::nullopt);
  EXPECT_TRUE(core.on_exit(2, code(0), kStart).empty());
  EXPECT_EQ(core.exit_code(), 4);
}

TEST(SupervisorCore, RestartStartsTheFailedRankAlone) {
  SupervisorCore core(options(2, FailurePolicy::kRestart, 2));
  core.start();
  EXPECT_EQ(core.on_exit(1, killed(SIGKILL), kStart), restart(1, 1));
  EXPECT_TRUE(core.is_running(1));
  EXPECT_EQ(core.restarts_of(1), 1u);
  core.on_exit(1, code(0), kStart);
  core.on_exit(0, code(0), kStart);
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.exit_code(), 0);
}

TEST(SupervisorCore, RestartsAreCountedPerRankAndThenTheGroupEnds) {
  SupervisorCore core(options(2, FailurePolicy::kRestart, 2));
  core.start();
  EXPECT_EQ(core.on_exit(0, code(1), kStart), restart(0, 1));
  EXPECT_EQ(core.on_exit(1, code(2), kStart), restart(1, 1));
  EXPECT_EQ(core.on_exit(1, code(2), kStart), restart(1, 2));
  EXPECT_EQ(core.on_exit(1, code(3), kStart), signals({0}, SIGTERM));
  EXPECT_TRUE(core.on_exit(0, killed(SIGTERM), kStart).empty()) << "no restart while stopping";
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.exit_code(), 3);
}

TEST(SupervisorCore, ZeroRestartsAreNone) {
  SupervisorCore core(options(1, FailurePolicy::kRestart, 0));
  core.start();
  EXPECT_TRUE(core.on_exit(0, code(1), kStart).empty());
  EXPECT_TRUE(core.done());
}

TEST(SupervisorCore, PassesEverySignalOnWithoutProlongingTheGrace) {
  SupervisorCore core(options(2, FailurePolicy::kRestart));
  core.start();
  EXPECT_EQ(core.on_signal(SIGHUP, kStart), signals({0, 1}, SIGHUP));
  EXPECT_EQ(core.on_signal(SIGTERM, kStart + seconds(4)), signals({0, 1}, SIGTERM));
  EXPECT_EQ(core.on_signal(SIGTERM, kStart + seconds(5)), signals({0, 1}, SIGTERM));
  EXPECT_EQ(core.deadline(), kStart + seconds(10));
  EXPECT_TRUE(core.on_exit(0, killed(SIGHUP), kStart).empty()) << "no restart while stopping";
  core.on_exit(1, code(0), kStart);
  EXPECT_TRUE(core.done());
  EXPECT_EQ(core.exit_code(), 128 + SIGHUP);
}

TEST(SupervisorCore, ASecondInterruptKills) {
  SupervisorCore core(options(2, FailurePolicy::kEnd));
  core.start();
  EXPECT_EQ(core.on_signal(SIGINT, kStart), signals({0, 1}, SIGINT));
  EXPECT_EQ(core.on_signal(SIGINT, kStart), signals({0, 1}, SIGKILL));
}

TEST(SupervisorCore, AGroupThatEndsInOrderAfterASignalEndsWithZero) {
  SupervisorCore core(options(1, FailurePolicy::kEnd));
  core.start();
  core.on_signal(SIGTERM, kStart);
  core.on_exit(0, code(0), kStart);
  EXPECT_EQ(core.exit_code(), 0);
  EXPECT_EQ(core.deadline(), std::nullopt);
}

TEST(SupervisorCore, AProgramThatCannotStartEndsTheGroupUnderEveryPolicy) {
  for (const FailurePolicy policy :
       {FailurePolicy::kEnd, FailurePolicy::kContinue, FailurePolicy::kRestart}) {
    SupervisorCore core(options(2, policy));
    core.start();
    EXPECT_EQ(core.on_start_failed(1, 126, kStart), signals({0}, SIGTERM));
    EXPECT_TRUE(core.is_stopping());
    core.on_exit(0, killed(SIGTERM), kStart);
    EXPECT_TRUE(core.done());
    EXPECT_EQ(core.exit_code(), 126);
  }
}

}  // namespace
}  // namespace weft::launch
