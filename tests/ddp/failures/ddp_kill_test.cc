// Kills one of three training processes in the middle of its backward. The others must learn in
// time which rank died, and go on without it.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "weft/tests/support/launched.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run_command;
using ::testing::StartsWith;

constexpr int kSize = 3;
constexpr int kTimeoutMs = 60'000;
constexpr int kNoticedMs = 15'000;  // long before the timeout; the processors are shared

class DdpKillTest : public ::testing::TestWithParam<int> {};

TEST_P(DdpKillTest, SurvivorsOfAKillInBackwardNameTheRankAndGoOn) {
  const int victim = GetParam();
  std::string folder = "/tmp/weft_ddp_kill_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<std::future<Outcome>> ranks;
  for (int rank = 0; rank < kSize; ++rank) {
    // `exec` replaces the shell, so that the outcome shows the signal that killed the program.
    ranks.push_back(std::async(std::launch::async, [=] {
      return run_command(absl::StrCat("OMP_NUM_THREADS=1 exec ", WEFT_BUILD_DIR,
                                      "/tests/ddp/ddp_kill_rank ", folder, "/store ", rank, " ",
                                      kSize, " ", victim, " ", kTimeoutMs));
    }));
  }
  for (int rank = 0; rank < kSize; ++rank) {
    const Outcome outcome = ranks[rank].get();
    SCOPED_TRACE(absl::StrCat("rank ", rank, ": ", outcome.output));
    if (rank == victim) {
      EXPECT_EQ(outcome.code, 1000 + SIGKILL);
      EXPECT_EQ(outcome.output, "dies\n");
      continue;
    }
    EXPECT_EQ(outcome.code, 0);
    const std::vector<std::string> lines = absl::StrSplit(outcome.output, '\n');
    ASSERT_THAT(lines, ElementsAre(StartsWith("failed "), StartsWith("went on "), ""));
    EXPECT_THAT(lines[0], AllOf(HasSubstr("bucket "), HasSubstr(absl::StrCat("rank ", victim)),
                                HasSubstr("could not be reduced")));
    const std::vector<std::string> words = absl::StrSplit(lines[0], absl::MaxSplits(' ', 2));
    int took = -1;
    ASSERT_TRUE(absl::SimpleAtoi(absl::StripSuffix(words[1], ":"), &took));
    EXPECT_LE(took, kNoticedMs);
  }
  std::filesystem::remove_all(folder);
}
INSTANTIATE_TEST_SUITE_P(Victim, DdpKillTest, ::testing::Range(0, kSize));

}  // namespace
}  // namespace weft
