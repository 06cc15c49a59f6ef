#include "weft/bench/contestants/block.h"

#include <gtest/gtest.h>

#include "weft/tests/bench/fake_client.h"

namespace weft::bench {
namespace {

const Row& row(const std::string& name) {
  for (const Row& row : rpc_rows()) {
    if (row.name == name) return row;
  }
  std::abort();
}

class Block : public testing::Test {
 protected:
  ManualClock clock_;
  FakeClient client_{clock_};
};

TEST_F(Block, LastsItsTimeAndTellsMedianAndTail) {
  const auto result = run_block(client_, row("small call"), 0.012, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_NEAR(result->seconds, 0.012, 0.0001);
  EXPECT_NEAR(result->median_us, 10, 1e-6);  // the mean is 12
  EXPECT_NEAR(result->p99_us, 50, 1e-6);
  EXPECT_NEAR(static_cast<double>(result->calls), 1000, 5);
  EXPECT_NEAR(value_of(row("small call"), *result), 10, 1e-6);
}

TEST_F(Block, WarmUpIsNotTimedButPaidFor) {
  const auto result = run_block(client_, row("small call"), 0.01, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->all_calls, client_.adds_);
  EXPECT_GT(result->all_calls, result->calls);
}

TEST_F(Block, MeasuresTwoOperationsEvenWhenOneTakesLonger) {
  const auto result = run_block(client_, row("send 256 MB"), 0.001, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->calls, 2);
  EXPECT_EQ(client_.sends_, 3);
}

TEST_F(Block, SendCountsItsBytesOnceAndEchoTwice) {
  const auto send = run_block(client_, row("send 64 MB"), 0.1, clock_);
  ASSERT_TRUE(send.ok());
  EXPECT_NEAR(value_of(row("send 64 MB"), *send), 1.0, 1e-6);
  const auto echo = run_block(client_, row("echo 64 MB"), 0.1, clock_);
  ASSERT_TRUE(echo.ok());
  EXPECT_NEAR(value_of(row("echo 64 MB"), *echo), 2.0, 1e-6);
}

TEST_F(Block, InFlightKeepsTheWholeWindowOpenAndEmptiesIt) {
  const auto result = run_block(client_, row("in flight 64"), 0.01, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(client_.deepest_, 64u);
  EXPECT_TRUE(client_.open_.empty());
  EXPECT_NEAR(value_of(row("in flight 64"), *result), 500000, 1000);
}

TEST_F(Block, AfterIdleIsOneCallAndNothingBeforeIt) {
  const auto result = run_block(client_, row("after 2 s idle"), 0.3, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(client_.adds_, 1);
  EXPECT_EQ(result->calls, 1);
  EXPECT_NEAR(result->median_us, 10, 1e-6);
}

TEST_F(Block, WrongResultEndsTheBlockWithItsError) {
  client_.fail_at_ = 30;
  const auto result = run_block(client_, row("small call"), 1, clock_);
  EXPECT_TRUE(absl::IsDataLoss(result.status()));
  EXPECT_EQ(client_.adds_, 30);
}

TEST_F(Block, WhatAContestantLacksIsUnimplemented) {
  EXPECT_TRUE(absl::IsUnimplemented(run_block(client_, row("rref life"), 1, clock_).status()));
  class Silent final : public Client {
    absl::Status connect(const std::string&) override { return absl::OkStatus(); }
  } silent;
  for (const Row& row : rpc_rows()) {
    EXPECT_TRUE(absl::IsUnimplemented(run_block(silent, row, 1, clock_).status())) << row.name;
  }
}

TEST_F(Block, GiftsAndSmallCallsTakeTurns) {
  const auto result = run_block(client_, row("give 256 MB"), 0.01, clock_);
  ASSERT_TRUE(result.ok());
  EXPECT_NEAR(value_of(row("give 256 MB"), *result), 15, 1e-6);
  EXPECT_NEAR(result->small_call_us, 10, 1e-6);
  EXPECT_EQ(client_.gives_, client_.adds_);
  EXPECT_EQ(result->all_calls, 2 * client_.gives_);
}

TEST_F(Block, MixedTellsTheCallsAndTheStreamBesideThemAndAlone) {
  const auto result = run_block(client_, row("mixed"), 0.9, clock_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->stream_alone_gb_per_s, 1, 1e-6);
  // Both threads advance the one clock: the stream cannot be as fast as alone.
  EXPECT_GT(result->stream_gb_per_s, 0);
  EXPECT_LE(result->stream_gb_per_s, 1);
  EXPECT_EQ(result->calls + 1, client_.adds_);
  EXPECT_GE(client_.sends_, 1 + 2 + 2);
  EXPECT_GT(result->median_us, 0);
  EXPECT_GE(result->p99_us, result->median_us);
}

TEST_F(Block, MixedEndsWithTheErrorOfEitherThread) {
  client_.fail_send_at_ = 8;  // in the stream: 6 run before it alone
  EXPECT_EQ(run_block(client_, row("mixed"), 0.9, clock_).status(),
            absl::DataLossError("wrong tensor"));
  client_.fail_send_at_ = -1;
  client_.fail_at_ = client_.adds_ + 3;
  EXPECT_EQ(run_block(client_, row("mixed"), 0.9, clock_).status(),
            absl::DataLossError("wrong sum"));
}

TEST_F(Block, AutogradRowsAreDeepOrWide) {
  for (const char* name : {"dist autograd round", "autograd depth 16", "autograd width 4"}) {
    ASSERT_TRUE(run_block(client_, row(name), 0.001, clock_).ok());
  }
  std::sort(client_.rounds_.begin(), client_.rounds_.end());
  client_.rounds_.erase(std::unique(client_.rounds_.begin(), client_.rounds_.end()),
                        client_.rounds_.end());
  EXPECT_EQ(client_.rounds_, (std::vector<std::pair<int, int>>{{1, 1}, {1, 4}, {16, 1}}));
}

}  // namespace
}  // namespace weft::bench
