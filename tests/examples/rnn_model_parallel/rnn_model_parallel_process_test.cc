// Runs the language model as two processes, on the beginning of the text.
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/tests/examples/launched_example.h"

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::kNoTorchrun;
using weft::testing::LaunchedExample;
using weft::testing::Outcome;

const LaunchedExample kJob("rnn_model_parallel");

// The first 1,000 verses have 28,000 tokens. Three epochs must learn more than the frequency of
// each token.
TEST(RnnModelParallel, LearnsMoreThanCounts) {
  const Outcome outcome = kJob.run(2, "--verses 1000 --epochs 3 --batch-size 8 --log-interval 150");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("1,000 verses: "));
  EXPECT_THAT(outcome.output, ContainsRegex("perplexity of n-grams: unigram 1[0-9][0-9]\\.[0-9], "
                                            "Kneser-Ney bigram [0-9][0-9]\\.[0-9]"));
  EXPECT_THAT(outcome.output, ContainsRegex("epoch 0\\.[0-9]+  loss [0-9.]+  perplexity [0-9.]+"));
  // Two digits before the point. Unigrams have three.
  EXPECT_THAT(outcome.output, ContainsRegex("\nperplexity [3-6][0-9]\\.[0-9] after 3 epochs, "));
}

TEST(RnnModelParallel, SigtermStopsItAfterAStep) {
  const Outcome outcome = kJob.run_and_stop(
      2, "--verses 1000 --epochs 100 --batch-size 8 --log-interval 50", "epoch 0.");
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("stopped after step [1-9]"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("weft_launch:"))) << "nothing failed";
}

TEST(RnnModelParallel, SigtermToTheServerAloneChangesNothing) {
  const Outcome outcome = kJob.run_and_stop_rank(
      1, 2, "--verses 100 --epochs 2 --batch-size 2 --log-interval 5", "epoch 0.");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("after 2 epochs, "));
}

TEST(RnnModelParallel, RunsUnderTorchrun) {
  if (!kJob.has_torchrun()) GTEST_SKIP() << kNoTorchrun;
  const Outcome outcome = kJob.run_torchrun(2, "--verses 100 --epochs 1 --batch-size 2");
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("after 1 epoch, "));
}

TEST(RnnModelParallel, WhatIsMissingOrWrongIsNamed) {
  EXPECT_THAT(kJob.run(3).output, HasSubstr("weft_launch -n 2 -- rnn_model_parallel"));
  EXPECT_THAT(kJob.run(2, "--text /nowhere").output, HasSubstr("/nowhere"));
  EXPECT_THAT(kJob.run(2, "--verses 20 --batch-size 10000").output,
              HasSubstr("20 verses are too few: 10000 columns of text need 10001 tokens"));
  const auto text = std::filesystem::temp_directory_path() /
                    absl::StrCat("rnn_model_parallel_process_test.", getpid());
  std::ofstream short_text(text);
  for (int i = 0; i < 20; ++i) short_text << "few words\n";
  short_text.close();
  EXPECT_THAT(kJob.run(2, "--text " + text.string() + " --batch-size 1").output,
              HasSubstr("those of the test need 21"));
  std::filesystem::remove(text);
  EXPECT_THAT(kJob.run(2, "--text /tmp").output, HasSubstr("cannot read /tmp"));
  EXPECT_THAT(kJob.run(2, "--threads 0").output, HasSubstr("--threads"));
  const Outcome no_package = kJob.command(
      absl::StrCat("PATH=/nowhere ", weft::testing::kWeftLaunch, " -n 2 -- ", kJob.program()));
  EXPECT_NE(no_package.code, 0);
  EXPECT_THAT(no_package.output, HasSubstr("bible-kjv-text"));
}

}  // namespace
}  // namespace weft::examples
