// Checks after which steps a Checkpointer writes, and what it restores.
#include "weft/dist_optim/checkpointer.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iostream>
#include <unistd.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/thread.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/tests/dist_optim/step_ledger.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class CheckpointerTest : public ::testing::Test {
 protected:
  // With the default `every`, checkpoints are written after steps 5, 10 and so on.
  CheckpointerOptions options(Durability durability, uint64_t every = 10) const {
    return {.folder = scratch_ / "owner", .durability = durability, .every = every};
  }
  const ScratchFolder scratch_;
};

TEST_F(CheckpointerTest, AnOwnerComesBackAtItsLastCheckpoint) {
  uint64_t durable = 0;
  {
    LedgerOwner owner(options(Durability::kCheckpoint));
    ASSERT_EQ(owner.status(), absl::OkStatus());
    EXPECT_FALSE(owner.checkpointer().restored());
    for (uint64_t n = 1; n <= 12; ++n) {
      const dist_optim_internal::StepDurable now = owner.step(n);
      EXPECT_LE(now.number, n);
      EXPECT_GE(now.number + 10, n) << "so many are at risk, at most";
      EXPECT_GE(now.number, durable);
      durable = now.number;
    }
  }
  for (const uint64_t back : {10, 20, 30}) {  // several restarts
    LedgerOwner owner(options(Durability::kCheckpoint));
    ASSERT_EQ(owner.status(), absl::OkStatus());
    EXPECT_THAT(owner.checkpointer().restored_lines(), ElementsAre(Pair("adam@trainer", back)));
    EXPECT_EQ(owner.standing().applied, back);
    EXPECT_TRUE(owner.standing().restored);
    EXPECT_EQ(times_applied(owner.set()), once_up_to(back));
    EXPECT_EQ(owner.prepare(back + 3).code(), absl::StatusCode::kDataLoss) << "until it resumes";
    ASSERT_EQ(owner.resume(back), absl::OkStatus());
    EXPECT_EQ(owner.step(back + 1).number, back) << "durable since before the crash";
    for (uint64_t n = back + 2; n <= back + 12; ++n) owner.step(n);
    EXPECT_EQ(times_applied(owner.set()), once_up_to(back + 12));
  }
}

TEST_F(CheckpointerTest, WithoutAThreadToWriteItIsNotOpened) {
  const ThreadLimit none(0);
  const absl::Status refused =
      Checkpointer::open(ledger_set(), options(Durability::kCheckpoint)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("for a checkpointer"));
}

TEST_F(CheckpointerTest, ASlowDiskHoldsBackTheStepThatWouldPutTooMuchAtRisk) {
  static std::atomic<bool> held;
  FileCalls slow = FileCalls::system();
  slow.fsync = [](int descriptor) {
    held.wait(true);
    return ::fsync(descriptor);
  };
  CheckpointerOptions options = this->options(Durability::kCheckpoint, 6);
  options.calls = &slow;
  LedgerOwner owner(options);
  ASSERT_EQ(owner.status(), absl::OkStatus());
  owner.step(1);
  owner.step(2);
  held = true;
  for (uint64_t n = 3; n <= 5; ++n) EXPECT_EQ(owner.step(n).number, 0u) << "3 is copied";
  const Future<dist_optim_internal::StepDurable> sixth = owner.step_async(6);
  EXPECT_FALSE(sixth.done()) << "its copy waits until the one before is written";
  held = false;
  held.notify_all();
  EXPECT_EQ(sixth.wait().number, 3u);
}

TEST_F(CheckpointerTest, ABrokenDiskHoldsNothingBack) {
  FileCalls full = FileCalls::system();
  LedgerOwner owner([&] {
    CheckpointerOptions options = this->options(Durability::kCheckpoint, 1);
    options.calls = &full;
    return options;
  }());
  full.write = [](int, const void*, size_t) -> ssize_t {
    errno = ENOSPC;
    return -1;
  };
  owner.step(1);
  // Each step waits for its copy, and so for the result of the last write.
  for (uint64_t n = 2; n <= 9; ++n) {
    const dist_optim_internal::StepDurable now = owner.step(n);
    EXPECT_EQ(now.number, 0u);
    EXPECT_EQ(now.code, static_cast<int32_t>(absl::StatusCode::kResourceExhausted));
  }
}

TEST_F(CheckpointerTest, AStepThatWasNotAppliedLeavesNoLongerInterval) {
  LedgerOwner owner(options(Durability::kCheckpoint, 4));
  for (uint64_t n = 1; n <= 3; ++n) owner.step(n);
  ASSERT_EQ(owner.prepare(4), absl::OkStatus());
  owner.abort(4);
  owner.step(5);
  EXPECT_EQ(owner.step(6).number, 5u);
}

