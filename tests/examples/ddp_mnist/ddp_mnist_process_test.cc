// Runs the data-parallel job as processes, under weft_launch or torchrun.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <signal.h>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/tests/examples/launched_example.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pointwise;
using ::testing::StartsWith;
using weft::testing::LaunchedExample;
using weft::testing::Outcome;

const LaunchedExample kJob("ddp_mnist");

class DdpMnistJob : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / absl::StrCat("weft_ddp_mnist.", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Keeps the output, and returns the exit code.
  int keep(Outcome outcome) {
    output_ = std::move(outcome.output);
    return outcome.code;
  }
  int run(const std::string& command) { return keep(kJob.command(command)); }
  int run_ranks(int ranks, const std::string& options) { return keep(kJob.run(ranks, options)); }
  int run_whole(int ranks, const std::string& options) {
    return run(absl::StrCat(kJob.program(), " --whole-batch ", ranks, " ", options));
  }

  // Returns "epoch 1 of 2: loss 1.2345, test accuracy 0.5432" of each epoch, without the time.
  std::vector<std::string> epochs() const {
    std::vector<std::string> lines;
    for (absl::string_view line : absl::StrSplit(output_, '\n')) {
      if (absl::StartsWith(line, "epoch ")) lines.emplace_back(line.substr(0, line.rfind(',')));
    }
    return lines;
  }
  double accuracy() const {
    const std::vector<std::string> lines = epochs();
    double value = -1;
    if (!lines.empty())
      (void)absl::SimpleAtod(lines.back().substr(lines.back().size() - 6), &value);
    return value;
  }

  struct Difference {
    double among_first = -1;
    double among_all = -1;
    int64_t steps = 0;
  };
  // Parses the output of --compare.
  Difference difference() const {
    Difference result;
    const size_t at = output_.find("greatest difference to ");
    if (at == std::string::npos) return result;
    const std::vector<std::string> words =
        absl::StrSplit(output_.substr(at), absl::ByAnyChar(" \n"));
    // greatest difference to FILE: A in the first F steps, B in all N
    if (words.size() < 14) return result;
    (void)absl::SimpleAtod(words[4], &result.among_first);
    (void)absl::SimpleAtod(words[10], &result.among_all);
    (void)absl::SimpleAtoi(words[13], &result.steps);
    return result;
  }

  std::string file(const std::string& name) const { return folder_ / name; }
  static std::string content(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::filesystem::path folder_;
  std::string output_;
};

TEST_F(DdpMnistJob, LearnsInOneEpoch) {
  ASSERT_EQ(run_ranks(2, "--epochs 1"), 0) << output_;
  EXPECT_THAT(epochs(), ElementsAre(StartsWith("epoch 1 of 1: loss 0.")));
  EXPECT_GT(accuracy(), 0.8);
}

// The shards of three ranks overlap by a picture, and the last batch of each is short.
TEST_F(DdpMnistJob, RanksHaveTheLossesOfOneProcessWithTheWholeBatch) {
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    const std::string same = "--double --limit 1001 --batch 16 --epochs 2";
    ASSERT_EQ(run_ranks(ranks, absl::StrCat(same, " --losses ", file("ranks"))), 0) << output_;
    const std::vector<std::string> epochs_of_ranks = epochs();
    ASSERT_EQ(run_whole(ranks, absl::StrCat(same, " --compare ", file("ranks"))), 0) << output_;
    EXPECT_EQ(epochs(), epochs_of_ranks);
    EXPECT_EQ(epochs().size(), 2u);
    const Difference found = difference();
    EXPECT_EQ(found.steps, ranks == 2 ? 2 * 32 : 2 * 21);
    EXPECT_GE(found.among_first, 0);
    EXPECT_LT(found.among_first, 1e-12);
    EXPECT_LT(found.among_all, 1e-9);
  }
}

