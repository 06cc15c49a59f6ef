// Real processes, one per rank. The tests check what the others see of one rank's death or mistake,
// and the three ways to start a job.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "weft/store/rendezvous.h"
#include "weft/tests/sockets/unused_port.h"
#include "weft/tests/support/launched.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::Outcome;
using weft::testing::run_command;
using weft::testing::unused_port;

constexpr const char* kProgram = WEFT_BUILD_DIR "/tests/worker/worker_test_program";

// `environment` has "NAME=value" pairs for the ranks.
Outcome launch(int ranks, const std::string& task, const std::string& options = "",
               const std::string& environment = "") {
  return run_command(absl::StrCat(environment, " ", weft::testing::kWeftLaunch, " -n ", ranks, " ",
                                  options, " --master-port 0 -- ", kProgram, " ", task, " 2>&1"));
}

// Starts the ranks without a launcher. The exit code is the sum of the ranks' exit codes.
Outcome by_hand(int ranks, const std::string& task, uint16_t port,
                const std::string& environment = "") {
  std::string script = "code=0; ";
  for (int rank = 0; rank < ranks; ++rank) {
    absl::StrAppend(&script, environment, " RANK=", rank, " WORLD_SIZE=", ranks,
                    " MASTER_ADDR=127.0.0.1 MASTER_PORT=", port, " ", kProgram, " ", task,
                    " & pids=\"$pids $!\"; ");
  }
  absl::StrAppend(&script, "for pid in $pids; do wait $pid; code=$((code + $?)); done; exit $code");
  return run_command(absl::StrCat("exec 2>&1; ", script));
}

TEST(WorkerProcessTest, EveryRankCallsEveryOtherAndAllEndInGoodOrder) {
  const Outcome outcome = launch(4, "ring");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " called 4")));
  }
}

TEST(WorkerProcessTest, EveryRankProvesItsRankWithACertificateOfItsOwn) {
  const std::string environment = absl::StrCat("WEFT_SECURITY=mtls ", weft::testing::kOverGrpc);
  const Outcome outcome =
      launch(3, "ring", "--certificates per-worker --roles ps:1,trainer:2", environment);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " called 3")));
  }
  const std::string other_role = absl::StrCat(
      environment, " ", weft::testing::kWeftLaunch,
      " -n 2 --certificates per-worker -- sh -c 'ROLE_NAME=admin exec ", kProgram, " ring' 2>&1");
  const Outcome refused = run_command(other_role);
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.output, HasSubstr("with rank 0 and role 'admin'"));
}

class WorkerDeath : public ::testing::TestWithParam<const char*> {};

// In "victim", some ranks may not have finished joining when the victim dies.
TEST_P(WorkerDeath, AKilledRankIsAnErrorWithItsNameAndTheOthersEndInGoodOrder) {
  for (const char* task : {"victim", "pending"}) {
    for (int victim : {2, 0}) {  // 0 is the shutdown leader
      const Outcome outcome =
          launch(3, absl::StrCat(task, " ", victim), "--on-failure=continue", GetParam());
      EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.output;
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == victim) continue;
        EXPECT_THAT(outcome.output,
                    AllOf(HasSubstr(absl::StrCat("worker", rank, " heard: UNAVAILABLE")),
                          HasSubstr(absl::StrCat("worker 'worker", victim, "'")),
                          HasSubstr(absl::StrCat("worker", rank, " ended"))));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WorkerDeath, ::testing::Values("", weft::testing::kOverGrpc),
                         [](const auto& info) { return weft::testing::transport_name(info); });

TEST(WorkerProcessTest, ABadVariableIsNamed) {
  const Outcome outcome = launch(1, "ring", "", "WEFT_SAME_HOST=never");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("WEFT_SAME_HOST='never' is not auto or off"));
  EXPECT_THAT(launch(1, "ring", "", "WEFT_NEWEST_PROTOCOL=seven").output,
              HasSubstr("WEFT_NEWEST_PROTOCOL='seven' is no number"));
  EXPECT_THAT(launch(1, "ring", "", "WEFT_NEWEST_PROTOCOL=5").output,
              HasSubstr("newest_protocol = 5 (WEFT_NEWEST_PROTOCOL) is not 6 to 7"));
}

