// Tests the lock and the claim of a checkpoint folder, without checkpoints.
#include "weft/checkpoint/internal/folder_claim.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace weft::checkpoint_internal {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr Nanoseconds kOnce{0};

class FolderClaimTest : public testing::Test {
 protected:
  FolderClaimTest() {
    std::string pattern = (fs::temp_directory_path() / "weft_claim_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FolderClaimTest() override { fs::remove_all(folder_); }

  std::string folder_;
};

TEST_F(FolderClaimTest, OneAtATimeHoldsTheLockAndTheOthersAreToldWho) {
  {
    const auto held = FolderLock::take(folder_, "process 1 on host a", kOnce);
    ASSERT_EQ(held.status(), absl::OkStatus());
    const absl::Status refused = FolderLock::take(folder_, "another", kOnce).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(folder_), HasSubstr("process 1 on host a")));
  }
  EXPECT_EQ(FolderLock::take(folder_, "another", kOnce).status(), absl::OkStatus());
}

TEST_F(FolderClaimTest, TheLockEndsWithItsHolderHoweverThatDies) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const auto held = FolderLock::take(folder_, name_this_process(), kOnce);
    (void)!::write(ready[1], held.ok() ? "+" : "-", 1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, '+');
  const std::string name = absl::StrCat("process ", holder, " on host");
  ::kill(holder, SIGSTOP);  // a process that hangs still has the lock
  const absl::Status refused = FolderLock::take(folder_, "the next one", kOnce).status();
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(folder_), HasSubstr(name)));
  ::kill(holder, SIGKILL);
  int ended = 0;
  ASSERT_EQ(::waitpid(holder, &ended, 0), holder);
  EXPECT_EQ(FolderLock::take(folder_, "the next one", kOnce).status(), absl::OkStatus());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(FolderClaimTest, AFolderThatWasClearedIsLockedAnew) {
  std::optional<FolderLock> held = *FolderLock::take(folder_, "of the earlier run", kOnce);
  fs::remove(folder_ + "/lock");
  const auto next = FolderLock::take(folder_, "of this run", kOnce);
  EXPECT_EQ(next.status(), absl::OkStatus());
  held.reset();
  EXPECT_FALSE(FolderLock::take(folder_, "another", kOnce).ok()) << "this run's still counts";
}

TEST_F(FolderClaimTest, ALockThatCannotBeMadeIsNamed) {
  const absl::Status refused = FolderLock::take(folder_ + "/none", "x", kOnce).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(folder_ + "/none/lock"));
}

TEST_F(FolderClaimTest, ReadsWhatItWrites) {
  EXPECT_EQ(read_claim(folder_)->incarnation, 0u);
  const std::string owner = name_this_process();
  EXPECT_NE(owner, name_this_process()) << "two claims of one process are told apart";
  ASSERT_EQ(write_claim(folder_, {kMaxIncarnation, owner}, FileCalls::system()), absl::OkStatus());
  EXPECT_EQ(read_claim(folder_)->incarnation, kMaxIncarnation);
  EXPECT_EQ(read_claim(folder_)->owner, owner);
}

TEST_F(FolderClaimTest, AClaimThatCannotBeReadIsNamed) {
  for (const char* text :
       {"", "incarnation", "incarnation 1", "incarnation 0\nowner: a\n",
        "incarnation -1\nowner: a\n", "incarnation x\nowner: a\n",
        "incarnation 1000000000000000\nowner: a\n", "owner: a\n", "\nowner: a\nincarnation 3\n"}) {
    std::ofstream(folder_ + "/incarnation", std::ios::trunc) << text;
    const absl::Status refused = read_claim(folder_).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(folder_ + "/incarnation"));
  }
}

}  // namespace
}  // namespace weft::checkpoint_internal
