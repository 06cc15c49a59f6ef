// Starts several real launchers on this machine, each as the launcher of a machine of its own.
#include <functional>
#include <signal.h>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/tests/sockets/unused_port.h"
#include "weft/tests/support/launched.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::kWeftLaunch;
using weft::testing::Outcome;
using weft::testing::run_command;
using OnLine = std::function<void(const std::string&)>;

constexpr const char* kProgram = WEFT_BUILD_DIR "/tests/worker/launch_test_program ";
constexpr const char* kJoin = WEFT_BUILD_DIR "/tests/worker/join_test_program";

// The launcher of one node; `options` and `program` as on a command line.
struct Node {
  std::string options;
  std::string program;
};

// Runs the launchers of all nodes at once, after the shell commands `before`. The output ends with
// "node 0: CODE" for each node.
std::string run_nodes(const std::vector<Node>& nodes, const OnLine& on_line = {},
                      const std::string& before = "") {
  const int port = weft::testing::unused_port();
  std::string script = absl::StrCat("exec 2>&1; ", before);
  std::string waiting;
  for (size_t node = 0; node < nodes.size(); ++node) {
    absl::StrAppend(&script, kWeftLaunch, " --nnodes ", nodes.size(), " --node-rank ", node,
                    " --master-addr 127.0.0.1 --master-port ", port, " ", nodes[node].options,
                    " -- ", nodes[node].program, " & p", node, "=$!; ");
    absl::StrAppend(&waiting, "wait $p", node, "; echo \"node ", node, ": $?\"; ");
  }
  return run_command(script + waiting, on_line).output;
}

// Calls `act` with the number behind `text`, at the first line that has it.
OnLine once(const std::string& text, const std::function<void(pid_t)>& act) {
  auto done = std::make_shared<bool>(false);
  return [=](const std::string& line) {
    const size_t at = line.find(text);
    if (at == std::string::npos || *done) return;
    *done = true;
    pid_t number = 0;
    (void)absl::SimpleAtoi(line.substr(at + text.size()), &number);
    if (number > 1) act(number);
  };
}

// Prints the launcher's pid and waits for a signal that ends it.
const char* const kTellLauncher = "sh -c 'echo launcher is $PPID; exec sleep 1000'";

TEST(SeveralNodes, RanksOfThreeNodesMeet) {
  const std::string output = run_nodes({{"-n 2", kJoin}, {"-n 1", kJoin}, {"-n 3", kJoin}});
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_THAT(output, HasSubstr(absl::StrCat("[", rank, "] w", rank,
                                               ".1 joined 6 members, last worker5")));
  }
  EXPECT_THAT(output,
              AllOf(HasSubstr("node 0: 0\n"), HasSubstr("node 1: 0\n"), HasSubstr("node 2: 0\n")));
}

TEST(SeveralNodes, EachProcessHasItsPlace) {
  const std::string ask = absl::StrCat(
      kProgram,
      "env LOCAL_RANK env LOCAL_WORLD_SIZE env WORLD_SIZE env GROUP_RANK env GROUP_WORLD_SIZE "
      "env ROLE_NAME env ROLE_RANK env ROLE_WORLD_SIZE env TORCHELASTIC_RUN_ID");
  const std::string output =
      run_nodes({{"--roles ps:1,trainer:1 --run-id mine", ask}, {"--roles trainer:2", ask}});
  for (const char* line :
       {"[0] LOCAL_RANK=0", "[1] LOCAL_RANK=1", "[2] LOCAL_RANK=0", "[3] LOCAL_RANK=1",
        "[3] LOCAL_WORLD_SIZE=2", "[0] WORLD_SIZE=4", "[3] WORLD_SIZE=4", "[1] GROUP_RANK=0",
        "[2] GROUP_RANK=1", "[2] GROUP_WORLD_SIZE=2", "[0] ROLE_NAME=ps", "[0] ROLE_WORLD_SIZE=1",
        "[1] ROLE_RANK=0", "[2] ROLE_RANK=1", "[3] ROLE_RANK=2", "[3] ROLE_WORLD_SIZE=3",
        "[0] TORCHELASTIC_RUN_ID=mine", "[3] TORCHELASTIC_RUN_ID=mine"}) {
    EXPECT_THAT(output, HasSubstr(absl::StrCat(line, "\n")));
  }
}

// Before launchers that use TLS even on one host.
constexpr const char* kWithSecret =
    "HOME=$(mktemp -d); trap 'rm -r $HOME' EXIT; WEFT_SECRET_FILE=$HOME/secret; umask 077; "
    "echo 0123456789abcdef0123456789abcdef > $WEFT_SECRET_FILE; "
    "export HOME WEFT_SECRET_FILE WEFT_SECURITY=mtls; ";

// The launchers of two nodes.
std::vector<Node> with_certificates(const std::string& program) {
  return {{"-n 2 --certificates per-worker", program}, {"-n 1 --certificates per-worker", program}};
}

TEST(SeveralNodes, RanksWithCertificatesOfTheirOwnMeetWithoutTheSecret) {
  const std::string output =
      run_nodes(with_certificates(
                    absl::StrCat("sh -c 'echo secret ${WEFT_SECRET_FILE-none}; exec ", kJoin, "'")),
                {}, kWithSecret);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(output, HasSubstr(absl::StrCat("[", rank, "] w", rank,
                                               ".1 joined 3 members, last worker2")));
    EXPECT_THAT(output, HasSubstr(absl::StrCat("[", rank, "] secret none\n")));
  }
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 0\n"), HasSubstr("node 1: 0\n")));
}

