#include "weft/worker/launch/child_environment.h"

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/launcher/launch_environment.h"
#include "weft/tests/base/environment_of.h"

namespace weft::launch {
namespace {

GroupPlace place() {
  GroupPlace result;
  result.options.processes = 5;
  result.options.roles = {{"ps", 2}, {"trainer", 3}};
  result.store = "unix:weft-store-1";
  result.master_port = 4321;
  result.options.run_id = "job";
  result.options.max_restarts = 3;
  result.nodes = place_of_node({{.roles = result.options.roles}}, 0);
  return result;
}

std::map<std::string, std::string> environment(const std::vector<std::string>& inherited,
                                               const GroupPlace& group, uint32_t rank,
                                               uint32_t restarts) {
  std::map<std::string, std::string> result;
  for (const std::string& entry :
       child_environment(inherited, group, rank, restarts, "/tmp/error.json")) {
    const size_t equals = entry.find('=');
    EXPECT_TRUE(result.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second)
        << entry << " comes twice";
  }
  return result;
}

TEST(ChildEnvironment, HasTorchrunsVariables) {
  auto variables = environment({}, place(), 3, 2);
  const std::map<std::string, std::string> expected = {
      {"RANK", "3"},
      {"LOCAL_RANK", "3"},
      {"WORLD_SIZE", "5"},
      {"LOCAL_WORLD_SIZE", "5"},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_NAME", "trainer"},
      {"ROLE_RANK", "1"},
      {"ROLE_WORLD_SIZE", "3"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "4321"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"WEFT_GROUP_EPOCH", "0"},
      {"WEFT_STORE", "unix:weft-store-1"},
      {"WEFT_STORE_OF", "127.0.0.1:4321"},
  };
  EXPECT_EQ(variables, expected);
}

TEST(ChildEnvironment, SaysWhetherTheLauncherServesAStoreOfC10d) {
  GroupPlace group = place();
  const std::vector<std::string> outer = {"TORCHELASTIC_USE_AGENT_STORE=True", "WEFT_STORE=x:1"};
  auto variables = environment(outer, group, 0, 0);
  EXPECT_EQ(variables.count("TORCHELASTIC_USE_AGENT_STORE"), 0u);
  EXPECT_EQ(variables["WEFT_STORE"], "unix:weft-store-1");
  group.options.c10d_store = true;
  EXPECT_EQ(environment(outer, group, 0, 0)["TORCHELASTIC_USE_AGENT_STORE"], "True");
}

TEST(ChildEnvironment, KeepsWhatItInheritsButNotAnOlderPlace) {
  auto variables = environment({"HOME=/root", "EMPTY=", "A=b=c", "RANK=9", "OMP_NUM_THREADS=4",
                                "WEFT_TERMINAL_COLUMNS=3", "malformed"},
                               place(), 0, 0);
  EXPECT_EQ(variables["HOME"], "/root");
  EXPECT_EQ(variables["EMPTY"], "");
  EXPECT_EQ(variables["A"], "b=c");
  EXPECT_EQ(variables["RANK"], "0");
  EXPECT_EQ(variables["OMP_NUM_THREADS"], "4");
  EXPECT_EQ(variables.count("WEFT_TERMINAL_COLUMNS"), 0u);
  EXPECT_EQ(variables["ROLE_NAME"], "ps");
}

TEST(ChildEnvironment, ARankWithACertificateDoesNotLearnTheSecret) {
  GroupPlace group = place();
  const std::vector<std::string> inherited = {"WEFT_TLS_CERT=outer", "WEFT_SECRET_FILE=secret"};
  EXPECT_EQ(environment(inherited, group, 0, 0)["WEFT_SECRET_FILE"], "secret");
  group.certificates = {{"WEFT_TLS_CERT=first"}, {"WEFT_TLS_CERT=second"}};
  EXPECT_EQ(environment(inherited, group, 0, 0)["WEFT_TLS_CERT"], "first");
  EXPECT_EQ(environment(inherited, group, 1, 0)["WEFT_TLS_CERT"], "second");
  EXPECT_EQ(environment(inherited, group, 0, 0).count("WEFT_SECRET_FILE"), 0u);
}

TEST(ChildEnvironment, TellsOfATerminal) {
  GroupPlace group = place();
  group.terminal_columns = 76;
  EXPECT_EQ(environment({}, group, 0, 0)["WEFT_TERMINAL_COLUMNS"], "76");
}

TEST(ChildEnvironment, IsWhatAWorkerReads) {
  // srun may have started the launcher.
  auto variables = environment({"WEFT_LAUNCHER=slurm", "SLURM_PROCID=0"}, place(), 4, 2);
  const auto read = read_launch_environment(weft::testing::environment_of(variables));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rank, 4u);
  EXPECT_EQ(read->world_size, 5u);
  EXPECT_EQ(read->master_port, 4321);
  EXPECT_EQ(read->restart_count, 2u);
  EXPECT_EQ(read->group_epoch, 0u) << "a restarted rank must meet the ranks that were not";
  EXPECT_EQ(read->store, "unix:weft-store-1");
  EXPECT_FALSE(read->hosts_store());
}

TEST(ErrorFile, GivesTheMessageOfBothForms) {
  EXPECT_EQ(
      error_file_message(R"({"message": {"message": "no disk", "extraInfo": {"timestamp": "1"}}})"),
      "no disk");
  EXPECT_EQ(error_file_message(R"({"message": "no disk"})"), "no disk");
}

TEST(ErrorFile, DamageIsNoMessage) {
  for (const char* damaged : {"", "{", "[]", "{}", R"({"message": 3})", R"({"message": {}})",
                              R"({"message": {"message": []}})", "\xff"}) {
    EXPECT_EQ(error_file_message(damaged), "") << damaged;
  }
}

}  // namespace
}  // namespace weft::launch
