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
  for (const char* name : {"dist autograd round", "rref life"}) {
    EXPECT_TRUE(absl::IsUnimplemented(run_block(client_, row(name), 1, clock_).status())) << name;
  }
}

}  // namespace
}  // namespace weft::bench
