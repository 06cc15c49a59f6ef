// The command weft_pipeline: what it prints, and how it fails.
#include "weft/pipeline/command/command.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::pipeline_internal {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int code;
  std::string out, errors;
};

Outcome run(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "weft_pipeline");
  std::ostringstream out, errors;
  const int code = run_command(static_cast<int>(arguments.size()), arguments.data(), out, errors);
  return {code, out.str(), errors.str()};
}

TEST(CommandTest, DrawsAndPricesASchedule) {
  const Outcome outcome = run(
      {"--schedule", "zero_bubble", "--workers", "2", "--micro-batches", "3", "--columns", "40"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out,
            "row 1 |0F0-0F1-....0I0-0W0-0F2-0I1-0W1-0I2-0W2-|\n"
            "row 2 |....1F0-1I0-1F1-1I1-1W0-1F2-1I2-1W1-1W2-|\n"
            "step 10, idle 10.0 %\n"
            "row 1: busy 9, results kept 2 at most, messages sent 3\n"
            "row 2: busy 9, results kept 2 at most, messages sent 3\n");
}

TEST(CommandTest, ReadsWhatItWrites) {
  const Outcome csv = run({"--schedule", "one_forward_one_backward", "--csv"});
  EXPECT_EQ(csv.code, 0);
  const std::string file = ::testing::TempDir() + "weft_pipeline_test.csv";
  std::ofstream(file) << csv.out;
  EXPECT_EQ(run({"--file", file.c_str(), "--csv"}).out, csv.out);
  std::ofstream(file) << "0F0,0B0\n1F0,1B0,0F1\n";
  const Outcome bad = run({"--file", file.c_str()});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.errors, HasSubstr("stage 0 is in row 1 (0F0) and in row 2 (0F1)"));
}

TEST(CommandTest, MistakesAreNamed) {
  EXPECT_EQ(run({"--schedule", "none"}).code, 2);
  EXPECT_EQ(run({"--help"}).code, 0);
  const Outcome missing = run({"--file", "/no/such/file"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(missing.errors, "weft_pipeline: cannot read /no/such/file\n");
  const Outcome workers = run({"--workers", "0"});
  EXPECT_EQ(workers.code, 1);
  EXPECT_THAT(workers.errors, HasSubstr("1048576 workers, not 0"));
  const Outcome times = run({"--times", "1,-1,1"});
  EXPECT_EQ(times.code, 1);
  EXPECT_THAT(times.errors, HasSubstr("stage 0: a time is negative or no number"));
}

TEST(CommandTest, SearchIsNeverSlower) {
  EXPECT_THAT(run({"--schedule", "search", "--micro-batches", "6"}).out, HasSubstr("step 19,"));
}

}  // namespace
}  // namespace weft::pipeline_internal
