// Starts the real weft_launch with real processes under it.
//
// This process adopts whatever a launch leaves behind (a "subreaper"). So the kernel itself says
// whether anything is left.
#include <algorithm>
#include <errno.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/sockets/local_socket.h"
#include "weft/sockets/tcp_port.h"
#include "weft/tests/support/spawning_test.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string tool(const char* path) { return absl::StrCat(WEFT_BUILD_DIR, "/", path); }

class Launch : public weft::testing::SpawningTest {
 protected:
  void SetUp() override {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    folder_ = std::filesystem::temp_directory_path() / absl::StrCat("weft_launch_test.", getpid());
    std::filesystem::create_directories(folder_);
    setenv("TMPDIR", folder_.c_str(), 1);
  }

  void TearDown() override {
    end_command();
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "an error file was left";
    std::filesystem::remove_all(folder_);
    unsetenv("TMPDIR");
  }

  // Starts "weft_launch OPTIONS -- launch_test_program PROGRAM".
  void start(std::vector<std::string> options, const std::vector<std::string>& program) {
    options.insert(options.begin(), tool("worker/weft_launch"));
    options.push_back("--");
    options.push_back(tool("tests/worker/launch_test_program"));
    options.insert(options.end(), program.begin(), program.end());
    start_command(options);
  }

  void send(int signal) {
    ASSERT_GT(process_, 0);
    kill(process_, signal);
  }

  // The pid that was printed after `text`. If there is none, it throws, which fails the test:
  // kill(0) and kill(-1) would hit other processes.
  pid_t pid_after(const std::string& text) const {
    const size_t at = output_.find(text);
    const pid_t pid = at == std::string::npos ? 0 : atoi(output_.c_str() + at + text.size());
    if (pid <= 0) throw std::runtime_error(absl::StrCat("no pid after '", text, "' in ", output_));
    return pid;
  }

  // Returns the exit code of the launcher, and checks that no process is left.
  int finish() {
    const int code = SpawningTest::finish();
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process was left behind";
    EXPECT_EQ(errno, ECHILD);
    return code;
  }

  int run(const std::vector<std::string>& options, const std::vector<std::string>& program) {
    start(options, program);
    return finish();
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> result = absl::StrSplit(output_, '\n');
    if (!result.empty() && result.back().empty()) result.pop_back();
    return result;
  }

  static int occurrences(const std::string& text, const std::string& part) {
    int count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++count;
    return count;
  }

  std::filesystem::path folder_;
};

TEST_F(Launch, EachLineCarriesItsRankAndTheStreamsStayApart) {
  EXPECT_EQ(run({"-n", "3"}, {"env", "RANK", "env", "WORLD_SIZE", "complain", "oh"}), 0);
  EXPECT_THAT(lines(),
              UnorderedElementsAre("[0] RANK=0", "[1] RANK=1", "[2] RANK=2", "[0] WORLD_SIZE=3",
                                   "[1] WORLD_SIZE=3", "[2] WORLD_SIZE=3"));
  EXPECT_THAT(errors_, AllOf(HasSubstr("[0] oh\n"), HasSubstr("[1] oh\n"), HasSubstr("[2] oh\n")));
}

TEST_F(Launch, AGroupJoinsOverItsStore) {
  start_command(
      {tool("worker/weft_launch"), "-n", "3", "--", tool("tests/worker/join_test_program")});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(lines(), UnorderedElementsAre("[0] w0.1 joined 3 members, last worker2",
                                            "[1] w1.1 joined 3 members, last worker2",
                                            "[2] w2.1 joined 3 members, last worker2"));
}

TEST_F(Launch, AGroupJoinsOverTlsAndOverPlainTcp) {
  for (const char* mode : {"mtls", "none"}) {
    start_command({"/usr/bin/env", absl::StrCat("WEFT_SECURITY=", mode), tool("worker/weft_launch"),
                   "-n", "2", "--", tool("tests/worker/join_test_program")});
    EXPECT_EQ(finish(), 0) << errors_;
    EXPECT_THAT(lines(), UnorderedElementsAre("[0] w0.1 joined 2 members, last worker1",
                                              "[1] w1.1 joined 2 members, last worker1"));
    output_.clear();
  }
}

TEST_F(Launch, TheSecretMayComeThroughAPipe) {
  start_command({"/bin/bash", "-c",
                 "HOME=/nowhere WEFT_SECURITY=mtls WEFT_SECRET_FILE=<(echo $0) exec $1 -n 2 -- $2",
                 "0123456789abcdef0123456789abcdef", tool("worker/weft_launch"),
                 tool("tests/worker/join_test_program")});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(lines(), UnorderedElementsAre("[0] w0.1 joined 2 members, last worker1",
                                            "[1] w1.1 joined 2 members, last worker1"));
}

