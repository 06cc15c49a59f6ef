#include "weft/bench/processes/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

const Row kSum{"allreduce 2 ranks 4 KB", Work::kAllReduce, 4096, "us", 2};
const Row kSumOfFour{"allreduce 4 ranks 4 KB", Work::kAllReduce, 4096, "us", 4};
const Row kStep{"ddp step communication", Work::kDdpStep, 0, "us", 2};
constexpr double kRankSeconds = 0.02;

RankGroup::Options rank_options(const std::string& name, int ranks = 2) {
  return {.name = name,
          .ranks = ranks,
          .command = {std::string(WEFT_BUILD_DIR) + "/tests/bench/bench_fake_contestant",
                      "contestant", "--name", name}};
}

TEST(RankGroup, AllRanksRunEquallyOftenForAboutTheBlocksTime) {
  RankGroup group(rank_options("meets", 4));
  ASSERT_TRUE(group.start().ok());
  for (int block = 0; block < 3; ++block) {
    // If ranks ran different numbers of operations, one would wait for ever.
    const auto result = group.run(kSumOfFour, kRankSeconds);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_GT(result->calls, 2);
    EXPECT_GT(result->all_calls, result->calls);
  }
}

TEST(RankGroup, MissingRowLeavesTheGroupUsable) {
  RankGroup group(rank_options("good"));
  ASSERT_TRUE(group.start().ok());
  EXPECT_TRUE(absl::IsUnimplemented(group.run(kStep, kRankSeconds).status()));
  EXPECT_TRUE(absl::IsUnimplemented(group.run(kSumOfFour, kRankSeconds).status()));
  EXPECT_TRUE(group.run(kSum, kRankSeconds).ok());
}

TEST(RankGroup, PausedRanksGoOnAfterResume) {
  RankGroup group(rank_options("meets"));
  ASSERT_TRUE(group.start().ok());
  group.pause();
  group.resume();
  EXPECT_TRUE(group.run(kSum, kRankSeconds).ok());
  group.pause();  // the destructor must also kill stopped processes
}

TEST(RankGroup, DeadRankIsNamedWhileTheOthersWaitForItAndAllCanBeStartedAgain) {
  RankGroup group(rank_options("last dies", 3));
  ASSERT_TRUE(group.start().ok());
  const Row sum{"allreduce 2 ranks 4 KB", Work::kAllReduce, 4096, "us", 3};
  const absl::Status status = group.run(sum, kRankSeconds).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 2"));
  EXPECT_TRUE(absl::IsFailedPrecondition(group.run(sum, kRankSeconds).status()));
  EXPECT_TRUE(group.start().ok());
}

TEST(RankGroup, RankThatCannotListenIsItsError) {
  EXPECT_EQ(RankGroup(rank_options("refuses")).start(),
            absl::ResourceExhaustedError("rank 0: no port left"));
}

TEST(RankGroup, MissingProgramIsNamed) {
  RankGroup group({.name = "good", .command = {"/nowhere/weft_bench"}});
  const absl::Status started = group.start();
  EXPECT_TRUE(absl::IsNotFound(started));
  EXPECT_THAT(std::string(started.message()), testing::HasSubstr("/nowhere/weft_bench"));
  EXPECT_TRUE(absl::IsFailedPrecondition(group.run(kSum, kRankSeconds).status()));
}

TEST(RanksTogether, AreAsSlowAsTheSlowestAndCostTheirSum) {
  const BlockResult together =
      of_all_ranks({{.calls = 5,
                     .seconds = 1,
                     .median_us = 10,
                     .p99_us = 90,
                     .bytes = 100,
                     .all_calls = 6,
                     .usage = {.cpu_seconds = 1, .page_faults = 2, .switches = 3},
                     .local_us = 7,
                     .communication_us = 1,
                     .footprint = {3, 50, 7, 8}},
                    {.calls = 5,
                     .seconds = 2,
                     .median_us = 20,
                     .p99_us = 30,
                     .bytes = 100,
                     .all_calls = 6,
                     .usage = {.cpu_seconds = 10, .page_faults = 20, .switches = 30},
                     .local_us = 6,
                     .communication_us = 4,
                     .footprint = {4, 40, 6, 9}}});
  EXPECT_EQ(together.calls, 5);
  EXPECT_EQ(together.all_calls, 6);
  EXPECT_EQ(together.seconds, 2);
  EXPECT_EQ(together.median_us, 20);
  EXPECT_EQ(together.p99_us, 90);
  EXPECT_EQ(together.local_us, 7);
  EXPECT_EQ(together.communication_us, 4);
  EXPECT_EQ(together.usage.cpu_seconds, 11);
  EXPECT_EQ(together.usage.page_faults, 22);
  EXPECT_EQ(together.usage.switches, 33);
  EXPECT_EQ(together.bytes, 200);
  EXPECT_EQ(together.footprint.threads, 4);
  EXPECT_EQ(together.footprint.descriptors, 50);
  EXPECT_EQ(together.footprint.private_mib, 7);
  EXPECT_EQ(together.footprint.shared_mib, 17);
}

}  // namespace
}  // namespace weft::bench