// The steps are too small to change anything, so each loss is that of one picture.
TEST_F(DdpMnistJob, EachEpochHasAllPicturesInAnOrderOfItsOwn) {
  ASSERT_EQ(
      run_whole(1, absl::StrCat("--double --limit 64 --batch 1 --lr 1e-15 --epochs 2 --losses ",
                                file("losses"))),
      0)
      << output_;
  std::vector<double> losses;
  std::ifstream lines(file("losses"));
  for (std::string step, loss; lines >> step >> loss;) losses.push_back(std::stod(loss));
  ASSERT_EQ(losses.size(), 2 * 64u);
  std::vector<double> first(losses.begin(), losses.begin() + 64);
  std::vector<double> second(losses.begin() + 64, losses.end());
  EXPECT_THAT(second, Not(Pointwise(DoubleNear(1e-6), first)));
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_THAT(second, Pointwise(DoubleNear(1e-6), first));
}

TEST_F(DdpMnistJob, InFloatTheFirstLossesAreClose) {
  const std::string same = "--limit 2000 --batch 32 --epochs 1";
  ASSERT_EQ(run_ranks(2, absl::StrCat(same, " --losses ", file("ranks"))), 0) << output_;
  ASSERT_EQ(run_whole(2, absl::StrCat(same, " --compare ", file("ranks"))), 0) << output_;
  EXPECT_EQ(difference().steps, 32);
  EXPECT_GT(difference().among_first, 0);
  EXPECT_LT(difference().among_first, 1e-4);
  // With half as many pictures per step, the losses must differ.
  ASSERT_EQ(run_whole(1, absl::StrCat(same, " --compare ", file("ranks"))), 0) << output_;
  EXPECT_GT(difference().among_first, 1e-2);
}

TEST_F(DdpMnistJob, AResumedRunEndsAsOneThatWasNotInterrupted) {
  const std::string same = "--double --limit 1000 --batch 16";
  ASSERT_EQ(run_ranks(2, absl::StrCat(same, " --epochs 3 --losses ", file("whole"))), 0) << output_;
  const std::vector<std::string> whole = epochs();
  ASSERT_EQ(whole.size(), 3u);
  const std::string parts =
      absl::StrCat(same, " --losses ", file("parts"), " --checkpoint ", file("saved"));
  ASSERT_EQ(run_ranks(2, absl::StrCat(parts, " --epochs 1")), 0) << output_;
  ASSERT_EQ(run_ranks(2, absl::StrCat(parts, " --epochs 3 --resume")), 0) << output_;
  EXPECT_THAT(epochs(), ElementsAre(whole[1], whole[2]));
  EXPECT_EQ(content(file("parts")), content(file("whole")));
  // A process with the whole batch continues from the same state.
  ASSERT_EQ(run_ranks(2, absl::StrCat(parts, " --epochs 1")), 0) << output_;
  ASSERT_EQ(run_whole(2, absl::StrCat(parts, " --epochs 2 --resume --compare ", file("whole"))), 0)
      << output_;
  EXPECT_EQ(difference().steps, 2 * 32);
  EXPECT_LT(difference().among_all, 1e-9);
  // Nothing is left to do.
  ASSERT_EQ(run_ranks(2, absl::StrCat(parts, " --epochs 2 --resume")), 0) << output_;
  EXPECT_THAT(output_, HasSubstr("saved stands after epoch 2"));
  EXPECT_THAT(epochs(), ElementsAre());
}

// A scheduler sends SIGTERM to the launcher, which passes it on.
TEST_F(DdpMnistJob, AStoppedRunSavesAndResumesAtItsStep) {
  const std::string same = "--double --limit 1000 --batch 16";
  const std::string parts =
      absl::StrCat(same, " --losses ", file("parts"), " --checkpoint ", file("saved"));
  const int code = keep(kJob.run_and_stop(2, parts + " --epochs 5000", "epoch 2 of"));
  EXPECT_EQ(code, kStoppedExitCode) << output_;
  const std::string stopped = "stopped after step ";
  const size_t at = output_.find(stopped);
  ASSERT_NE(at, std::string::npos) << output_;
  const int steps = std::stoi(output_.substr(at + stopped.size()));
  EXPECT_THAT(output_, Not(HasSubstr("weft_launch:"))) << "nothing failed";

  const std::string epochs = absl::StrCat(" --epochs ", steps / 32 + 1);
  ASSERT_EQ(run_ranks(2, parts + epochs + " --resume"), 0) << output_;
  ASSERT_EQ(run_ranks(2, absl::StrCat(same, epochs, " --losses ", file("whole"))), 0) << output_;
  EXPECT_EQ(content(file("parts")), content(file("whole")));
}

