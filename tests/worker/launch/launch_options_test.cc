#include "weft/worker/launch/launch_options.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/base/environment_of.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LaunchOptions parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--", "program"});
  const CommandLine result = parse_command_line(arguments, weft::testing::environment_of({}));
  EXPECT_TRUE(result.options) << result.text;
  return result.options.value_or(LaunchOptions());
}

std::string mistake(const std::vector<std::string>& arguments) {
  const CommandLine result = parse_command_line(arguments, weft::testing::environment_of({}));
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

TEST(LaunchOptions, CertificatesAreNoneOrPerWorker) {
  EXPECT_FALSE(parse({}).certificates);
  EXPECT_TRUE(parse({"--certificates", "per-worker"}).certificates);
  EXPECT_THAT(mistake({"--certificates", "mine", "--", "program"}), HasSubstr("per-worker"));
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

TEST(LaunchOptions, SeveralNodes) {
  const LaunchOptions options =
      parse({"--nnodes", "3", "--node-rank", "2", "--master-addr", "host0", "-n", "4",
             "--join-timeout", "1.5", "--node-timeout", "20"});
  EXPECT_EQ(options.nodes, 3u);
  EXPECT_EQ(options.node, 2u);
  EXPECT_EQ(options.processes, 4u);
  EXPECT_EQ(options.master_addr, "host0");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.join_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(options.node_timeout, std::chrono::seconds(20));
}

// ---- what the environment says

using Variables = std::map<std::string, std::string>;

CommandLine parse_in(const Variables& variables, std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), {"--", "program"});
  return parse_command_line(arguments, weft::testing::environment_of(variables));
}

const Variables kTrainJob = {{"PET_NNODES", "2"},
                             {"PET_NODE_RANK", "1"},
                             {"PET_NPROC_PER_NODE", "4"},
                             {"PET_MASTER_ADDR", "job-node-0-0.job"},
                             {"PET_MASTER_PORT", "29400"}};

TEST(LaunchOptions, APodOfATrainJobIsANode) {
  const LaunchOptions options = parse_in(kTrainJob, {}).options.value_or(LaunchOptions());
  EXPECT_EQ(options.nodes, 2u);
  EXPECT_EQ(options.node, 1u);
  EXPECT_EQ(options.processes, 4u);
  EXPECT_EQ(options.roles[0].count, 4u);
  EXPECT_EQ(options.master_addr, "job-node-0-0.job");
  EXPECT_EQ(options.master_port, 29400);
}

TEST(LaunchOptions, TheCommandLineGoesBeforeTheEnvironment) {
  const LaunchOptions other = parse_in(kTrainJob, {"-n", "3", "--master-addr", "a", "--master-port",
                                                   "7", "--node-rank", "0"})
                                  .options.value_or(LaunchOptions());
  EXPECT_EQ(other.nodes, 2u);
  EXPECT_EQ(other.node, 0u);
  EXPECT_EQ(other.processes, 3u);
  EXPECT_EQ(other.master_addr, "a");
  EXPECT_EQ(other.master_port, 7);
  const LaunchOptions alone =
      parse_in(kTrainJob, {"--nnodes", "1"}).options.value_or(LaunchOptions());
  EXPECT_EQ(alone.nodes, 1u);
  EXPECT_EQ(alone.master_addr, "127.0.0.1");
  EXPECT_EQ(alone.master_port, 0);
}

TEST(LaunchOptions, TheNumberOfNodesMayBeSaidAgain) {
  const LaunchOptions same =
      parse_in(kTrainJob, {"--nnodes", "2"}).options.value_or(LaunchOptions());
  EXPECT_EQ(same.node, 1u);
  EXPECT_EQ(same.master_addr, "job-node-0-0.job");
  EXPECT_THAT(parse_in(kTrainJob, {"--nnodes", "3"}).text, HasSubstr("needs --node-rank"));
}

TEST(LaunchOptions, GpusAreThoseThatAreVisible) {
  Variables pod = kTrainJob;
  pod["CUDA_VISIBLE_DEVICES"] = "4,6";
  for (const char* word : {"gpu", "auto"}) {
    pod["PET_NPROC_PER_NODE"] = word;
    EXPECT_EQ(parse_in(pod, {}).options.value_or(LaunchOptions()).processes, 2u);
  }
  pod["CUDA_VISIBLE_DEVICES"] = "GPU-a,MIG-b,-1,3";
  EXPECT_EQ(parse_in(pod, {}).options.value_or(LaunchOptions()).processes, 2u);
  pod["CUDA_VISIBLE_DEVICES"] = "-1";
  pod["PET_NPROC_PER_NODE"] = "gpu";
  EXPECT_THAT(parse_in(pod, {}).text, HasSubstr("there is no GPU"));
}

TEST(LaunchOptions, ProcessesPerPodMayBeAWord) {
  Variables pod = kTrainJob;
  for (const char* word : {"auto", "cpu"}) {
    pod["PET_NPROC_PER_NODE"] = word;
    EXPECT_GE(parse_in(pod, {}).options.value_or(LaunchOptions()).processes, 1u);
  }
  pod["PET_NPROC_PER_NODE"] = "many";
  EXPECT_THAT(parse_in(pod, {}).text, HasSubstr("'many'"));
}

TEST(LaunchOptions, HalfAnEnvironmentIsNamedUnlessTheOptionsAreComplete) {
  Variables pod = kTrainJob;
  pod.erase("PET_MASTER_ADDR");
  EXPECT_EQ(parse_in(pod, {"--master-addr", "a"}).options.value_or(LaunchOptions()).node, 1u);
  pod["PET_NNODES"] = "many";
  EXPECT_TRUE(parse_in(pod, {"--nnodes", "2", "--node-rank", "0", "--master-addr", "a"})
                  .options.has_value());
  pod = kTrainJob;
  pod.erase("PET_MASTER_ADDR");
  const CommandLine line = parse_in(pod, {});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.text, HasSubstr("MASTER_ADDR is not set"));
}

// A shell with variables of an earlier job, and a launcher inside a rank, start groups of their
// own.
TEST(LaunchOptions, VariablesOfTorchAreNotOfTheLauncher) {
  const LaunchOptions options =
      parse_in({{"MASTER_ADDR", "host7"}, {"RANK", "3"}, {"WORLD_SIZE", "8"}}, {})
          .options.value_or(LaunchOptions());
  EXPECT_EQ(options.nodes, 1u);
  EXPECT_EQ(options.master_addr, "127.0.0.1");
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
  EXPECT_THAT(mistake({"--nnodes", "2", "--", "p"}), HasSubstr("needs --node-rank"));
  EXPECT_THAT(mistake({"--nnodes", "2", "--node-rank", "1", "--", "p"}),
              HasSubstr("--master-addr"));
  EXPECT_THAT(mistake({"--nnodes", "2", "--node-rank", "2", "--master-addr", "h", "--", "p"}),
              HasSubstr("2 is not below --nnodes 2"));
  EXPECT_THAT(mistake({"--node-rank", "1", "--", "p"}), HasSubstr("1 is not below --nnodes 1"));
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
