// Runs the recommender whose embeddings are remote and whose dense part is replicated: launcher,
// trainers, master and parameter servers as processes.
#include <signal.h>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/examples/launched_example.h"

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::kNoTorchrun;
using weft::testing::LaunchedExample;
using weft::testing::Outcome;

const LaunchedExample kJob("ddp_rpc_hybrid");

// The program itself fails if it has learned too little, or if the replicas differ.
TEST(DdpRpcHybrid, LearnsWhatThereIsToLearn) {
  const Outcome outcome = kJob.run(4);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("test RMSE 0\\.3[0-9]+ .*: 2 trainers, 1 server, "
                                            "replicas equal"));
}

TEST(DdpRpcHybrid, TheTablesMayLieOnTwoServers) {
  const Outcome outcome = kJob.run(5);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("2 trainers, 2 servers, replicas equal"));
}

TEST(DdpRpcHybrid, OneEpochIsTooLittleAndSaysSo) {
  const Outcome outcome = kJob.run(3, "--epochs 1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("1 trainer, 1 server, replicas equal"));
  EXPECT_THAT(outcome.output, HasSubstr("have not learned"));
}

TEST(DdpRpcHybrid, SigtermStopsItAfterAStep) {
  const Outcome outcome = kJob.run_and_stop(4, "--epochs 100000", "epoch 1 of");
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("stopped after step [1-9]"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("RMSE")));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weft_launch:"))) << "nothing failed";
}

TEST(DdpRpcHybrid, SigtermToOneTrainerStopsAll) {
  for (const int trainer : {0, 1}) {
    SCOPED_TRACE(trainer);
    const Outcome outcome = kJob.run_and_stop_rank(trainer, 4, "--epochs 100000", "epoch 1 of");
    EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
    EXPECT_THAT(outcome.output, ContainsRegex("stopped after step [1-9]"));
    EXPECT_EQ(kJob.count_exits(outcome, 128 + SIGTERM), 4u) << outcome.output;
  }
}

TEST(DdpRpcHybrid, TooFewRanksAreRefusedWithTheCommandThatWorks) {
  const Outcome outcome = kJob.run(2);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("weft_launch -n 4 -- ddp_rpc_hybrid"));
}

TEST(DdpRpcHybrid, RunsUnderTorchrun) {
  if (!kJob.has_torchrun()) GTEST_SKIP() << kNoTorchrun;
  const Outcome outcome = kJob.run_torchrun(4);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("2 trainers, 1 server, replicas equal"));
}

}  // namespace
}  // namespace weft::examples