TEST_F(CheckpointerTest, EveryStepIsOnDiskBeforeItIsAnswered) {
  LedgerOwner owner(options(Durability::kEveryStep));
  for (uint64_t n = 1; n <= 20; ++n) {
    ASSERT_EQ(owner.step(n).number, n);
    // An owner that starts with the files that are on the disk now.
    const std::string copy = scratch_ / absl::StrCat("copy", n);
    std::filesystem::copy(scratch_ / "owner", copy, std::filesystem::copy_options::recursive);
    LedgerOwner later({.folder = copy});
    ASSERT_EQ(later.status(), absl::OkStatus());
    EXPECT_EQ(later.standing().applied, n);
    EXPECT_EQ(times_applied(later.set()), once_up_to(n));
  }
  const Checkpointer::Cost cost = owner.checkpointer().cost();
  EXPECT_EQ(cost.written, 21u) << "one when it began";
  EXPECT_EQ(cost.failed, 0u);
  const auto us = [](Nanoseconds time) { return static_cast<double>(time.count()) / 1000; };
  std::cout << "a durable step: " << us(cost.writing) / 21 << " us writing, "
            << us(cost.copying) / 21 << " us copying (at most " << us(cost.longest_copy) << ")\n";
}

TEST_F(CheckpointerTest, TwoCheckpointsAreKept) {
  LedgerOwner owner(options(Durability::kEveryStep));
  for (uint64_t n = 1; n <= 5; ++n) owner.step(n);
  EXPECT_THAT(CheckpointFolder(scratch_ / "owner").steps().value(), ElementsAre(5, 6));
}

TEST_F(CheckpointerTest, OptimizerStateComesBackBitForBit) {
  const OptimizerSettings adam = AdamSettings{.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  LedgerOwner uninterrupted({.folder = scratch_ / "other"}, kLedger, adam);
  for (uint64_t n = 1; n <= 15; ++n) uninterrupted.step(n);
  {
    LedgerOwner owner(options(Durability::kEveryStep), kLedger, adam);
    for (uint64_t n = 1; n <= 7; ++n) owner.step(n);
  }
  LedgerOwner owner(options(Durability::kEveryStep), kLedger, adam);
  ASSERT_EQ(owner.resume(7), absl::OkStatus());
  for (uint64_t n = 8; n <= 15; ++n) owner.step(n);
  EXPECT_TRUE(
      at::equal(owner.set().state().at("ledger"), uninterrupted.set().state().at("ledger")));
  const TensorMap one = owner.stepper().state(), other = uninterrupted.stepper().state();
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, value] : one) EXPECT_TRUE(at::equal(value, other.at(name))) << name;
}

TEST_F(CheckpointerTest, AnOptimizerThatHasNotComeBackYetIsNotForgotten) {
  {
    LedgerOwner owner(options(Durability::kEveryStep));
    for (uint64_t n = 1; n <= 3; ++n) owner.step(n);
  }
  for (int incarnation = 0; incarnation < 3;
       ++incarnation) {  // its trainer does not come, but it writes
    std::shared_ptr<ParameterSet> set = ledger_set();
    auto checkpointer = Checkpointer::open(set, options(Durability::kEveryStep));
    ASSERT_EQ(checkpointer.status(), absl::OkStatus());
    EXPECT_EQ((*checkpointer)->save(), absl::OkStatus());
  }
  LedgerOwner owner(options(Durability::kEveryStep));
  EXPECT_EQ(owner.standing().applied, 3u);
  EXPECT_TRUE(owner.standing().restored);
}

TEST_F(CheckpointerTest, AnEarlierIncarnationThatGoesOnWritesNothingAndSaysWhose) {
  LedgerOwner earlier(options(Durability::kEveryStep));
  ASSERT_EQ(earlier.step(1).number, 1u);
  {
    LedgerOwner later(options(Durability::kEveryStep));  // the earlier one is declared dead
    ASSERT_EQ(later.status(), absl::OkStatus());
    ASSERT_EQ(later.resume(1), absl::OkStatus());
    ASSERT_EQ(later.step(2).number, 2u);
    const dist_optim_internal::StepDurable refused = earlier.step(30);  // but it still runs
    EXPECT_EQ(refused.number, 1u);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition) << refused.why;
    EXPECT_THAT(refused.why, AllOf(HasSubstr(scratch_ / "owner"), HasSubstr("incarnation 2"),
                                   HasSubstr("incarnation 1")));
    EXPECT_EQ(earlier.set().keeper()->go_back("adam@trainer", 1).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(times_applied(earlier.set())[29], 1) << "a refused go_back changes nothing";
    EXPECT_EQ(later.step(3).number, 3u);
    (void)earlier.step(31);
  }
  LedgerOwner last(options(Durability::kEveryStep));
  EXPECT_EQ(last.standing().applied, 3u);
  EXPECT_EQ(times_applied(last.set()), once_up_to(3));
}