TEST(SeveralNodes, ARankCannotJoinAsAnother) {
  const std::string output =
      run_nodes(with_certificates(absl::StrCat(
                    "sh -c '[ $RANK = 0 ] || RANK=$((3 - RANK)); export RANK; exec ", kJoin, "'")),
                {}, kWithSecret);
  EXPECT_THAT(
      output,
      ::testing::AnyOf(HasSubstr("the record of worker 'worker1' was written by worker 'rank.2'"),
                       HasSubstr("the record of worker 'worker2' was written by worker 'rank.1'")));
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 1\n"), HasSubstr("node 1: 1\n")));
}

TEST(SeveralNodes, CertificatesNeedASecureMode) {
  const std::string output = run_nodes(with_certificates(kJoin), {}, "export WEFT_SECURITY=none; ");
  EXPECT_THAT(output, AllOf(HasSubstr("--certificates: the workers use none with "
                                      "WEFT_SECURITY=none"),
                            HasSubstr("node 0: 1\n")));
}

TEST(SeveralNodes, AFailureEndsAllNodesWithItsCode) {
  const std::string forever = absl::StrCat(kProgram, "forever");
  const std::string output = run_nodes({{"-n 2", forever},
                                        {"-n 1", absl::StrCat(kProgram, "error 'no disk' exit 7")},
                                        {"-n 1", forever}});
  EXPECT_THAT(output,
              AllOf(HasSubstr("node 0: 7\n"), HasSubstr("node 1: 7\n"), HasSubstr("node 2: 7\n")));
  // Once from its own launcher, and once from each of the others.
  EXPECT_THAT(output, ContainsRegex("weft_launch: rank 2 .pid [0-9]+. ended with exit code 7: no "
                                    "disk"));
  EXPECT_THAT(output, ContainsRegex("weft_launch: node 1 .[^)]*.: rank 2 .pid [0-9]+. ended with "
                                    "exit code 7: no disk"));
}

TEST(SeveralNodes, AProgramThatIsNotThereEndsAllNodes) {
  const std::string output =
      run_nodes({{"-n 1", absl::StrCat(kProgram, "forever")}, {"-n 1", "/no/such/program"}});
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 127\n"), HasSubstr("node 1: 127\n"),
                            HasSubstr("/no/such/program")));
}

TEST(SeveralNodes, WithContinueTheOtherNodesGoOn) {
  const std::string output =
      run_nodes({{"-n 1 --on-failure continue", absl::StrCat(kProgram, "print done")},
                 {"-n 2 --on-failure continue", absl::StrCat(kProgram, "rank 1 exit 5")}});
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 5\n"), HasSubstr("node 1: 5\n"),
                            HasSubstr("[0] done\n"), Not(HasSubstr("node 1 ("))));
}

TEST(SeveralNodes, ASignalToOneLauncherEndsAll) {
  const std::string output =
      run_nodes({{"-n 1", absl::StrCat(kProgram, "forever")}, {"-n 1", kTellLauncher}},
                once("launcher is ", [](pid_t launcher) { kill(launcher, SIGTERM); }));
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 143\n"), HasSubstr("node 1: 143\n"),
                            HasSubstr("the launcher got SIGTERM")));
}

TEST(SeveralNodes, ALauncherThatIsKilledIsALostNode) {
  const std::string output = run_nodes(
      {{"-n 1 --node-timeout 2", absl::StrCat(kProgram, "forever")}, {"-n 1", kTellLauncher}},
      once("launcher is ", [](pid_t launcher) { kill(launcher, SIGKILL); }));
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 1\n"), HasSubstr("node 1: 137\n"),
                            ContainsRegex("node 1 .[^)]*.: lost: ")));
}

TEST(SeveralNodes, TheLauncherWithTheStoreMayBeKilledToo) {
  pid_t launcher = 0;
  bool both = false;
  const OnLine find = once("launcher is ", [&](pid_t pid) { launcher = pid; });
  const std::string output = run_nodes(
      {{"-n 1", kTellLauncher}, {"-n 1 --node-timeout 2", absl::StrCat(kProgram, "forever")}},
      [&](const std::string& line) {
        find(line);
        both = both || absl::StrContains(line, "[1] waiting");
        if (both && launcher > 0) kill(std::exchange(launcher, 0), SIGKILL);
      });
  EXPECT_THAT(output, AllOf(HasSubstr("node 0: 137\n"), HasSubstr("node 1: 1\n"),
                            ContainsRegex("node 0 .[^)]*.: lost: ")));
}

TEST(SeveralNodes, ANodeThatDoesNotComeIsNamed) {
  const Outcome outcome = run_command(
      absl::StrCat(kWeftLaunch, " --nnodes 3 --node-rank 0 --master-addr 127.0.0.1 --master-port ",
                   weft::testing::unused_port(), " --join-timeout 0.2 -- true 2>&1"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, HasSubstr("these nodes did not come in time: 1, 2"));
}

// srun starts one launcher per node, and gives each its number.
TEST(SeveralNodes, TasksOfSlurmAreNodes) {
  const std::string slurm = absl::StrCat(
      "env -u RANK -u WORLD_SIZE MASTER_ADDR=127.0.0.1 MASTER_PORT=", weft::testing::unused_port(),
      " SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 "
      "SLURM_STEP_NODELIST='n[1-2]' SLURM_STEP_TASKS_PER_NODE='1(x2)' ");
  std::string script = "exec 2>&1; ";
  for (const int node : {0, 1}) {
    absl::StrAppend(&script, slurm, "SLURM_NODEID=", node, " SLURM_PROCID=", node, " ", kWeftLaunch,
                    " -n 2 -- ", kJoin, " & ");
  }
  const Outcome outcome = run_command(script + "wait");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("[", rank, "] w", rank,
                                                       ".1 joined 4 members, last worker3")));
  }
}

}  // namespace
}  // namespace weft::launch
