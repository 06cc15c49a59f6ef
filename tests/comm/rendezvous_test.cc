// Real processes call init_process_group: with environment variables, an address, a file, and under
// weft_launch.
//
// Where the processes' arguments do not fit together, the tests check what each process is told.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/sockets/tcp_port.h"
#include "weft/tests/sockets/unused_port.h"
#include "weft/tests/support/launched.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Removes the variables of the shell that runs this test, and silences c10d's log.
constexpr const char* kJoin =
    "env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT -u LOCAL_RANK -u LOCAL_WORLD_SIZE "
    "-u TORCHELASTIC_RESTART_COUNT -u TORCHELASTIC_RUN_ID -u TORCHELASTIC_USE_AGENT_STORE "
    "TORCH_CPP_LOG_LEVEL=FATAL ";

std::string program(const std::string& arguments) {
  return absl::StrCat(WEFT_BUILD_DIR, "/tests/comm/join_group ", arguments);
}
std::string join(const std::string& variables, const std::string& arguments) {
  return absl::StrCat(kJoin, variables, " ", program(arguments));
}

std::vector<Outcome> run_together(const std::vector<std::string>& commands) {
  std::vector<Outcome> outcomes(commands.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < commands.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = run_command(commands[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Runs a server and a rank that stops it (SIGSTOP), and returns what the rank printed. After 30 s
// the rank is killed; the server is killed in any case.
Outcome run_stopping(const std::string& server, const std::string& rank) {
  return run_command(absl::StrCat(server, " & server=$!; timeout -s KILL 30 ", rank,
                                  " stop=$server; code=$?; kill -KILL $server; "
                                  "wait $server 2>/dev/null; exit $code"));
}

std::string address(int rank, int size, int port) {
  return absl::StrCat("MASTER_ADDR=127.0.0.1 MASTER_PORT=", port, " RANK=", rank,
                      " WORLD_SIZE=", size);
}

void expect_all_joined(const std::vector<Outcome>& outcomes) {
  const int size = static_cast<int>(outcomes.size());
  for (int rank = 0; rank < size; ++rank) {
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("rank ", rank, " of ", size, " joined")));
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("sum ", size * (size + 1) / 2)));
  }
}

TEST(Rendezvous, ByVariables) {
  const int port = unused_port();
  std::vector<std::string> commands;
  for (int rank = 0; rank < 3; ++rank) commands.push_back(join(address(rank, 3, port), "again=1"));
  const std::vector<Outcome> outcomes = run_together(commands);
  expect_all_joined(outcomes);
  EXPECT_THAT(outcomes[2].output, HasSubstr("joined 'second' over weft_same_host"));
}

TEST(Rendezvous, AProcessWithoutALauncherIsAlone) {
  expect_all_joined(run_together({join("", "")}));
}

TEST(Rendezvous, RankAndSizeInTheOptionsGoBeforeVariables) {
  const std::string place = absl::StrCat("MASTER_ADDR=127.0.0.1 MASTER_PORT=", unused_port());
  expect_all_joined(
      run_together({join(place, "rank=0 size=2"), join(place + " RANK=7", "rank=1 size=2")}));
}

TEST(Rendezvous, ByAddress) {
  const std::string method = absl::StrCat("backend=gloo method=tcp://127.0.0.1:", unused_port());
  expect_all_joined(
      run_together({join("", method + " size=2 rank=0"), join("", method + " size=2 rank=1")}));
}

TEST(Rendezvous, ByFile) {
  std::string path = (std::filesystem::temp_directory_path() / "weft_join.XXXXXX").string();
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  close(file);
  std::filesystem::remove(path);
  std::vector<std::string> commands;
  for (int rank = 0; rank < 3; ++rank) {
    commands.push_back(join("", absl::StrCat("method=file://", path, " size=3 rank=", rank)));
  }
  expect_all_joined(run_together(commands));
  std::filesystem::remove(path);
}

TEST(Rendezvous, UnderTheLauncher) {
  const Outcome outcome =
      run_command(absl::StrCat(weft::testing::kWeftLaunch, " -n 3 -- ", program("again=1")));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr(absl::StrCat("rank ", rank, " of 3 joined 'default'")),
                      HasSubstr(absl::StrCat("rank ", rank, " of 3 joined 'second'"))));
  }
}

// The launcher's store outlives the first incarnations and remembers them. The ranks come back one
// by one.
TEST(Rendezvous, RestartedRanksMeetOnTheSameStore) {
  const Outcome outcome = run_command(absl::StrCat(
      weft::testing::kWeftLaunch, " -n 3 --on-failure=restart=5 -- ", program("die=1"), " 2>&1"));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 of 3 met all in life 1"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("rank ", rank, " of 3 met all in life")));
  }
}

TEST(Rendezvous, NoRankServesWhereTheLauncherDoes) {
  const int port = unused_port();
  // torchrun's agent hosts the store, so no rank may host it: rank 0 waits for it like the others.
  const std::string agent = address(0, 2, port) + " TORCHELASTIC_USE_AGENT_STORE=True";
  const Outcome outcome = run_command(join(agent, "timeout=1500"));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("127.0.0.1:", port)));
}

