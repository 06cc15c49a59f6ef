#include "weft/bench/contestants/rank_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/bench/fake_rank.h"

namespace weft::bench {
namespace {

const Row kSum{"allreduce 2 ranks 4 KB", Work::kAllReduce, 4096, "us"};
const Row kStep{"ddp step communication", Work::kDdpStep, 0, "us"};

class RankBlock : public testing::Test {
 protected:
  ManualClock clock_;
  FakeRank rank_{clock_};
};

TEST_F(RankBlock, RunsExactlyTheRepetitionsAndTimesNoWarmUp) {
  const auto result = run_rank_block(rank_, kSum, {.warm_up = 7, .timed = 100}, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(rank_.sums_, 107);
  EXPECT_EQ(result->calls, 100);
  EXPECT_EQ(result->all_calls, 107);
  EXPECT_NEAR(result->median_us, 10, 1e-6);
  EXPECT_NEAR(result->p99_us, 50, 1e-6);
  EXPECT_NEAR(result->seconds, 100 * 10e-6 + 5 * 40e-6, 1e-9);
  EXPECT_NEAR(value_of(kSum, *result), 10, 1e-6);
}

TEST_F(RankBlock, ChecksTheWholeResultBeforeItMeasures) {
  rank_.prepare_status_ = absl::DataLossError("wrong sum in element 3");
  EXPECT_EQ(run_rank_block(rank_, kSum, {}, clock_).status(), rank_.prepare_status_);
  EXPECT_EQ(rank_.prepared_, "allreduce 2 ranks 4 KB;");
  EXPECT_EQ(rank_.sums_, 0);
}

TEST_F(RankBlock, WrongResultEndsTheBlockWithItsError) {
  rank_.fail_at_ = 5;
  const auto result = run_rank_block(rank_, kSum, {.warm_up = 2, .timed = 50}, clock_);
  EXPECT_TRUE(absl::IsDataLoss(result.status()));
  EXPECT_EQ(rank_.sums_, 5);
}

TEST_F(RankBlock, StepsWithAndWithoutDdpTakeTurnsAndBeginTogether) {
  ASSERT_TRUE(run_rank_block(rank_, kStep, {.warm_up = 1, .timed = 2}, clock_).ok());
  EXPECT_EQ(rank_.steps_, "mlmdmlmdmlmd");
}

TEST_F(RankBlock, CommunicationIsTheDifferenceOfNeighboursWhileTheMachineDrifts) {
  const auto result = run_rank_block(rank_, kStep, {.warm_up = 1, .timed = 4}, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->calls, 4);
  EXPECT_NEAR(result->local_us, 3500 + 100, 1e-6);  // it is over when all ranks have met
  EXPECT_NEAR(result->median_us, 3500 + 600, 1e-6);
  EXPECT_NEAR(value_of(kStep, *result), 500, 1e-6);
}

TEST_F(RankBlock, RoundsCountTheCallsOfAllRanksAndTheBytesOfThisOne) {
  const Row calls = worker_rows(8)[2];
  const auto small = run_rank_block(rank_, calls, {.warm_up = 1, .timed = 4}, clock_);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(rank_.rounds_, 5);
  EXPECT_NEAR(value_of(calls, *small), 8 * kAllToAllCalls / 640e-6, 1);
  EXPECT_GE(small->footprint.threads, 1);
  EXPECT_GE(small->footprint.descriptors, 3);
  EXPECT_GT(small->footprint.private_mib, 0);
  const Row tensors = worker_rows(8)[3];
  const auto large = run_rank_block(rank_, tensors, {.warm_up = 1, .timed = 4}, clock_);
  ASSERT_TRUE(large.ok());
  EXPECT_DOUBLE_EQ(large->bytes, 4.0 * kAllToAllCalls * (1 << 20));
}

TEST_F(RankBlock, ARankHasNoRowWhoseOperationItLacks) {
  class OnlyJoins final : public Rank {
    absl::StatusOr<std::string> listen() override { return "here"; }
    absl::Status join(const std::string&) override { return absl::OkStatus(); }
    absl::Status prepare(const Row&) override { return absl::OkStatus(); }
  } rank;
  for (const Row& row : {kSum, kStep, worker_rows(2)[0]}) {
    EXPECT_TRUE(absl::IsUnimplemented(run_rank_block(rank, row, {}, clock_).status())) << row.name;
  }
}

TEST_F(RankBlock, RowsOfClientsAreUnimplemented) {
  const Row call{"small call", Work::kAdd, 0, "us"};
  EXPECT_TRUE(absl::IsUnimplemented(run_rank_block(rank_, call, {}, clock_).status()));
}

}  // namespace
}  // namespace weft::bench