TEST_F(DdpMnistJob, AKilledRankIsNamedByAllOthersWithinThreeSeconds) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE(victim);
    const std::string said = absl::StrCat("pid of ", victim, " is ");
    pid_t process = -1;
    bool killed = false;
    std::chrono::steady_clock::time_point killed_at;
    const int code =
        keep(kJob.run_greeting("echo pid of $RANK is $$", "--on-failure continue -n 3",
                               "--limit 600 --epochs 5000", [&](const std::string& line) {
                                 if (const size_t at = line.find(said); at != std::string::npos) {
                                   (void)absl::SimpleAtoi(line.substr(at + said.size()), &process);
                                 }
                                 if (killed || !absl::StrContains(line, "epoch 2 of")) return;
                                 killed_at = std::chrono::steady_clock::now();
                                 killed = process > 0 && kill(process, SIGKILL) == 0;
                               }));
    ASSERT_TRUE(killed) << output_;
    EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(3));
    EXPECT_EQ(code, 128 + SIGKILL);  // the launcher's report of the killed rank
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      EXPECT_THAT(output_,
                  ContainsRegex(absl::StrCat("\\[", rank, "\\] failed: [^\n]*rank ", victim,
                                             " \\(process ", process, "\\) has died")));
    }
  }
}

TEST_F(DdpMnistJob, RunsUnderTorchrunAsUnderWeftLaunch) {
  if (!kJob.has_torchrun()) GTEST_SKIP() << weft::testing::kNoTorchrun;
  const std::string options = "--limit 1000 --epochs 1 --losses ";
  ASSERT_EQ(run_ranks(2, options + file("ours")), 0) << output_;
  ASSERT_EQ(keep(kJob.run_torchrun(2, options + file("theirs"))), 0) << output_;
  EXPECT_FALSE(content(file("ours")).empty());
  EXPECT_EQ(content(file("theirs")), content(file("ours")));
}

TEST_F(DdpMnistJob, MissingThingsAreNamed) {
  EXPECT_NE(run_ranks(2, absl::StrCat("--data ", file("nothing"))), 0);
  EXPECT_THAT(output_, HasSubstr(file("nothing/train-images-idx3-ubyte.gz")));
  EXPECT_THAT(output_, HasSubstr("dataset-fashion-mnist"));
  EXPECT_NE(run_ranks(2, absl::StrCat("--limit 100 --resume --checkpoint ", file("none"))), 0);
  EXPECT_THAT(output_, HasSubstr(file("none")));
  EXPECT_NE(run_whole(1, absl::StrCat("--limit 100 --compare ", file("no_losses"))), 0);
  EXPECT_THAT(output_, HasSubstr(absl::StrCat("cannot open ", file("no_losses"))));
  EXPECT_NE(run(absl::StrCat("env -u RANK WORLD_SIZE=2 ", kJob.program())), 0);
  EXPECT_THAT(output_, HasSubstr("RANK is not set"));
}

TEST_F(DdpMnistJob, TheWholeBatchIsForOneProcess) {
  EXPECT_NE(run_ranks(2, "--whole-batch 2"), 0);
  EXPECT_THAT(output_, HasSubstr("--whole-batch is for one process, and WORLD_SIZE is 2"));
}

TEST_F(DdpMnistJob, ABadOptionIsNamedBeforeAnyRankWaits) {
  EXPECT_EQ(run(absl::StrCat(kJob.program(), " --epochs 0")), 2);
  EXPECT_THAT(output_, HasSubstr("--epochs"));
  EXPECT_EQ(run(absl::StrCat(kJob.program(), " --help")), 0);
  EXPECT_THAT(output_, HasSubstr("weft_launch -n 2"));
}

}  // namespace
}  // namespace weft::examples