TEST(Rendezvous, MissingAndBadVariablesAreNamed) {
  const Outcome half = run_command(join("RANK=0", ""));
  EXPECT_EQ(half.code, 3);
  EXPECT_THAT(half.output,
              AllOf(HasSubstr("WORLD_SIZE is not set"), HasSubstr("MASTER_ADDR is not set"),
                    HasSubstr("MASTER_PORT is not set")));
  const Outcome bad =
      run_command(join("RANK=two WORLD_SIZE=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=66666", ""));
  EXPECT_THAT(bad.output, AllOf(HasSubstr("RANK='two'"), HasSubstr("WORLD_SIZE='0'"),
                                HasSubstr("MASTER_PORT='66666'")));
  EXPECT_THAT(run_command(join(address(3, 3, 1), "")).output,
              HasSubstr("RANK=3 is not below WORLD_SIZE=3"));
  const auto refused = [](const std::string& arguments, const std::string& text) {
    const Outcome outcome = run_command(join("", arguments));
    EXPECT_EQ(outcome.code, 3);
    EXPECT_THAT(outcome.output, HasSubstr(text));
  };
  refused("method=tcp://127.0.0.1:1", "needs rank and world_size");
  refused("method=file:///tmp/x", "needs rank and world_size");
  refused("method=tcp://127.0.0.1 rank=0 size=1", "is not tcp://HOST:PORT");
  refused("method=tcp://:80 rank=0 size=1", "is not tcp://HOST:PORT");
  refused("method=tcp://a:70000 rank=0 size=1", "is not tcp://HOST:PORT");
  refused("method=file://here rank=0 size=1", "is not file:///PATH");
  refused("method=file:///no/such/folder/x rank=0 size=1 timeout=1000", "/no/such/folder/x");
  refused("method=mpi:// rank=0 size=1", "is no init_method");
}

// A rank that comes after the others have given up finds nobody, so two of three must report
// `text`.
void expect_all_told(const std::vector<Outcome>& outcomes, const std::string& text) {
  int told = 0;
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.code, 3);
    EXPECT_THAT(outcome.output, AnyOf(HasSubstr(text), HasSubstr("did not answer")));
    if (outcome.output.find(text) != std::string::npos) ++told;
  }
  EXPECT_GE(told, 2);
}

TEST(Rendezvous, DifferentWorldSizesFailAllRanks) {
  const int port = unused_port();
  expect_all_told(run_together({join(address(0, 3, port), "timeout=10000"),
                                join(address(1, 3, port), "timeout=10000"),
                                join(address(2, 4, port), "timeout=10000")}),
                  "different world sizes: rank");
}

TEST(Rendezvous, TwoThatClaimOneRankFailAllRanks) {
  const int port = unused_port();
  expect_all_told(run_together({join(address(0, 3, port), "timeout=10000"),
                                join(address(1, 3, port), "timeout=10000"),
                                join(address(1, 3, port), "timeout=10000")}),
                  "two processes claim rank 1 of 3");
}

TEST(Rendezvous, WhoDoesNotComeIsNamedInTime) {
  const auto begin = Clock::now();
  const int port = unused_port();
  for (const Outcome& outcome : run_together({join(address(0, 3, port), "timeout=1500"),
                                              join(address(2, 3, port), "timeout=1500")})) {
    EXPECT_EQ(outcome.code, 3);
    EXPECT_THAT(outcome.output,
                ::testing::AnyOf(HasSubstr("rank 1 did not come"), HasSubstr("rendezvous store")));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
}

TEST(Rendezvous, NobodyAtTheAddressIsToldInTime) {
  const auto begin = Clock::now();
  const int port = unused_port();
  const Outcome outcome = run_command(join(address(1, 2, port), "timeout=1500"));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr(absl::StrCat("127.0.0.1:", port)),
                                    ::testing::Not(HasSubstr("Exception raised from"))));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

// The kernel accepts connections for a server that never reads. Rank 0, which should serve at this
// address, is told too.
TEST(Rendezvous, AServerThatNeverAnswersIsToldInTime) {
  const auto listening = listen_on("127.0.0.1", 0);
  ASSERT_TRUE(listening.ok());
  const auto begin = Clock::now();
  for (const Outcome& outcome : run_together(
           {join("WEFT_SECURITY=none " + address(0, 2, listening->port), "timeout=1500"),
            join("WEFT_SECURITY=none " + address(1, 2, listening->port), "timeout=1500")})) {
    EXPECT_EQ(outcome.code, 3) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("127.0.0.1:", listening->port)));
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
}

// The server answered until it was stopped, and its connections stay open.
TEST(Rendezvous, AServerThatStopsIsToldInTime) {
  const int port = unused_port();
  const std::string rank = absl::StrCat("method=tcp://127.0.0.1:", port, " size=3 rank=");
  const std::string last = absl::StrCat(rank, "1 timeout=5000 port=", port);
  const Outcome outcome = run_stopping(join("", rank + "0"), join("", last));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("rank 1 of 3: the rendezvous store at unix:weft-store-"),
                    HasSubstr(absl::StrCat(port, ": no answer within 5s")),
                    HasSubstr("while this rank waited for rank ")));
}

TEST(Rendezvous, AServerThatStopsIsToldInTimeToWhoFormsASameHostGroup) {
  const int port = unused_port();
  const std::string server = absl::StrCat("method=tcp://127.0.0.1:", port, " size=2 rank=0");
  const Outcome outcome =
      run_stopping(join("", server), join("", absl::StrCat("ask=1 timeout=2000 port=", port)));
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr(absl::StrCat("rendezvous store at unix:weft-store-", port)),
                    HasSubstr("no 'weft/same_host/0' within")));
}

}  // namespace
}  // namespace weft::testing
