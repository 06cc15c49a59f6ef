// An owner whose parameters are the ledger of its steps, for tests of what survives a crash.
//
// Thread safety: none.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "weft/dist_optim/checkpointer.h"
#include "weft/dist_optim/internal/shard_stepper.h"
#include "weft/dist_optim/steps/step_keeper.h"

namespace weft::testing {

constexpr int64_t kLedger = 64;

// Step n of plain SGD with rate 1 adds 1 to element n. So element n says how often step n was
// applied.
inline at::Tensor ledger_gradient(uint64_t number, int64_t size = kLedger) {
  at::Tensor gradient = at::zeros({size}, at::kDouble);
  gradient[static_cast<int64_t>(number)].fill_(-1);
  return gradient;
}
inline std::shared_ptr<ParameterSet> ledger_set(int64_t size = kLedger) {
  return std::make_shared<ParameterSet>(
      std::vector<NamedParameter>{{"ledger", at::zeros({size}, at::kDouble).requires_grad_(true)}});
}
inline std::vector<int> times_applied(const ParameterSet& set) {
  std::vector<int> times;
  const at::Tensor ledger = set.state().at("ledger");
  for (int64_t n = 1; n < kLedger; ++n) {
    times.push_back(static_cast<int>(ledger[n].item<double>()));
  }
  return times;
}
// The ledger after each of the steps 1 to `last` was applied once, and no other.
inline std::vector<int> once_up_to(uint64_t last) {
  std::vector<int> times(kLedger - 1, 0);
  for (uint64_t n = 0; n < last; ++n) times[n] = 1;
  return times;
}

// A folder that this object makes and removes. It is in /dev/shm if there is one.
class ScratchFolder {
 public:
  ScratchFolder() {
    namespace fs = std::filesystem;
    const fs::path memory = "/dev/shm";
    const fs::path place = fs::is_directory(memory) ? memory : fs::temp_directory_path();
    std::string pattern = (place / "weft_steps_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// One incarnation of an owner with a checkpointer, stepped from the test without workers. Its step
// sequence is "adam@trainer", and this incarnation has one optimizer.
class LedgerOwner {
 public:
  explicit LedgerOwner(CheckpointerOptions options, int64_t size = kLedger,
                       OptimizerSettings settings = SgdSettings{.lr = 1})
      : size_(size), set_(ledger_set(size)) {
    auto opened = Checkpointer::open(set_, std::move(options));
    status_ = opened.status();
    if (!opened.ok()) return;
    checkpointer_ = *std::move(opened);
    stepper_ =
        *dist_optim_internal::ShardStepper::make(set_, {{{0}, settings}}, UpdateMode::kLocked);
    EXPECT_EQ(set_->keeper()->add("adam", stepper_), absl::OkStatus());
    standing_ = *stepper_->join(id(0).optimizer, "adam@trainer");
  }

  // Prepares and commits the step, and returns how durable it is.
  dist_optim_internal::StepDurable step(uint64_t number) { return step_async(number).wait(); }
  Future<dist_optim_internal::StepDurable> step_async(uint64_t number) {
    EXPECT_EQ(prepare(number), absl::OkStatus());
    EXPECT_EQ(commit(number), absl::OkStatus());
    return set_->keeper()->after_step(id(number), "adam@trainer");
  }
  absl::Status resume(uint64_t number) { return stepper_->resume(id(0).optimizer, number, false); }
  absl::Status prepare(uint64_t number) {
    return stepper_->prepare(id(number), {ledger_gradient(number, size_)}).status();
  }
  void abort(uint64_t number) { EXPECT_EQ(stepper_->abort(id(number)), absl::OkStatus()); }
  absl::Status commit(uint64_t number) { return stepper_->commit(id(number), {{1.0}, 1.0}); }

  const absl::Status& status() const { return status_; }
  const dist_optim_internal::SequenceStanding& standing() const { return standing_; }
  Checkpointer& checkpointer() { return *checkpointer_; }
  ParameterSet& set() { return *set_; }
  dist_optim_internal::ShardStepper& stepper() { return *stepper_; }

 private:
  static dist_optim_internal::StepId id(uint64_t number) { return {{{9, 1}, 1}, number}; }

  const int64_t size_;
  const std::shared_ptr<ParameterSet> set_;
  absl::Status status_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::shared_ptr<dist_optim_internal::ShardStepper> stepper_;
  dist_optim_internal::SequenceStanding standing_;
};

}  // namespace weft::testing
