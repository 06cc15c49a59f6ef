#include "weft/examples/parameter_server/options.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

JobCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "parameter_server");
  return parse_job_options(static_cast<int>(arguments.size()), arguments.data());
}

TEST(JobOptionsTest, HelpNamesEveryOptionItsDefaultAndHowToStart) {
  const JobCommandLine help = parse({"--help"});
  EXPECT_FALSE(help.options.has_value());
  EXPECT_EQ(help.exit_code, 0);
  for (const char* option :
       {"--data [^\n]*=/usr/share/datasets/fashion-mnist", "--epochs [^\n]*=3", "--batch [^\n]*=64",
        "--dropout [^\n]*=0.2", "--seed [^\n]*=1", "--eval-every [^\n]*=1",
        "--out [^\n]*=build/train", "--durable [^\n]*=checkpoint"}) {
    EXPECT_THAT(help.text, ContainsRegex(option));
  }
  for (const char* text :
       {"--lr", "0.001 for one trainer, 0.002 for more", "--limit", "default: all", "--checkpoint",
        "OUT/checkpoint", "--resume", "tools/train.sh --trainers 4", "weft_launch -n 3",
        "test accuracy A after E epochs, W workers, S s"}) {
    EXPECT_THAT(help.text, HasSubstr(text));
  }
}

TEST(JobOptionsTest, EveryOptionArrivesInItsField) {
  const JobCommandLine line = parse({"--data",
                                     "d",
                                     "--epochs",
                                     "4",
                                     "--batch",
                                     "5",
                                     "--lr",
                                     "0.5",
                                     "--dropout",
                                     "0.25",
                                     "--seed",
                                     "6",
                                     "--limit",
                                     "7",
                                     "--eval-every",
                                     "8",
                                     "--out",
                                     "o",
                                     "--checkpoint",
                                     "c",
                                     "--resume",
                                     "--checkpoint-every",
                                     "9",
                                     "--durable",
                                     "every-step"});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  const JobOptions& options = *line.options;
  EXPECT_EQ(options.data, "d");
  EXPECT_EQ(options.epochs, 4);
  EXPECT_EQ(options.batch, 5);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.learning_rate(3), 0.5);
  EXPECT_EQ(options.dropout, 0.25);
  EXPECT_EQ(options.seed, 6u);
  EXPECT_EQ(options.limit, 7);
  EXPECT_EQ(options.eval_every, 8);
  EXPECT_EQ(options.out, "o");
  EXPECT_EQ(options.checkpoint_folder(), "c");
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.checkpoint_every, 9);
  EXPECT_TRUE(options.every_step_durable);
  EXPECT_EQ(options.server_folder(), "c-server");
}

TEST(JobOptionsTest, MistakesAreNamedAndEndTheProgramWithTwo) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> mistakes = {
      {{"--epochs", "0"}, "--epochs"},
      {{"--batch", "60001"}, "--batch"},
      {{"--lr", "-1"}, "--lr"},
      {{"--dropout", "1"}, "--dropout"},
      {{"--limit", "many"}, "--limit"},
      {{"--eval-every", "0"}, "--eval-every"},
      {{"--no-such-thing"}, "no-such-thing"}};
  for (const auto& [arguments, named] : mistakes) {
    const JobCommandLine line = parse(arguments);
    EXPECT_FALSE(line.options.has_value()) << named;
    EXPECT_EQ(line.exit_code, 2) << named;
    EXPECT_THAT(line.text, HasSubstr(named));
  }
}

}  // namespace
}  // namespace weft::examples