TEST_F(Launch, WithCertificatesOfTheirOwnTheProcessesCannotReadTheSecret) {
  start_command(
      {"/bin/bash", "-c",
       "HOME=/nowhere WEFT_SECURITY=mtls WEFT_SECRET_FILE=<(echo $0) "
       "exec $1 -n 2 --certificates per-worker -- sh -c "
       "'ls -l /proc/$PPID/fd | grep -c weft-key; ls -l /proc/$PPID/fd | grep weft-secret; "
       "exec $0' $2",
       "0123456789abcdef0123456789abcdef", tool("worker/weft_launch"),
       tool("tests/worker/join_test_program")});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(lines(),
              UnorderedElementsAre("[0] 2", "[1] 2", "[0] w0.1 joined 2 members, last worker1",
                                   "[1] w1.1 joined 2 members, last worker1"));
}

TEST_F(Launch, ProgramsThatUseC10dAloneFindAStore) {
  start_command(
      {tool("worker/weft_launch"), "-n", "2", "--", tool("tests/worker/c10d_test_program")});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(lines(), UnorderedElementsAre("[0] all 2 came", "[1] all 2 came"));
  for (const char* mode : {"auto", "none"}) {
    output_.clear();
    start_command({"/usr/bin/env", absl::StrCat("WEFT_SECURITY=", mode), tool("worker/weft_launch"),
                   "--c10d-store", "-n", "2", "--", tool("tests/worker/c10d_test_program")});
    EXPECT_EQ(finish(), 0) << errors_;
    EXPECT_THAT(lines(), UnorderedElementsAre("[0] all 2 came to the launcher's store",
                                              "[1] all 2 came to the launcher's store"));
  }
}

TEST_F(Launch, ARestartedRankJoinsAgainAsANewIncarnation) {
  start_command({tool("worker/weft_launch"), "-n", "2", "--on-failure", "restart=1", "--",
                 tool("tests/worker/join_test_program"), "0", "6"});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(lines(), UnorderedElementsAre("[0] w0.1 joined 2 members, last worker1",
                                            "[1] w1.1 joined 2 members, last worker1",
                                            "[0] w0.2 joined 2 members, last worker1"));
  EXPECT_THAT(errors_, HasSubstr("ended with exit code 6; restart 1 of 1"));
}

TEST_F(Launch, RolesReachTheProcesses) {
  EXPECT_EQ(run({"--roles", "ps:1,trainer:2"}, {"env", "ROLE_NAME"}), 0);
  EXPECT_THAT(lines(), UnorderedElementsAre("[0] ROLE_NAME=ps", "[1] ROLE_NAME=trainer",
                                            "[2] ROLE_NAME=trainer"));
}

TEST_F(Launch, TheFirstFailureEndsTheGroupAndGivesTheCode) {
  start({"-n", "3"}, {"catch", "TERM", "print", "ready", "rank", "1", "exit", "7"});
  EXPECT_EQ(finish(), 7);
  EXPECT_THAT(errors_, HasSubstr("ended with exit code 7"));
}

TEST_F(Launch, TheOthersAreAskedToEndByTheFailure) {
  EXPECT_EQ(run({"-n", "2"}, {"catch", "TERM", "not-rank", "0", "exit", "3"}), 3);
  output_.clear();
  errors_.clear();
  // Rank 1 waits. Rank 0 waits too, until the test kills it.
  start({"-n", "2"}, {"catch", "TERM", "pid", "await", "exit", "0"});
  read_until("waiting", 2);
  kill(pid_after("[0] pid "), SIGKILL);
  EXPECT_EQ(finish(), 128 + SIGKILL);
  EXPECT_THAT(output_, HasSubstr("[1] got TERM"));
  EXPECT_THAT(errors_, AllOf(HasSubstr("rank 0 (pid "), HasSubstr("was ended by SIGKILL"),
                             Not(HasSubstr("rank 1"))));
}

TEST_F(Launch, WhoOutlivesTheGraceIsKilled) {
  start({"-n", "2", "--grace", "0.05"}, {"ignore", "TERM", "pid", "forever"});
  read_until("waiting", 2);
  kill(pid_after("[1] pid "), SIGABRT);
  EXPECT_EQ(finish(), 128 + SIGABRT);
  EXPECT_THAT(errors_, HasSubstr("rank 1"));
}

