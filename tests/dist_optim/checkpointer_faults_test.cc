// A Checkpointer whose disk fails or fills up, or whose process stops at any moment.
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <sys/mount.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "weft/tests/dist_optim/step_ledger.h"

namespace weft::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Calls `at` before and after every call to the file system, and lets `fail` refuse the call. Each
// write takes only half of its bytes, so that it needs several calls.
struct Disk {
  std::function<void()> at = [] {};
  std::function<int()> fail = [] { return 0; };  // an errno; 0: none
};
Disk* disk = nullptr;

template <class Call>
auto watched(Call call) {
  disk->at();
  const int refused = disk->fail();
  if (refused != 0) {
    errno = refused;
    return decltype(call())(-1);
  }
  const auto result = call();
  const int saved = errno;
  disk->at();
  errno = saved;
  return result;
}

const FileCalls kWatched = {
    [](int file, const void* data, size_t size) -> ssize_t {
      return watched([&] { return ::write(file, data, size > 1 ? size / 2 : size); });
    },
    [](int file) { return watched([&] { return ::fsync(file); }); },
    [](const char* from, const char* to) { return watched([&] { return ::rename(from, to); }); },
    [](const char* path, mode_t mode) { return watched([&] { return ::mkdir(path, mode); }); },
    [](const char* path) { return watched([&] { return ::remove(path); }); },
};

class CheckpointerFaultsTest : public ::testing::Test {
 protected:
  CheckpointerFaultsTest() { disk = &disk_; }
  ~CheckpointerFaultsTest() override { disk = nullptr; }
  CheckpointerOptions options() const {
    return {.folder = scratch_ / "owner", .durability = Durability::kEveryStep, .calls = &kWatched};
  }
  std::set<fs::path> files() const {
    std::set<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(scratch_ / "owner")) {
      found.insert(entry.path());
    }
    return found;
  }
  Disk disk_;
  const ScratchFolder scratch_;
};

TEST_F(CheckpointerFaultsTest, WhereverItIsCutOffAWholeCheckpointIsLoaded) {
  std::vector<std::pair<std::string, uint64_t>> moments;  // copied disk, steps answered by then
  uint64_t answered = 0, begun = 0;
  {
    LedgerOwner owner(options());
    disk_.at = [&] {
      const std::string copy = scratch_ / absl::StrCat("moment", moments.size());
      fs::copy(scratch_ / "owner", copy, fs::copy_options::recursive);
      moments.emplace_back(copy, answered);
    };
    for (begun = 1; begun <= 4; ++begun) {
      ASSERT_EQ(owner.step(begun).number, begun);
      answered = begun;
    }
    disk_.at = [] {};
  }
  EXPECT_GT(moments.size(), 150u);
  std::set<uint64_t> found;
  for (const auto& [moment, least] : moments) {
    LedgerOwner owner({.folder = moment});
    ASSERT_EQ(owner.status(), absl::OkStatus()) << moment;
    const uint64_t there = owner.standing().applied;
    ASSERT_GE(there, least) << moment << ": an answered step is lost";
    ASSERT_LE(there, least + 1) << moment;
    ASSERT_EQ(times_applied(owner.set()), once_up_to(there)) << moment;
    found.insert(there);
    // The owner goes on from there, over the files that the cut has left.
    ASSERT_EQ(owner.resume(there), absl::OkStatus());
    owner.step(there + 1);
    ASSERT_EQ(owner.checkpointer().save(), absl::OkStatus()) << moment;
  }
  EXPECT_EQ(found, (std::set<uint64_t>{0, 1, 2, 3, 4}));
}

