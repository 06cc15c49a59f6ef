#include "weft/bench/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::bench {
namespace {

std::vector<std::string> names_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.push_back(row.name);
  return names;
}

TEST(Rows, AreThoseTheComparisonPromises) {
  EXPECT_THAT(names_of(all_rows()),
              testing::ElementsAre("small call", "in flight 64", "in flight 1000", "send 1 MB",
                                   "send 16 MB", "send 64 MB", "send 256 MB", "echo 64 MB",
                                   "dist autograd round", "rref life", "after 2 s idle"));
}

TEST(Rows, SelectionKeepsTheirOrder) {
  const auto rows = select_rows({"rref life", "small call"});
  ASSERT_TRUE(rows.ok());
  EXPECT_THAT(names_of(*rows), testing::ElementsAre("small call", "rref life"));
}

TEST(Rows, NoNameSelectsAll) { EXPECT_EQ(select_rows({})->size(), all_rows().size()); }

TEST(Rows, UnknownNameIsNamedTogetherWithThoseThatExist) {
  const auto rows = select_rows({"big call"});
  ASSERT_TRUE(absl::IsInvalidArgument(rows.status()));
  EXPECT_THAT(std::string(rows.status().message()),
              testing::AllOf(testing::HasSubstr("\"big call\""), testing::HasSubstr("rref life")));
}

TEST(Rows, OnlyTimesAreBetterWhenLower) {
  for (const Row& row : all_rows()) EXPECT_EQ(row.lower_is_better(), row.unit == "us") << row.name;
}

}  // namespace
}  // namespace weft::bench
