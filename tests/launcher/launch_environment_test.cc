#include "weft/launcher/launch_environment.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/base/environment_of.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchEnvironment> read(const Variables& variables) {
  return read_launch_environment(testing::environment_of(variables));
}

std::string problem(const Variables& variables) {
  const absl::Status status = read(variables).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

Variables by_hand() {
  return {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "host"}, {"MASTER_PORT", "29500"}};
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(LaunchEnvironment, FourVariablesAreEnough) {
  const auto environment = read(by_hand());
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->rank, 1u);
  EXPECT_EQ(environment->world_size, 3u);
  EXPECT_EQ(environment->local_rank, 1u);
  EXPECT_EQ(environment->local_world_size, 3u);
  EXPECT_EQ(environment->master_addr, "host");
  EXPECT_EQ(environment->master_port, 29500);
  EXPECT_EQ(environment->run_id, "weft");
  EXPECT_EQ(environment->restart_count, 0u);
  EXPECT_EQ(environment->group_epoch, 0u);
  EXPECT_EQ(environment->role_name, "");
  EXPECT_FALSE(environment->agent_hosts_store);
}

TEST(LaunchEnvironment, ReadsWhatTorchrunSets) {
  Variables variables = by_hand();
  variables.insert({{"LOCAL_RANK", "0"},
                    {"LOCAL_WORLD_SIZE", "1"},
                    {"ROLE_NAME", "trainer"},
                    {"TORCHELASTIC_RUN_ID", "none"},
                    {"TORCHELASTIC_RESTART_COUNT", "2"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const auto environment = read(variables);
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(environment->local_rank, 0u);
  EXPECT_EQ(environment->local_world_size, 1u);
  EXPECT_EQ(environment->role_name, "trainer");
  EXPECT_EQ(environment->run_id, "none");
  EXPECT_EQ(environment->restart_count, 2u);
  EXPECT_TRUE(environment->agent_hosts_store);
}

TEST(LaunchEnvironment, UnderTorchrunARestartIsANewEpochUnderWeftLaunchItIsNot) {
  const Variables restarted = with(by_hand(), "TORCHELASTIC_RESTART_COUNT", "2");
  EXPECT_EQ(read(restarted)->group_epoch, 2u);
  EXPECT_EQ(read(with(restarted, "WEFT_GROUP_EPOCH", "0"))->group_epoch, 0u);
}

TEST(LaunchEnvironment, RankZeroHostsTheStoreUnlessTheLauncherDoes) {
  const Variables rank0 = with(by_hand(), "RANK", "0");
  EXPECT_TRUE(read(rank0)->hosts_store());
  EXPECT_FALSE(read(by_hand())->hosts_store());
  EXPECT_FALSE(read(with(rank0, "WEFT_STORE", "host:1"))->hosts_store());
  EXPECT_EQ(read(with(by_hand(), "WEFT_STORE", "host:1"))->store, "host:1");
  const Variables of_this =
      with(with(by_hand(), "WEFT_STORE", "x:1"), "WEFT_STORE_OF", "host:29500");
  EXPECT_EQ(read(of_this)->store, "x:1");
  EXPECT_EQ(read(with(of_this, "MASTER_PORT", "1"))->store, "") << "another launcher has set it";
  for (const char* yes : {"True", "true", "1"}) {
    const auto place = read(with(rank0, "TORCHELASTIC_USE_AGENT_STORE", yes));
    EXPECT_TRUE(place->agent_hosts_store);
    EXPECT_TRUE(place->hosts_store()) << "the agent's store only tells where rank 0 hosts";
  }
  for (const char* no : {"False", "0", ""}) {
    EXPECT_FALSE(read(with(rank0, "TORCHELASTIC_USE_AGENT_STORE", no))->agent_hosts_store);
  }
}

TEST(LaunchEnvironment, NamesEveryMissingVariableAtOnce) {
  EXPECT_THAT(problem({{"RANK", "0"}}),
              AllOf(HasSubstr("WORLD_SIZE is not set"), HasSubstr("MASTER_ADDR is not set"),
                    HasSubstr("MASTER_PORT is not set"), HasSubstr("weft_launch")));
  EXPECT_THAT(problem({{"MASTER_ADDR", "host"}}),
              AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE is not set"),
                    HasSubstr("MASTER_PORT is not set")));
  EXPECT_THAT(problem(with(by_hand(), "MASTER_ADDR", "")), HasSubstr("MASTER_ADDR is not set"));
}

TEST(LaunchEnvironment, NamesEveryBadVariableWithItsValue) {
  Variables variables = by_hand();
  variables["RANK"] = "one";
  variables["MASTER_PORT"] = "70000";
  variables["TORCHELASTIC_RESTART_COUNT"] = "-1";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "maybe";
  EXPECT_THAT(problem(variables), AllOf(HasSubstr("RANK='one'"), HasSubstr("MASTER_PORT='70000'"),
                                        HasSubstr("TORCHELASTIC_RESTART_COUNT='-1'"),
                                        HasSubstr("TORCHELASTIC_USE_AGENT_STORE='maybe'"),
                                        Not(HasSubstr("WORLD_SIZE="))));
}

TEST(LaunchEnvironment, RefusesNumbersOutOfRange) {
  for (const char* bad :
       {"0", "-1", "3.5", "1e3", "4294967296", "99999999999999999999", " ", "0x3"}) {
    EXPECT_THAT(problem(with(by_hand(), "WORLD_SIZE", bad)), HasSubstr("WORLD_SIZE")) << bad;
  }
  for (const char* bad : {"0", "65536", "-29500"}) {
    EXPECT_THAT(problem(with(by_hand(), "MASTER_PORT", bad)), HasSubstr("MASTER_PORT")) << bad;
  }
}

TEST(LaunchEnvironment, RefusesAPlaceOutsideTheGroup) {
  EXPECT_THAT(problem(with(by_hand(), "RANK", "3")), HasSubstr("RANK=3 is not below WORLD_SIZE=3"));
  EXPECT_THAT(problem(with(by_hand(), "LOCAL_WORLD_SIZE", "1")), HasSubstr("LOCAL_RANK=1"));
  EXPECT_THAT(problem(with(by_hand(), "LOCAL_WORLD_SIZE", "4")),
              HasSubstr("LOCAL_WORLD_SIZE=4 is above WORLD_SIZE=3"));
}

}  // namespace
}  // namespace weft