TEST_F(CheckpointerFaultsTest, AFailureAtAnyCallLeavesTheOldOneAndTrainingGoesOn) {
  for (const int reason : {ENOSPC, EIO}) {
    bool failed = true;
    for (size_t call = 0; failed; ++call) {
      fs::remove_all(scratch_ / "owner");
      LedgerOwner owner(options());
      ASSERT_EQ(owner.step(1).number, 1u);
      ASSERT_EQ(owner.step(2).number, 2u);
      size_t calls = 0;
      failed = false;
      disk_.fail = [&] {
        if (calls++ != call) return 0;
        failed = true;
        return reason;
      };
      const dist_optim_internal::StepDurable third = owner.step(3);
      disk_.fail = [] { return 0; };
      EXPECT_EQ(times_applied(owner.set()), once_up_to(3)) << "it is applied";
      // If an old checkpoint cannot be removed, this is only a warning.
      if (third.number != 3) {
        EXPECT_EQ(third.number, 2u);
        EXPECT_EQ(third.status().code(), reason == ENOSPC ? absl::StatusCode::kResourceExhausted
                                                          : absl::StatusCode::kInternal)
            << third.why;
        EXPECT_THAT(third.why, HasSubstr(scratch_ / "owner"));
      } else {
        EXPECT_EQ(third.code, 0) << third.why;
      }
      const std::string copy = scratch_ / absl::StrCat(reason, "at", call);
      fs::copy(scratch_ / "owner", copy, fs::copy_options::recursive);
      LedgerOwner later({.folder = copy});
      ASSERT_EQ(later.status(), absl::OkStatus());
      EXPECT_GE(later.standing().applied, third.number) << "call " << call;
      EXPECT_EQ(times_applied(later.set()), once_up_to(later.standing().applied));
      const dist_optim_internal::StepDurable fourth = owner.step(4);
      EXPECT_EQ(fourth.number, 4u) << "the next one is whole again";
      EXPECT_EQ(fourth.code, 0);
    }
  }
}

// The later owner opens the folder at every single file-system call that the earlier one makes for
// a checkpoint. Between the check of the claim and the rename, the lock keeps it out.
TEST_F(CheckpointerFaultsTest, WhereverALaterIncarnationComesTheEarlierOnesStepsDoNotWin) {
  CheckpointerOptions of_later = options();
  of_later.calls = &FileCalls::system();
  of_later.lock_wait = Nanoseconds(0);
  size_t kept_out = 0, let_in = 0;
  bool came = true;
  for (size_t call = 0; came; ++call) {
    SCOPED_TRACE(call);
    fs::remove_all(scratch_ / "owner");
    LedgerOwner earlier(options());
    ASSERT_EQ(earlier.step(1).number, 1u);
    std::unique_ptr<LedgerOwner> later;
    size_t calls = 0;
    came = false;
    disk_.at = [&] {
      if (calls++ != call) return;
      came = true;
      later = std::make_unique<LedgerOwner>(of_later);
    };
    const dist_optim_internal::StepDurable second = earlier.step(2);
    disk_.at = [] {};
    if (!came) break;
    if (later->status().ok()) {
      ++let_in;
      EXPECT_EQ(second.number, 1u);
      EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.why;
      EXPECT_THAT(second.why, AllOf(HasSubstr("incarnation 2"), HasSubstr("incarnation 1")));
    } else {
      ++kept_out;
      EXPECT_EQ(second.number, 2u) << second.why;
      EXPECT_THAT(later->status().ToString(),
                  AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr(scratch_ / "owner"),
                        HasSubstr(absl::StrCat("process ", ::getpid()))));
      later = std::make_unique<LedgerOwner>(of_later);
    }
    ASSERT_EQ(later->status(), absl::OkStatus());
    ASSERT_EQ(later->standing().applied, second.number) << "both say the same";
    ASSERT_EQ(later->resume(second.number), absl::OkStatus());
    EXPECT_EQ(later->step(20).number, 20u);
    const std::set<fs::path> before = files();
    EXPECT_EQ(earlier.step(30).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(files(), before);
    later.reset();
    LedgerOwner last(of_later);
    ASSERT_EQ(last.standing().applied, 20u);
    std::vector<int> steps = once_up_to(second.number);
    steps[20 - 1] = 1;
    EXPECT_EQ(times_applied(last.set()), steps);
  }
  EXPECT_GT(kept_out, 4u);
  EXPECT_GT(let_in, 15u);
}