TEST(WorkerProcessTest, WhereTheSystemGivesNoMoreThreadsCallsAreRefusedAndNobodyAborts) {
  // LeakSanitizer needs a thread itself, and gRPC leaks 40 bytes when it is refused a thread.
  const Outcome outcome = launch(2, "threadless", "", "LSAN_OPTIONS=detect_leaks=0");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  if (outcome.output.find("no limit") != std::string::npos) GTEST_SKIP() << "no RLIMIT_NPROC here";
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("worker0 ended"), HasSubstr("worker1 ended"),
                    HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("has no thread left for")));
}

TEST(WorkerProcessTest, AStoppedProcessIsDeadToTheOthersAndLearnsIt) {
  for (int victim : {2, 1}) {
    const Outcome outcome = launch(3, absl::StrCat("stopped ", victim));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcome.output,
                  AllOf(HasSubstr(absl::StrCat("worker", rank, " heard: UNAVAILABLE")),
                        HasSubstr(absl::StrCat("worker", rank, " ended"))));
    }
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("was not heard of for "),
                      HasSubstr(absl::StrCat("worker", victim, " learned: UNAVAILABLE")),
                      HasSubstr(absl::StrCat("worker 'worker", victim, "' (w", victim,
                                             ".1) was declared dead by worker"))));
  }
}

TEST(WorkerProcessTest, TheOthersGoOnWithTheRestartedRank) {
  for (int victim : {2, 1}) {
    const Outcome outcome = launch(3, absl::StrCat("restarts ", victim), "--on-failure=restart");
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(outcome.output,
                  HasSubstr(absl::StrCat("worker", rank, " went on with w", victim, ".2")));
    }
  }
}

TEST(WorkerProcessTest, ShutdownWaitsForNestedCallsAndContinuationsOfAllRanks) {
  const Outcome outcome = launch(3, "busy");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("worker", rank, " finished 2")));
  }
}

TEST(WorkerProcessTest, ShutdownGivesUpAtItsTimeoutAndNamesWhoIsStillAtWork) {
  const Outcome outcome = launch(3, "stuck 1");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.output,
                HasSubstr(absl::StrCat("worker", rank, " gave up: DEADLINE_EXCEEDED")));
  }
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("still at work: 'worker0' (waits for 'worker1' to answer "
                      "'never_return'), 'worker1' (serves 'never_return' to 'worker0') "
                      "(at worker"),
            HasSubstr("'worker1' has left before all its handlers and connections had ended")));
}

TEST(WorkerProcessTest, AHandlerOnAThreadOfTheTransportDelaysTheEndNoLonger) {
  const Outcome outcome = launch(2, "inline 1");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("'worker1' has left before all its handlers and connections had ended"));
}

TEST(WorkerProcessTest, TwoRanksWithOneNameFailAndTheLauncherSaysWhy) {
  const Outcome outcome = launch(2, "join", "", "WEFT_TEST_NAME=twin");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("named 'twin'"),
                                    HasSubstr("ranks "), Not(HasSubstr("too late"))));
}

TEST(WorkerProcessTest, TwoIdeasOfTheWorldSizeFailAndBothAreNamed) {
  const Outcome outcome = launch(2, "join", "", "WEFT_TEST_WORLD=3");
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("rank 0 has 2"),
                                    HasSubstr("rank 1 has 3"), Not(HasSubstr("too late"))));
}

