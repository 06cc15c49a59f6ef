// An owner dies and is started again. Its trainer must be told what was lost, and every step must
// count once.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/dist_optim/checkpointer.h"
#include "weft/tests/dist_optim/optimizer_world.h"
#include "weft/tests/dist_optim/step_ledger.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace durable_steps_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::SGDOptions;
using weft::CheckpointerOptions;
using weft::Durability;
using weft::ParameterSet;
using weft::RRef;
using weft::StepResult;
using weft::dist_autograd::Context;
using weft::testing::error_of;
using weft::testing::once_up_to;
using weft::testing::times_applied;
using Outcome = StepResult::Outcome;
using Sgd = weft::DistributedOptimizer<torch::optim::SGD>;

constexpr uint64_t kEvery = 5;  // between two checkpoints

// The owners' parameters, by worker; the test can read them after the owners are gone.
std::array<std::shared_ptr<ParameterSet>, 4> seen;

// An owner of a ledger (step_ledger.h). The loss is -ledger[n], so step n adds 1 to element n.
class Ledger {
 public:
  // If `folder` is empty, the owner writes no checkpoints.
  Ledger(int64_t place, const std::string& folder, bool every_step)
      : set_(weft::testing::ledger_set()) {
    seen.at(static_cast<size_t>(place)) = set_;
    if (folder.empty()) return;
    const Durability durability = every_step ? Durability::kEveryStep : Durability::kCheckpoint;
    auto opened = weft::Checkpointer::open(
        set_, {.folder = folder, .durability = durability, .every = 2 * kEvery});
    if (!opened.ok()) throw weft::RpcError(opened.status());
    checkpointer_ = *std::move(opened);
  }
  at::Tensor forward(int64_t number) {
    return -set_->read(weft::CallScope::current().context)[0][number];
  }
  std::shared_ptr<ParameterSet> parameters() { return set_; }
  uint64_t checkpoints() { return checkpointer_->cost().written; }

 private:
  const std::shared_ptr<ParameterSet> set_;
  std::unique_ptr<weft::Checkpointer> checkpointer_;
};
WEFT_REGISTER_CLASS(Ledger, weft::constructor<int64_t, const std::string&, bool>(),
                    &Ledger::forward, &Ledger::parameters, &Ledger::checkpoints);

class DurableStepsTest : public ::testing::Test {
 protected:
  void TearDown() override { seen.fill(nullptr); }

  struct Job {
    std::vector<RRef<Ledger>> owners;
    std::unique_ptr<Sgd> optimizer;
  };
  RRef<Ledger> owner(size_t worker, const std::string& folder, bool every_step = false) {
    return weft::remote<Ledger>(world_[worker].id(), static_cast<int64_t>(worker), folder,
                                every_step);
  }
  static Job job(std::vector<RRef<Ledger>> owners) {
    std::vector<RRef<ParameterSet>> sets;
    for (const RRef<Ledger>& one : owners) sets.push_back(one.remote(&Ledger::parameters));
    return {owners, std::make_unique<Sgd>(sets, SGDOptions(1),
                                          weft::OptimizerOptions{.shared_name = "sgd"})};
  }
  // Runs a step on the data of step `number`.
  static StepResult step(const Job& job, uint64_t number) {
    Context context;
    at::Tensor loss;
    for (const RRef<Ledger>& one : job.owners) {
      const at::Tensor part = one.rpc_sync(&Ledger::forward, static_cast<int64_t>(number));
      loss = loss.defined() ? loss + part : part;
    }
    context.backward({loss});
    return job.optimizer->step_async(context).wait();
  }
  static void steps(const Job& job, uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) {
      const StepResult result = step(job, n);
      ASSERT_EQ(result.outcome, Outcome::kApplied) << result.status;
      ASSERT_EQ(result.number, n);
      ASSERT_EQ(result.checkpoint, absl::OkStatus());
    }
  }

  // Waits until the checkpoint after step `number` and those before it are written.
  static void wait_written(const RRef<Ledger>& one, uint64_t number) {
    EXPECT_TRUE(weft::testing::eventually(
        [&] { return one.rpc_sync(&Ledger::checkpoints) == 1 + number / kEvery; }));
  }

  const weft::testing::ScratchFolder scratch_;
  weft::testing::WorkerWorld world_{4};  // worker 0 is the trainer
  weft::WorkerScope scope_{world_[0]};
};