TEST_F(CheckpointerFaultsTest, WhereverMemoryRunsOutTheStepSaysSoAndTheNextIsWhole) {
  for (int at = 0;; ++at) {
    SCOPED_TRACE(at);
    const ScratchFolder folder;
    CheckpointerOptions here = options();
    here.folder = folder / "owner";
    disk_.fail = [] { return 0; };
    LedgerOwner owner(here);
    int left = at;
    bool thrown = false;
    disk_.fail = [&]() -> int {
      if (left-- != 0) return 0;
      thrown = true;
      throw std::bad_alloc();
    };
    const dist_optim_internal::StepDurable first = owner.step(1);
    if (!thrown) {
      EXPECT_EQ(first.number, 1u);
      EXPECT_GT(at, 3);
      return;
    }
    EXPECT_EQ(first.number, 0u);
    EXPECT_EQ(first.code, static_cast<int32_t>(absl::StatusCode::kResourceExhausted)) << first.why;
    const dist_optim_internal::StepDurable second = owner.step(2);
    EXPECT_EQ(second.number, 2u);
    EXPECT_EQ(second.code, 0) << second.why;
  }
}

TEST_F(CheckpointerFaultsTest, EveryBitFlipAndEveryTruncationIsNoticedAndNamed) {
  {
    LedgerOwner owner({.folder = scratch_ / "owner"}, 4);
    ASSERT_EQ(owner.checkpointer().save(), absl::OkStatus());
  }
  for (const char* file : {"manifest.json", "owner.safetensors"}) {
    const fs::path path = scratch_.path() / "owner" / "step-000002" / file;
    std::ifstream in(path, std::ios::binary);
    const std::string whole{std::istreambuf_iterator<char>(in), {}};
    ASSERT_FALSE(whole.empty()) << path;
    const auto expect_noticed = [&](const std::string& content, const std::string& what) {
      std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
      const absl::Status status =
          Checkpointer::open(ledger_set(4), {.folder = scratch_ / "owner"}).status();
      ASSERT_THAT(status.ToString(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(path.string())))
          << what;
    };
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      expect_noticed(flipped, absl::StrCat("bit ", bit));
    }
    for (size_t size = 0; size < whole.size(); ++size) {
      expect_noticed(whole.substr(0, size), absl::StrCat("cut to ", size));
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  }
  EXPECT_EQ(Checkpointer::open(ledger_set(4), {.folder = scratch_ / "owner"}).status(),
            absl::OkStatus());
}

// A real file system of 1 MiB. Each checkpoint takes 400 KB.
TEST_F(CheckpointerFaultsTest, AFullDiskLeavesTheOldOneAndTrainingGoesOn) {
  const std::string small = scratch_ / "small";
  fs::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "only root may mount: the seam's ENOSPC has to do";
  }
  {
    constexpr int64_t kSize = 50'000;
    const CheckpointerOptions full{.folder = small + "/owner",
                                   .durability = Durability::kEveryStep};
    LedgerOwner owner(full, kSize);
    EXPECT_EQ(owner.step(1).number, 1u);
    const dist_optim_internal::StepDurable second = owner.step(2);  // a third does not fit
    EXPECT_EQ(second.number, 1u);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted) << second.why;
    EXPECT_EQ(owner.step(3).number, 1u);
    fs::copy(small + "/owner", scratch_ / "copy", fs::copy_options::recursive);
    LedgerOwner later({.folder = scratch_ / "copy"}, kSize);
    ASSERT_EQ(later.status(), absl::OkStatus());
    EXPECT_EQ(later.standing().applied, 1u);
    // This makes room again.
    fs::remove_all(small + "/owner/step-000001");
    EXPECT_EQ(owner.step(4).number, 4u);
  }
  EXPECT_EQ(::umount(small.c_str()), 0);
}

}  // namespace
}  // namespace weft::testing
