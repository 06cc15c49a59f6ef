// Kills one of several processes that run random collectives, at a random instant.
//
// Every survivor must get an error in time that names the killed rank, must exit cleanly, and must
// leave nothing behind.
//
//   weft_comm_kill_test --kills 300 --seed 7
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr int kTimeoutMs = 20'000;  // of an operation
// The longest time that the failing operation of a survivor may have taken, well below its timeout.
// DeathsTest and TicksTest show, by counting and without a clock, that the first check after a
// death is enough and that a check comes every 20 ms.
constexpr int kNoticedMs = 5'000;

int kills = 20;
uint64_t seed = 0;  // 0: choose one at random

// A child process and its standard output.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command) {
    std::array<int, 2> ends;
    if (pipe(ends.data()) != 0) std::abort();
    process_ = fork();
    if (process_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      std::vector<char*> words;
      for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      execv(words[0], words.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  ~Child() {
    if (process_ > 0) {
      kill();
      end();
    }
    std::fclose(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t process() const { return process_; }
  void kill() const { ::kill(process_, SIGKILL); }
  // Waits for the next line; nullopt at the end of the output.
  std::optional<std::string> line() {
    std::string all;
    for (int one = std::fgetc(output_); one != EOF; one = std::fgetc(output_)) {
      if (one == '\n') return all;
      all.push_back(static_cast<char>(one));
    }
    return std::nullopt;
  }
  // Waits until the process has exited and returns its wait status.
  int end() {
    int status = -1;
    waitpid(std::exchange(process_, 0), &status, 0);
    return status;
  }

 private:
  pid_t process_;
  FILE* output_;
};

// The regular files of Weft in shared memory. Tests beside this one have folders there.
std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& one : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = one.path().filename();
    if (one.is_regular_file() && name.starts_with("weft")) names.insert(name);
  }
  return names;
}

// Checks what a survivor printed, and that it exited with 0.
void expect_clean_end(Child& child, const std::string& victim) {
  const std::string failure = child.line().value_or("");
  const std::string left = child.line().value_or("");
  const int status = child.end();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << " " << failure;
  EXPECT_THAT(failure, HasSubstr(victim));
  EXPECT_EQ(left, "left NOTHING");
  const std::vector<std::string> words = absl::StrSplit(failure, absl::MaxSplits(' ', 2));
  int took = -1;
  EXPECT_TRUE(words.size() == 3 && words[0] == "failed" &&
              absl::SimpleAtoi(absl::StripSuffix(words[1], ":"), &took))
      << failure;
  EXPECT_LE(took, kNoticedMs) << failure;
}

TEST(KillTest, EverySurvivorNamesTheDeadRankInTimeAndLeavesNothing) {
  if (seed == 0) seed = std::random_device()();
  std::printf("%d kills, seed %llu\n", kills, static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::set<std::string> shared_before = shared_files();
  const std::string program = absl::StrCat(WEFT_BUILD_DIR, "/tests/comm/kill_rank");
  for (int round = 0; round < kills && !::testing::Test::HasFailure(); ++round) {
    const int size = 2 + static_cast<int>(random() % 3);
    const int victim = static_cast<int>(random() % static_cast<uint64_t>(size));
    const auto delay = std::chrono::microseconds(random() % 40'000);
    const uint64_t operations = random();
    SCOPED_TRACE(absl::StrCat("round ", round, ": rank ", victim, " of ", size, " killed after ",
                              delay.count(), " us, seed ", seed));
    std::string folder = "/tmp/weft_kill_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    {
      std::vector<std::unique_ptr<Child>> ranks;
      for (int rank = 0; rank < size; ++rank) {
        ranks.push_back(std::make_unique<Child>(
            std::vector<std::string>{program, folder, absl::StrCat(rank), absl::StrCat(size),
                                     absl::StrCat(operations), absl::StrCat(kTimeoutMs)}));
      }
      for (const auto& rank : ranks) ASSERT_EQ(rank->line().value_or("ended"), "ready");
      std::this_thread::sleep_for(delay);  // the test varies this instant
      const std::string name =
          absl::StrCat("rank ", victim, " (process ", ranks[victim]->process(), ") has died");
      ranks[victim]->kill();
      EXPECT_TRUE(WIFSIGNALED(ranks[victim]->end()));
      for (int rank = 0; rank < size; ++rank) {
        if (rank != victim) expect_clean_end(*ranks[rank], name);
      }
    }
    std::filesystem::remove_all(folder);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
  }
  EXPECT_EQ(shared_files(), shared_before);
}

}  // namespace
}  // namespace weft

int main(int count, char** words) {
  ::testing::InitGoogleMock(&count, words);
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string option = words[i];
    if (option == "--kills" && absl::SimpleAtoi(words[i + 1], &weft::kills)) continue;
    if (option == "--seed" && absl::SimpleAtoi(words[i + 1], &weft::seed)) continue;
    std::fprintf(stderr, "usage: %s [--kills N] [--seed S]\n", words[0]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