TEST_F(DurableStepsTest, AfterAnOwnersRestartEachStepCountsOnceAndLessThanAnIntervalIsRedone) {
  const std::string folder = scratch_ / "owner";
  {
    const Job job = this->job({owner(1, folder)});
    steps(job, 1, 12);
    wait_written(job.owners[0], 10);
    const StepResult last = step(job, 13);
    EXPECT_EQ(last.durable, 10u);
    world_.kill(1);
    const absl::Status lost = error_of([&] { return step(job, 14); });
    EXPECT_TRUE(weft::is_rref_lost(lost) || absl::IsUnavailable(lost)) << lost;
  }
  // A new owner opens the folder, as a restarted one would. The trainer makes new references to it.
  const Job job = this->job({owner(2, folder)});
  for (int attempt = 0; attempt < 2; ++attempt) {
    const StepResult refused = step(job, 14);
    EXPECT_EQ(refused.outcome, Outcome::kDataLoss);
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(refused.durable, 10u);
    EXPECT_THAT(std::string(refused.status.message()),
                AllOf(HasSubstr("worker2"), HasSubstr("after step 10 of sgd@worker0")));
    EXPECT_EQ(times_applied(*seen[2]), once_up_to(10));
  }
  EXPECT_EQ(job.optimizer->resume(), 10u);
  steps(job, 11, 17);
  EXPECT_EQ(times_applied(*seen[2]), once_up_to(17));
}

TEST_F(DurableStepsTest, WithEveryStepDurableNoneThatWasAnsweredIsLost) {
  const std::string folder = scratch_ / "owner";
  {
    const Job job = this->job({owner(1, folder, true)});
    for (uint64_t n = 1; n <= 7; ++n) EXPECT_EQ(step(job, n).durable, n);
    world_.kill(1);
  }
  const Job job = this->job({owner(2, folder, true)});
  EXPECT_EQ(job.optimizer->resume(), 7u);
  steps(job, 8, 9);
  EXPECT_EQ(times_applied(*seen[2]), once_up_to(9));
}

TEST_F(DurableStepsTest, TheOwnerThatLivesGoesBackToTheSameStep) {
  const RRef<Ledger> survivor = owner(3, scratch_ / "other");
  {
    const Job job = this->job({owner(1, scratch_ / "one"), survivor});
    steps(job, 1, 13);
    for (const RRef<Ledger>& one : job.owners) wait_written(one, 10);
    world_.kill(1);
  }
  EXPECT_EQ(times_applied(*seen[3]), once_up_to(13));
  const Job job = this->job({owner(2, scratch_ / "one"), survivor});
  const StepResult refused = step(job, 14);
  EXPECT_EQ(refused.outcome, Outcome::kDataLoss);
  EXPECT_THAT(std::string(refused.status.message()),
              AllOf(HasSubstr("worker2 came back after step 10"), HasSubstr("13 are known")));
  EXPECT_EQ(error_of([&] { return job.optimizer->resume(9); }).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(step(job, 14).outcome, Outcome::kDataLoss) << "nothing was resumed";
  EXPECT_EQ(job.optimizer->resume(), 10u);
  EXPECT_EQ(times_applied(*seen[3]), once_up_to(10));
  steps(job, 11, 16);
  for (const size_t worker : {2, 3}) EXPECT_EQ(times_applied(*seen[worker]), once_up_to(16));
}

TEST_F(DurableStepsTest, AnOwnerWithoutCheckpointsIsBroughtBackByTheProgram) {
  const RRef<Ledger> own = owner(0, "");
  weft::TensorMap saved;
  {
    const Job job = this->job({own, owner(1, scratch_ / "one")});
    steps(job, 1, 10);
    saved = seen[0]->state();
    EXPECT_EQ(step(job, 11).durable, 0u) << "not on every owner";
    steps(job, 12, 13);
    wait_written(job.owners[1], 10);
    world_.kill(1);
  }
  const Job job = this->job({own, owner(2, scratch_ / "one")});
  EXPECT_EQ(step(job, 14).outcome, Outcome::kDataLoss);
  ASSERT_EQ(seen[0]->load_state(saved), absl::OkStatus());
  EXPECT_EQ(job.optimizer->resume(), 10u);
  steps(job, 11, 15);
  for (const size_t worker : {0, 2}) EXPECT_EQ(times_applied(*seen[worker]), once_up_to(15));
}

TEST_F(DurableStepsTest, ARestartedTrainerGoesOnWithItsStepSequence) {
  const RRef<Ledger> server = owner(1, scratch_ / "owner");
  {
    const Job job = this->job({server});
    steps(job, 1, 6);
    wait_written(server, 5);
  }
  const Job job = this->job({server});
  const StepResult next = step(job, 7);
  EXPECT_EQ(next.outcome, Outcome::kApplied) << next.status;
  EXPECT_EQ(next.number, 7u);
  EXPECT_EQ(next.durable, 5u);
  EXPECT_EQ(times_applied(*seen[1]), once_up_to(7));
}

}  // namespace durable_steps_test
