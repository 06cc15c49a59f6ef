// Checks the expansion of SLURM's lists. The expected host names are those that
// `scontrol show hostnames` of SLURM 22.05 prints.
#include "weft/launcher/internal/slurm_lists.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::launcher_internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> hosts(const std::string& list) {
  const auto expanded = expand_node_list(list);
  EXPECT_TRUE(expanded.ok()) << list << ": " << expanded.status();
  return expanded.value_or(std::vector<std::string>());
}

std::string problem_of_hosts(const std::string& list) {
  const absl::Status status = expand_node_list(list).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << list << ": " << status;
  return std::string(status.message());
}

std::string problem_of_counts(const std::string& list) {
  const absl::Status status = expand_counts(list).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << list << ": " << status;
  return std::string(status.message());
}

TEST(SlurmLists, NodeListsAreExpandedAsScontrolDoes) {
  EXPECT_THAT(hosts("a"), ElementsAre("a"));
  EXPECT_THAT(hosts("n[01-03,7],login"), ElementsAre("n01", "n02", "n03", "n7", "login"));
  EXPECT_THAT(hosts("rack[1-2]n[1-3]"),
              ElementsAre("rack1n1", "rack1n2", "rack1n3", "rack2n1", "rack2n2", "rack2n3"));
  EXPECT_THAT(hosts("n[0-1]-[08-10]"),
              ElementsAre("n0-08", "n0-09", "n0-10", "n1-08", "n1-09", "n1-10"));
  EXPECT_THAT(hosts("n[009-010].site"), ElementsAre("n009.site", "n010.site"));
}

TEST(SlurmLists, WhatIsNoNodeListIsRefused) {
  EXPECT_THAT(problem_of_hosts(""), HasSubstr("a name is empty"));
  EXPECT_THAT(problem_of_hosts("a,,b"), HasSubstr("a name is empty"));
  EXPECT_THAT(problem_of_hosts("a,"), HasSubstr("a name is empty"));
  EXPECT_THAT(problem_of_hosts("n[1-3"), HasSubstr("not closed"));
  EXPECT_THAT(problem_of_hosts("n1]"), HasSubstr("']' is not expected"));
  EXPECT_THAT(problem_of_hosts("n[3-1]"), HasSubstr("'3-1' is backwards"));
  EXPECT_THAT(problem_of_hosts("n[]"), HasSubstr("'' is not a number"));
  EXPECT_THAT(problem_of_hosts("n[1-]"), HasSubstr("'' is not a number"));
  EXPECT_THAT(problem_of_hosts("n[x]"), HasSubstr("'x' is not a number"));
  EXPECT_THAT(problem_of_hosts("n[1-2-3]"), HasSubstr("'2-3' is not a number"));
  EXPECT_THAT(problem_of_hosts("n 1"), HasSubstr("' ' is not expected"));
  EXPECT_THAT(problem_of_hosts("n[+1]"), HasSubstr("'+1' is not a number"));
}

TEST(SlurmLists, LongListsAreRefusedBeforeTheyAreMade) {
  EXPECT_EQ(hosts("n[1-65536]").size(), kMostEntries);
  EXPECT_THAT(problem_of_hosts("n[1-65537]"), HasSubstr("more than 65536 entries"));
  EXPECT_THAT(problem_of_hosts("n[0-999999999]"), HasSubstr("more than 65536 entries"));
  EXPECT_THAT(problem_of_hosts("n[0-999][0-999]"), HasSubstr("more than 65536 entries"));
  EXPECT_THAT(problem_of_hosts("n[1-65536],m"), HasSubstr("more than 65536 entries"));
  EXPECT_THAT(problem_of_hosts("n[1-65536,7]"), HasSubstr("more than 65536 entries"));
  EXPECT_THAT(problem_of_hosts("n[0-4294967296]"), HasSubstr("at most 9 digits"));
  EXPECT_THAT(problem_of_hosts(std::string(256, 'n')), HasSubstr("longer than 255"));
  EXPECT_THAT(problem_of_hosts(std::string(255, 'n') + "[1-2]"), HasSubstr("longer than 255"));
}

TEST(SlurmLists, CountsMayRepeat) {
  EXPECT_THAT(*expand_counts("3,1"), ElementsAre(3u, 1u));
  EXPECT_THAT(*expand_counts("4(x2),3,1(x1)"), ElementsAre(4u, 4u, 3u, 1u));
  EXPECT_THAT(problem_of_counts(""), HasSubstr("'' is not a number"));
  EXPECT_THAT(problem_of_counts("4(x2"), HasSubstr("not closed"));
  EXPECT_THAT(problem_of_counts("4(2)"), HasSubstr("'4(2)' is not a number"));
  EXPECT_THAT(problem_of_counts("(x2)"), HasSubstr("'' is not a number"));
  EXPECT_THAT(problem_of_counts("4(x)"), HasSubstr("'' is not a number"));
  EXPECT_THAT(problem_of_counts("-1"), HasSubstr("'-1' is not a number"));
  EXPECT_THAT(problem_of_counts("1(x65537)"), HasSubstr("more than 65536 entries"));
  EXPECT_THAT(problem_of_counts("1(x65536),1"), HasSubstr("more than 65536 entries"));
}

}  // namespace
}  // namespace weft::launcher_internal