TEST_F(Launch, ContinueLetsTheOthersFinish) {
  start({"-n", "2", "--on-failure", "continue"}, {"catch", "TERM", "pid", "await", "exit", "0"});
  read_until("waiting", 2);
  kill(pid_after("[0] pid "), SIGKILL);
  while (errors_.find("rank 0") == std::string::npos && read_some()) {
  }
  EXPECT_THAT(output_, Not(HasSubstr("got TERM")));
  kill(pid_after("[1] pid "), SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGKILL);
  EXPECT_THAT(output_, HasSubstr("[1] got TERM"));
}

TEST_F(Launch, RestartGivesUpAfterItsCount) {
  EXPECT_EQ(run({"-n", "1", "--on-failure", "restart=2"},
                {"env", "TORCHELASTIC_RESTART_COUNT", "env", "WEFT_GROUP_EPOCH", "exit", "5"}),
            5);
  EXPECT_EQ(output_, absl::StrCat("[0] TORCHELASTIC_RESTART_COUNT=0\n[0] WEFT_GROUP_EPOCH=0\n"
                                  "[0] TORCHELASTIC_RESTART_COUNT=1\n[0] WEFT_GROUP_EPOCH=0\n"
                                  "[0] TORCHELASTIC_RESTART_COUNT=2\n[0] WEFT_GROUP_EPOCH=0\n"));
  EXPECT_THAT(errors_, AllOf(HasSubstr("restart 1 of 2"), HasSubstr("restart 2 of 2")));
}

TEST_F(Launch, SignalsArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    output_.clear();
    start({"-n", "2"}, {"catch", "INT", "catch", "TERM", "catch", "HUP", "await"});
    read_until("waiting", 2);
    send(signal);
    EXPECT_EQ(finish(), 0);
    EXPECT_EQ(occurrences(output_, absl::StrCat("got ", sigabbrev_np(signal))), 2) << output_;
  }
}

TEST_F(Launch, ProcessesThatDieOfAPassedSignalGive128PlusIt) {
  start({"-n", "2"}, {"forever"});
  read_until("waiting", 2);
  send(SIGTERM);
  EXPECT_EQ(finish(), 128 + SIGTERM);
  EXPECT_EQ(errors_, "");
}

TEST_F(Launch, ASecondInterruptKills) {
  start({"-n", "2", "--grace", "600"}, {"catch", "INT", "await", "forever"});
  read_until("waiting", 2);
  send(SIGINT);
  read_until("waiting", 4);
  send(SIGINT);
  EXPECT_EQ(finish(), 128 + SIGKILL);
}

TEST_F(Launch, KillingTheLauncherKillsItsProcesses) {
  start({"-n", "3"}, {"ignore", "TERM", "ignore", "HUP", "forever"});
  read_until("waiting", 3);
  send(SIGKILL);
  int killed = 0;
  int status = 0;
  while (waitpid(-1, &status, 0) > 0) killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  process_ = -1;  // waited for
  EXPECT_EQ(killed, 4) << "the launcher and its three processes";
  std::filesystem::remove_all(folder_);  // error files: nobody was left to remove them
  std::filesystem::create_directories(folder_);
}

TEST_F(Launch, WhatAProcessStartedGoesWithIt) {
  start({"-n", "2"}, {"catch", "TERM", "spawn", "daemon", "await"});
  read_until("spawned", 4);
  send(SIGTERM);
  EXPECT_EQ(finish(), 0);
}

TEST_F(Launch, WhatAProcessStartedGoesAsSoonAsTheProcessDoes) {
  start({"-n", "2"}, {"catch", "TERM", "pid", "spawn", "await"});
  read_until("spawned", 2);
  read_until("waiting", 2);
  const pid_t helper = pid_after("[0] spawned ");
  const FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, helper, 0)));
  ASSERT_TRUE(handle.valid());
  kill(pid_after("[0] pid "), SIGTERM);
  pollfd ended = {handle.get(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 30000), 1) << "rank 1 still runs, but rank 0's helper must be gone";
  send(SIGTERM);
  EXPECT_EQ(finish(), 0);
}

TEST_F(Launch, AnErrorFilesMessageIsReported) {
  EXPECT_EQ(run({"-n", "2"}, {"rank", "1", "error", "the disk is full", "exit", "9"}), 9);
  EXPECT_THAT(errors_, HasSubstr("ended with exit code 9: the disk is full"));
}

