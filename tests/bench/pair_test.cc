#include "weft/bench/processes/pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

const Row kSmall{"small call", Work::kAdd, 0, "us"};
const Row kSend{"send 1 MB", Work::kSend, 1 << 20, "GB/s"};
const Row kRref{"rref life", Work::kRref, 0, "us"};
constexpr double kPairSeconds = 0.01;

ProcessPair::Options options(const std::string& name) {
  return {.name = name,
          .program = std::string(WEFT_BUILD_DIR) + "/tests/bench/bench_fake_contestant"};
}

TEST(ProcessPair, RunsABlockAndAddsTheServersCost) {
  constexpr double kLongBlock = 0.2;  // long enough for the server's thread to run
  ProcessPair pair(options("toils"));
  ASSERT_TRUE(pair.start().ok());
  const auto result = pair.run(kSmall, kLongBlock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->calls, 2);
  EXPECT_GE(result->seconds, kLongBlock);
  EXPECT_GT(result->usage.page_faults, 1000);  // the client alone has a few dozen
}

TEST(ProcessPair, MissingRowLeavesThePairUsable) {
  ProcessPair pair(options("good"));
  ASSERT_TRUE(pair.start().ok());
  EXPECT_TRUE(absl::IsUnimplemented(pair.run(kSend, kPairSeconds).status()));
  EXPECT_TRUE(pair.run(kSmall, kPairSeconds).ok());
}

TEST(ProcessPair, PausedProcessesGoOnAfterResume) {
  ProcessPair pair(options("good"));
  ASSERT_TRUE(pair.start().ok());
  pair.pause();
  pair.resume();
  EXPECT_TRUE(pair.run(kSmall, kPairSeconds).ok());
  pair.pause();  // the destructor must also kill stopped processes
}

TEST(ProcessPair, WaitsForReleasesAndReportsALeak) {
  ProcessPair good(options("good"));
  ASSERT_TRUE(good.start().ok());
  EXPECT_TRUE(good.run(kRref, kPairSeconds).ok());
  ProcessPair leaks(options("leaks"));
  ASSERT_TRUE(leaks.start().ok());
  EXPECT_TRUE(absl::IsInternal(leaks.run(kRref, kPairSeconds).status()));
}

TEST(ProcessPair, DeadClientIsAnErrorAndCanBeStartedAgain) {
  ProcessPair pair(options("dies"));
  ASSERT_TRUE(pair.start().ok());
  EXPECT_TRUE(absl::IsUnavailable(pair.run(kSmall, kPairSeconds).status()));
  ASSERT_TRUE(pair.start().ok());
  EXPECT_TRUE(pair.run(kRref, kPairSeconds).ok());
}

TEST(ProcessPair, ServerThatDoesNotListenIsItsError) {
  EXPECT_EQ(ProcessPair(options("refuses")).start(), absl::ResourceExhaustedError("no port left"));
}

TEST(ProcessPair, MissingProgramIsNamed) {
  ProcessPair pair({.name = "good", .program = "/nowhere/weft_bench"});
  const absl::Status started = pair.start();
  EXPECT_TRUE(absl::IsNotFound(started));
  EXPECT_THAT(std::string(started.message()), testing::HasSubstr("/nowhere/weft_bench"));
  EXPECT_TRUE(absl::IsFailedPrecondition(pair.run(kSmall, kPairSeconds).status()));
}

}  // namespace
}  // namespace weft::bench
