#include "weft/worker/launch/launch_options.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LaunchOptions parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--", "program"});
  const CommandLine result = parse_command_line(arguments);
  EXPECT_TRUE(result.options) << result.text;
  return result.options.value_or(LaunchOptions());
}

std::string mistake(const std::vector<std::string>& arguments) {
  const CommandLine result = parse_command_line(arguments);
  EXPECT_FALSE(result.options);
  EXPECT_EQ(result.exit_code, 2);
  return result.text;
}

TEST(LaunchOptions, Defaults) {
  const LaunchOptions options = parse({});
  EXPECT_EQ(options.processes, 1u);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_EQ(options.on_failure, FailurePolicy::kEnd);
  EXPECT_EQ(options.max_restarts, 0u);
  EXPECT_EQ(options.grace, std::chrono::seconds(10));
  EXPECT_TRUE(options.prefix);
  ASSERT_EQ(options.roles.size(), 1u);
  EXPECT_EQ(options.roles[0].name, "default");
  EXPECT_THAT(options.program, ElementsAre("program"));
}

TEST(LaunchOptions, TheProgramKeepsItsOwnFlags) {
  const CommandLine result =
      parse_command_line({"-n", "2", "--", "./train", "--grace", "-n", "--", "--help"});
  ASSERT_TRUE(result.options) << result.text;
  EXPECT_EQ(result.options->processes, 2u);
  EXPECT_THAT(result.options->program, ElementsAre("./train", "--grace", "-n", "--", "--help"));
}

TEST(LaunchOptions, ReadsEveryOption) {
  const LaunchOptions options = parse(
      {"--nproc-per-node", "3", "--nnodes", "1", "--master-addr", "::1", "--master-port", "29500",
       "--run-id", "job", "--on-failure", "continue", "--grace", "0.5", "--no-prefix"});
  EXPECT_EQ(options.processes, 3u);
  EXPECT_EQ(options.master_addr, "::1");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.run_id, "job");
  EXPECT_EQ(options.on_failure, FailurePolicy::kContinue);
  EXPECT_EQ(options.grace, std::chrono::milliseconds(500));
  EXPECT_FALSE(options.prefix);
}

TEST(LaunchOptions, RestartTakesACount) {
  EXPECT_EQ(parse({"--on-failure", "restart"}).max_restarts, 3u);
  EXPECT_EQ(parse({"--on-failure", "restart=7"}).max_restarts, 7u);
  EXPECT_EQ(parse({"--on-failure=restart=0"}).max_restarts, 0u);
  EXPECT_EQ(parse({"--on-failure=restart"}).on_failure, FailurePolicy::kRestart);
}

TEST(LaunchOptions, RolesSetTheNumberOfProcesses) {
  const LaunchOptions options = parse({"--roles", "ps:1,trainer:4"});
  EXPECT_EQ(options.processes, 5u);
  ASSERT_EQ(options.roles.size(), 2u);
  EXPECT_EQ(options.roles[1].name, "trainer");
  EXPECT_EQ(options.roles[1].count, 4u);
  EXPECT_EQ(parse({"-n", "5", "--roles", "ps:1,trainer:4"}).processes, 5u);
}

TEST(LaunchOptions, MistakesAreNamed) {
  EXPECT_THAT(mistake({"-n", "2"}), HasSubstr("program"));
  EXPECT_THAT(mistake({"-n", "2", "--"}), HasSubstr("program"));
  EXPECT_THAT(mistake({"-n", "0", "--", "p"}), HasSubstr("nproc-per-node"));
  EXPECT_THAT(mistake({"-n", "many", "--", "p"}), HasSubstr("many"));
  EXPECT_THAT(mistake({"--master-port", "70000", "--", "p"}), HasSubstr("70000"));
  EXPECT_THAT(mistake({"--master-port", "-1", "--", "p"}), HasSubstr("-1"));
  EXPECT_THAT(mistake({"--nnodes", "2", "--", "p"}), HasSubstr("torchrun"));
  EXPECT_THAT(mistake({"--grace", "-1", "--", "p"}), HasSubstr("grace"));
  EXPECT_THAT(mistake({"--unknown", "--", "p"}), HasSubstr("--unknown"));
  EXPECT_THAT(mistake({"stray", "--", "p"}), HasSubstr("stray"));
  for (const char* policy : {"stop", "restart=", "restart=x", "restart=-1", "end=1", ""}) {
    EXPECT_THAT(mistake({absl::StrCat("--on-failure=", policy), "--", "p"}),
                HasSubstr("--on-failure"))
        << policy;
  }
  for (const char* roles : {"ps", "ps:0", ":1", "ps:x", "ps:1,", "ps:1,ps:2"}) {
    EXPECT_THAT(mistake({"--roles", roles, "--", "p"}), HasSubstr("--roles")) << roles;
  }
  EXPECT_THAT(mistake({"-n", "3", "--roles", "ps:1,t:1", "--", "p"}), HasSubstr("add up to 2"));
}

TEST(LaunchOptions, HelpIsNoMistake) {
  const CommandLine result = parse_command_line({"--help"});
  EXPECT_FALSE(result.options);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.text, HasSubstr("--on-failure"));
}

}  // namespace
}  // namespace weft::launch