TEST_F(Launch, APortInUseIsNamedAndNothingStarts) {
  const auto port = listen_on("127.0.0.1", 0);
  ASSERT_TRUE(port.ok()) << port.status();
  const auto taken = LocalListener::create_named(absl::StrCat("weft-store-", port->port),
                                                 LocalSocket::Kind::kStream);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(run({"--master-port", absl::StrCat(port->port)}, {"print", "started"}), 1);
  EXPECT_EQ(output_, "");
  EXPECT_EQ(errors_, absl::StrCat("weft_launch: rendezvous store at 127.0.0.1:", port->port,
                                  ": another job of this host has the port\n"));
}

TEST_F(Launch, AProgramThatIsNotThereIsNamed) {
  start_command({tool("worker/weft_launch"), "-n", "2", "--", "/no/such/program"});
  EXPECT_EQ(finish(), 127);
  EXPECT_EQ(errors_, "weft_launch: /no/such/program: No such file or directory\n");
}

TEST_F(Launch, AFileThatIsNoProgramIsNamed) {
  const std::string path = folder_ / "text";
  FILE* file = fopen(path.c_str(), "w");
  fputs("\x01\x02 no program\n", file);
  fclose(file);
  EXPECT_EQ(chmod(path.c_str(), 0755), 0);
  start_command({tool("worker/weft_launch"), "-n", "2", "--", path});
  EXPECT_EQ(finish(), 126);
  EXPECT_THAT(errors_, AllOf(HasSubstr("rank 0 could not be started"), HasSubstr(path)));
  EXPECT_EQ(occurrences(errors_, "could not be started"), 1);
  std::filesystem::remove(path);
}

TEST_F(Launch, AMistakeOnTheCommandLineEndsWith2) {
  start_command({tool("worker/weft_launch"), "--nnodes", "2", "--", "true"});
  EXPECT_EQ(finish(), 2);
  EXPECT_THAT(errors_, HasSubstr("--node-rank"));
}

TEST_F(Launch, AProcessInheritsNoSocketOfTheLauncher) {
  EXPECT_EQ(run({}, {"descriptors"}), 0);
  EXPECT_EQ(output_, "[0] descriptors\n");
}

TEST_F(Launch, AFileGetsTheLastStateOfAProgressBar) {
  EXPECT_EQ(run({}, {"write", "10%\\r20%\\r", "write", "100%\\n"}), 0);
  EXPECT_EQ(output_, "[0] 100%\n");
}

TEST_F(Launch, WithoutPrefixTheBytesPassUntouched) {
  EXPECT_EQ(run({"--no-prefix"}, {"write", "10%\\r100%\\nend"}), 0);
  EXPECT_EQ(output_, "10%\r100%\nend");
}

TEST_F(Launch, AReaderThatLeavesDoesNotStopTheProcesses) {
  start({"-n", "1"}, {"catch", "TERM", "await", "print", "unheard", "complain", "heard"});
  read_until("waiting");
  close_output();
  send(SIGTERM);
  EXPECT_EQ(finish(), 0);
  EXPECT_EQ(errors_, "[0] heard\n");
}

TEST_F(Launch, ManyLinesOfManyRanksAllArrive) {
  std::vector<std::string> program;
  for (int i = 0; i < 500; ++i) program.insert(program.end(), {"print", absl::StrCat("line ", i)});
  EXPECT_EQ(run({"-n", "4"}, program), 0);
  EXPECT_EQ(lines().size(), 2000u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(occurrences(output_, absl::StrCat("[", rank, "] line 499\n")), 1);
  }
}

// Python's own launcher starts the same program. This needs the full wheel of tools/oracles.sh.
TEST_F(Launch, TorchrunStartsTheSameProgram) {
  const std::string torchrun = WEFT_SOURCE_DIR "/.deps/oracles/bin/torchrun";
  if (!std::filesystem::exists(torchrun)) GTEST_SKIP() << "no " << torchrun;
  start_command({torchrun, "--no-python", "--nproc-per-node=2", "--rdzv-backend=c10d",
                 "--rdzv-endpoint=127.0.0.1:0", tool("tests/worker/join_test_program")});
  EXPECT_EQ(finish(), 0) << errors_;
  EXPECT_THAT(output_,
              AllOf(HasSubstr("w0.1 joined 2 members"), HasSubstr("w1.1 joined 2 members")));
  // torchrun leaves its folder of logs; weft_launch leaves nothing.
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) left.push_back(entry);
  for (const std::filesystem::path& path : left) {
    EXPECT_THAT(path.filename().string(), HasSubstr("torchelastic"));
    std::filesystem::remove_all(path);
  }
}

}  // namespace
}  // namespace weft::launch
