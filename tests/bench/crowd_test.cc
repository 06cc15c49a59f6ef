#include "weft/bench/processes/crowd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

constexpr double kBlockSeconds = 0.02;

Crowd::Options options(const std::string& name, int members) {
  return {.name = name,
          .members = members,
          .command = {std::string(WEFT_BUILD_DIR) + "/tests/bench/bench_fake_contestant",
                      "contestant", "--name", name}};
}
Row row(const std::string& name) { return select_rows(rl_rows(), {name})->front(); }

TEST(Crowd, TheBestNumberIsItsOwnAndOfTheSameKindOfRow) {
  Crowd crowd(options("leads", 4));
  ASSERT_TRUE(crowd.start().ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(crowd.run(row("best, two calls"), kBlockSeconds).status()));
  Row two = row("two calls, 4 observers");
  two.amount = 2;
  EXPECT_EQ(crowd.run(row("two calls, 1 observer"), kBlockSeconds)->mean_batch, 1);
  EXPECT_EQ(crowd.run(row("two calls, 4 observers"), kBlockSeconds)->mean_batch, 4);
  EXPECT_EQ(crowd.run(two, kBlockSeconds)->mean_batch, 2);
  EXPECT_EQ(crowd.run(row("best, two calls"), kBlockSeconds)->mean_batch, 2);
  EXPECT_EQ(crowd.best_amount(Work::kOneCall), 0);
}

TEST(Crowd, RowsForMoreMembersOrNoneOfItsOwnAreMissing) {
  Crowd crowd(options("leads", 4));
  ASSERT_TRUE(crowd.start().ok());
  for (const char* name : {"two calls, 16 observers", "batched 16, 1 observer"}) {
    EXPECT_TRUE(absl::IsUnimplemented(crowd.run(row(name), kBlockSeconds).status())) << name;
  }
  EXPECT_TRUE(crowd.run(row("one call, 4 observers"), kBlockSeconds).ok());
}

TEST(Crowd, AmountsThatAreNoMembersMayBeLarger) {
  Crowd::Options micro_batches = options("leads", 4);
  micro_batches.amounts_are_members = false;
  Crowd crowd(std::move(micro_batches));
  ASSERT_TRUE(crowd.start().ok());
  EXPECT_EQ(crowd.run(row("two calls, 16 observers"), kBlockSeconds)->mean_batch, 16);
}

TEST(Crowd, UsageIsThatOfAllProcesses) {
  Crowd crowd(options("leads", 2));
  ASSERT_TRUE(crowd.start().ok());
  const auto result = crowd.run(row("one call, 1 observer"), kBlockSeconds);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->usage.switches, 0);
  crowd.pause();
  crowd.resume();
  EXPECT_TRUE(crowd.run(row("one call, 1 observer"), kBlockSeconds).ok());
  crowd.pause();  // the destructor must also kill stopped processes
}

TEST(Crowd, AMemberThatDiesIsNamed) {
  Crowd crowd(options("follower dies", 3));
  const absl::Status started = crowd.start();
  EXPECT_THAT(std::string(started.message()), testing::HasSubstr("member 2"));
  EXPECT_TRUE(absl::IsFailedPrecondition(crowd.run(row("one call, 1 observer"), 0.1).status()));
}

}  // namespace
}  // namespace weft::bench
