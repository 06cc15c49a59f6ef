#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/examples/ddp_mnist/options.h"

namespace weft::examples {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

DdpMnistCommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "ddp_mnist");
  return parse_ddp_mnist_options(static_cast<int>(arguments.size()), arguments.data());
}

TEST(DdpMnistOptionsTest, HelpNamesEveryOptionItsDefaultAndHowToStart) {
  const DdpMnistCommandLine help = parse({"--help"});
  EXPECT_FALSE(help.options.has_value());
  EXPECT_EQ(help.exit_code, 0);
  for (const char* option : {"--data [^\n]*=/usr/share/datasets/fashion-mnist", "--epochs [^\n]*=2",
                             "--batch [^\n]*=64", "--lr [^\n]*=0.03", "--seed [^\n]*=1"}) {
    EXPECT_THAT(help.text, ContainsRegex(option));
  }
  for (const char* text :
       {"--limit", "--double", "--whole-batch", "--checkpoint", "--resume", "--losses", "--compare",
        "weft_launch -n 2 -- ddp_mnist", "torchrun --no-python --nproc-per-node 2 ddp_mnist"}) {
    EXPECT_THAT(help.text, HasSubstr(text));
  }
}

TEST(DdpMnistOptionsTest, EveryOptionArrivesInItsField) {
  const DdpMnistCommandLine line = parse({"--data",    "d",
                                          "--epochs",  "4",
                                          "--batch",   "5",
                                          "--lr",      "0.5",
                                          "--seed",    "6",
                                          "--limit",   "7",
                                          "--double",  "--whole-batch",
                                          "8",         "--checkpoint",
                                          "c",         "--resume",
                                          "--losses",  "l",
                                          "--compare", "m"});
  ASSERT_TRUE(line.options.has_value()) << line.text;
  const DdpMnistOptions& options = *line.options;
  EXPECT_EQ(options.data, "d");
  EXPECT_EQ(options.epochs, 4);
  EXPECT_EQ(options.batch, 5);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.seed, 6u);
  EXPECT_EQ(options.limit, 7);
  EXPECT_TRUE(options.double_numbers);
  EXPECT_EQ(options.whole_batch, 8);
  EXPECT_EQ(options.checkpoint, "c");
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.losses, "l");
  EXPECT_EQ(options.compare, "m");
}

TEST(DdpMnistOptionsTest, MistakesAreNamedAndEndTheProgramWithTwo) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> mistakes = {
      {{"--epochs", "0"}, "--epochs"},
      {{"--batch", "60001"}, "--batch"},
      {{"--lr", "-1"}, "--lr"},
      {{"--limit", "many"}, "--limit"},
      {{"--whole-batch", "0"}, "--whole-batch"},
      {{"--resume"}, "--resume requires --checkpoint"},
      {{"--no-such-thing"}, "no-such-thing"}};
  for (const auto& [arguments, named] : mistakes) {
    const DdpMnistCommandLine line = parse(arguments);
    EXPECT_FALSE(line.options.has_value()) << named;
    EXPECT_EQ(line.exit_code, 2) << named;
    EXPECT_THAT(line.text, HasSubstr(named));
  }
}

}  // namespace
}  // namespace weft::examples