// A new job may clear a folder in which the hung owner of an old job still writes. Then incarnation
// numbers begin again.
TEST_F(CheckpointerTest, AnOwnerOfBeforeTheFolderWasClearedWritesNothingWhateverItsNumber) {
  { LedgerOwner first(options(Durability::kEveryStep)); }
  LedgerOwner earlier(options(Durability::kEveryStep));  // incarnation 2
  ASSERT_EQ(earlier.resume(0), absl::OkStatus());
  ASSERT_EQ(earlier.step(1).number, 1u);
  std::filesystem::remove_all(scratch_ / "owner");
  {
    LedgerOwner later(options(Durability::kEveryStep));  // incarnation 1
    ASSERT_EQ(later.step(1).number, 1u);
    EXPECT_EQ(earlier.step(2).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(later.step(2).number, 2u);
  }
  LedgerOwner last(options(Durability::kEveryStep));
  EXPECT_EQ(last.standing().applied, 2u);
}

TEST_F(CheckpointerTest, StepsThatWereNeverWrittenAreMissedToo) {
  {
    LedgerOwner owner(options(Durability::kCheckpoint));
    for (uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(owner.step(n).number, 0u);
  }
  LedgerOwner owner(options(Durability::kCheckpoint));
  EXPECT_TRUE(owner.checkpointer().restored());
  EXPECT_EQ(owner.standing().applied, 0u);
  EXPECT_TRUE(owner.standing().restored) << "the trainer believes in three";
  EXPECT_EQ(times_applied(owner.set()), once_up_to(0));
}

TEST_F(CheckpointerTest, AnOwnerGoesBackToTheCheckpointOfAStepOrStaysWhereItIs) {
  LedgerOwner owner(options(Durability::kCheckpoint));
  for (uint64_t n = 1; n <= 12; ++n) owner.step(n);
  const auto keeper = owner.set().keeper();
  EXPECT_EQ(keeper->go_back("adam@trainer", 9).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(times_applied(owner.set()), once_up_to(12));
  EXPECT_EQ(owner.prepare(13), absl::OkStatus());

  ASSERT_EQ(keeper->go_back("adam@trainer", 5), absl::OkStatus());
  EXPECT_EQ(times_applied(owner.set()), once_up_to(5));
  EXPECT_EQ(owner.prepare(14).code(), absl::StatusCode::kDataLoss);
  ASSERT_EQ(owner.resume(5), absl::OkStatus());
  EXPECT_EQ(owner.step(6).number, 5u);
  // The steps after step 5 were given up and do not come back.
  LedgerOwner later(options(Durability::kCheckpoint));
  EXPECT_EQ(later.standing().applied, 5u);
  EXPECT_EQ(times_applied(later.set()), once_up_to(5));
}

TEST_F(CheckpointerTest, AStepThatFailedHalfWayIsNotWritten) {
  LedgerOwner owner(options(Durability::kEveryStep));
  ASSERT_EQ(owner.step(1).number, 1u);
  ASSERT_EQ(owner.prepare(2), absl::OkStatus());
  const at::Tensor odd = at::zeros({3}, at::kDouble);
  std::vector<at::Tensor> none;
  owner.set().update({}, none, [&] { owner.set().live()[0].set_data(odd); });
  EXPECT_FALSE(owner.commit(2).ok());
  EXPECT_EQ(owner.checkpointer().save().code(), absl::StatusCode::kDataLoss);
  LedgerOwner later(options(Durability::kEveryStep));
  EXPECT_EQ(later.standing().applied, 1u);
}

TEST_F(CheckpointerTest, WhatDoesNotFitIsRefusedByName) {
  { LedgerOwner owner(options(Durability::kEveryStep)); }
  LedgerOwner larger(options(Durability::kEveryStep), 2 * kLedger);
  EXPECT_EQ(larger.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(larger.status().message()), HasSubstr("parameter ledger"));

  for (const CheckpointerOptions& wrong :
       {CheckpointerOptions{}, CheckpointerOptions{.folder = "x", .every = 0},
        CheckpointerOptions{.folder = "x", .keep = 0}}) {
    EXPECT_EQ(Checkpointer::open(ledger_set(), wrong).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  const auto set = ledger_set();
  const auto stepper = dist_optim_internal::ShardStepper::make(set, {{{0}, SgdSettings{.lr = 1}}},
                                                               UpdateMode::kLocked);
  EXPECT_EQ(Checkpointer::open(set, options(Durability::kEveryStep)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weft::testing
