#include "weft/worker/launch/node_place.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::launch {
namespace {

using ::testing::ElementsAre;

NodeRecord node(std::vector<Role> roles) {
  return {.host = "h", .nodes = 3, .roles = std::move(roles)};
}

TEST(NodePlace, RanksFollowThoseOfTheNodesBefore) {
  const std::vector<NodeRecord> records = {
      node({{"ps", 1}, {"trainer", 2}}), node({{"trainer", 4}}), node({{"trainer", 1}, {"ps", 2}})};
  const NodePlace first = place_of_node(records, 0);
  EXPECT_EQ(first.node, 0u);
  EXPECT_EQ(first.nodes, 3u);
  EXPECT_EQ(first.first_rank, 0u);
  EXPECT_EQ(first.world_size, 10u);
  EXPECT_THAT(first.roles, ElementsAre(RoleShare{"ps", 1, 0, 3}, RoleShare{"trainer", 2, 0, 7}));
  const NodePlace second = place_of_node(records, 1);
  EXPECT_EQ(second.first_rank, 3u);
  EXPECT_THAT(second.roles, ElementsAre(RoleShare{"trainer", 4, 2, 7}));
  const NodePlace third = place_of_node(records, 2);
  EXPECT_EQ(third.first_rank, 7u);
  EXPECT_THAT(third.roles, ElementsAre(RoleShare{"trainer", 1, 6, 7}, RoleShare{"ps", 2, 1, 3}));
}

TEST(NodePlace, TextsCanBeReadBack) {
  NodeRecord record = node({{"ps", 1}, {"trainer", 2}});
  record.run_id = "job \"7\"";
  record.token = "1-2";
  EXPECT_EQ(*parse_node_record(to_text(record)), record);
  const std::vector<NodeRecord> both = {record, node({})};
  EXPECT_EQ(*parse_node_records(to_text(both)), both);
  const NodeFailure failure = {2, 137, "rank 5 (pid 7) was ended by SIGKILL: no \n memory"};
  EXPECT_EQ(*parse_node_failure(to_text(failure), 3), failure);
}

TEST(NodePlace, AFailureOfNoNodeOrWithoutACodeIsRefused) {
  for (const NodeFailure& failure : {NodeFailure{3, 1, ""}, NodeFailure{0, 0, ""},
                                     NodeFailure{0, 256, ""}, NodeFailure{0, -1, ""}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse_node_failure(to_text(failure), 3).status()));
  }
}

TEST(NodePlace, WhatIsNoUtf8IsReplaced) {
  EXPECT_TRUE(parse_node_failure(to_text(NodeFailure{0, 1, "\xff"}), 1).ok());
}

TEST(NodePlace, DamagedTextsAreRefused) {
  for (const char* damaged :
       {"", "{", "[]", "7", "{}", R"({"host": 3})", R"({"node": 0, "code": "1", "text": ""})",
        R"({"host": "a", "nodes": 1, "roles": [["x"]], "run_id": "", "token": ""})",
        R"({"host": "a", "nodes": 1, "roles": [3], "run_id": "", "token": ""})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(parse_node_record(damaged).status())) << damaged;
    EXPECT_TRUE(absl::IsInvalidArgument(parse_node_records(damaged).status())) << damaged;
    EXPECT_TRUE(absl::IsInvalidArgument(parse_node_failure(damaged, 9).status())) << damaged;
  }
}

}  // namespace
}  // namespace weft::launch