TEST(WorkerProcessTest, ARankThatNeverJoinsIsNamedWithinTheJoinTimeout) {
  const Outcome outcome = launch(3, "absent", "--on-failure=continue");
  EXPECT_NE(outcome.code, 0);
  for (int rank : {0, 2}) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("[", rank, "] failed: DEADLINE_EXCEEDED")));
  }
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("rank 1 of 3 did not join"), HasSubstr("500ms"),
                                    Not(HasSubstr("too late"))));
}

TEST(WorkerProcessTest, ARanksFailureIsInItsErrorFileAndTheOthersGoOn) {
  const Outcome outcome = launch(2, "fail 1", "--on-failure=continue");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  // weft_launch has read this from the file.
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("weft_launch: rank 1 (pid "),
                                    HasSubstr("ended with exit code 1: failed: "),
                                    HasSubstr("this rank \"fails\"")));

  const std::string path = absl::StrCat(::testing::TempDir(), "worker_process_error.", getpid());
  EXPECT_EQ(
      by_hand(2, "fail 1", unused_port(), absl::StrCat("TORCHELASTIC_ERROR_FILE=", path)).code, 1);
  std::ifstream file(path);
  const nlohmann::json error = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(error.is_object());
  EXPECT_THAT(error["message"]["message"].get<std::string>(), HasSubstr("this rank \"fails\""));
  std::filesystem::remove(path);
}

// ---- three ways to start

TEST(WorkerProcessTest, TheSameBinaryRunsByHand) {
  const Outcome outcome = by_hand(2, "ring", unused_port());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("worker0 called 2"), HasSubstr("worker1 called 2")));
}

// The ranks run their rounds at their own pace. Rank 0 hosts the store.
TEST(WorkerProcessTest, ByHandAGroupThatHasEndedMayBeJoinedAgainAtOnce) {
  const Outcome outcome = by_hand(2, "again 20", unused_port());
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("worker0 was there 20 times"),
                                    HasSubstr("worker1 was there 20 times")));
}

TEST(WorkerProcessTest, AStoreOfTheLauncherServesTheRanksAndOutlivesThem) {
  RendezvousOptions options;
  options.port = unused_port();
  const auto agent = host_rendezvous_store(options);
  ASSERT_TRUE(agent.ok()) << agent.status();
  // Without this variable rank 0 would try to host the store, and fail.
  const std::string agent_hosts =
      absl::StrCat("WEFT_STORE=", rendezvous_address(options), " TORCHELASTIC_RUN_ID=first");
  const Outcome outcome = by_hand(2, "ring", agent->port, agent_hosts);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("worker0 called 2"), HasSubstr("worker1 called 2")));
  EXPECT_EQ(*agent->store->get("weft/first/incarnation/0", absl::Seconds(1)), "1");
  EXPECT_NE(by_hand(1, "ring", agent->port).code, 0);
}

// Python's own launcher. It needs the full wheel of tools/oracles.sh.
class TorchrunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kTorchrun)) {
      GTEST_SKIP() << "no " << kTorchrun << ": tools/oracles.sh was not run";
    }
  }
  static Outcome torchrun(const std::string& task) {
    return run_command(absl::StrCat(kTorchrun,
                                    " --no-python --nproc-per-node=2 --rdzv-backend=c10d ",
                                    "--rdzv-endpoint=127.0.0.1:0 ", kProgram, " ", task, " 2>&1"));
  }
  static constexpr const char* kTorchrun = WEFT_SOURCE_DIR "/.deps/oracles/bin/torchrun";
};

TEST_F(TorchrunTest, StartsTheSameBinary) {
  const Outcome outcome = torchrun("ring");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("worker0 called 2"), HasSubstr("worker1 called 2")));
}

TEST_F(TorchrunTest, ShowsTheMessageOfTheRankThatFailed) {
  const Outcome outcome = torchrun("fail 1");
  EXPECT_NE(outcome.code, 0);
  // torchrun's own summary has this from the error file.
  EXPECT_THAT(outcome.output, HasSubstr("traceback : failed: "));
}

}  // namespace
}  // namespace weft
