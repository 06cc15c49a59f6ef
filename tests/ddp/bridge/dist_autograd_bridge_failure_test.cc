// Passes of distributed autograd that fail under DistributedDataParallel.
//
// The tests check which ranks learn of the failure, when, and how training goes on.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "weft/base/log.h"
#include "weft/base/mutex.h"
#include "weft/base/rpc_error.h"
#include "weft/tests/ddp/bridge/bridge_fixture.h"

namespace dist_autograd_bridge_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Collects the lines of the log while this object exists.
class Log {
 public:
  explicit Log(const std::function<void()>& on_line = {}) {
    weft::set_log_sink([this, on_line](weft::LogLevel, std::string_view line) {
      if (on_line) on_line();
      const weft::MutexLock lock(mutex_);
      text_.append(line).append("\n");
    });
  }
  ~Log() { weft::set_log_sink(nullptr); }
  std::string text() {
    const weft::MutexLock lock(mutex_);
    return text_;
  }

 private:
  weft::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

// Runs a pass and returns its status.
absl::Status outcome(const Context& context, at::Tensor loss,
                     weft::dist_autograd::BackwardOptions options = {}) {
  try {
    context.backward({std::move(loss)}, options);
  } catch (const weft::RpcError& failed) {
    return failed.status();
  }
  return absl::OkStatus();
}

std::shared_ptr<ProcessGroup> group_of_one() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return weft::init_process_group(weft::testing::group_options(0, 1, store));
}

class DistAutogradBridgeFailureTest : public BridgeTest {
 protected:
  // Makes the group that follows the first one.
  std::shared_ptr<ProcessGroup> next_group(int rank) {
    return weft::init_process_group(weft::testing::group_options(rank, kTrainers, next_store_));
  }
  const c10::intrusive_ptr<c10d::Store> next_store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(DistAutogradBridgeFailureTest, ASecondPassAtTheSameTimeIsRefusedAndTheFirstGoesOn) {
  const auto group = group_of_one();
  Trainer trainer(group, with_contexts(0), {});
  Trainer local(group, {}, {});
  world_.on(0, [&] {
    local.loss(0, {}, true).backward();
    const at::Tensor other_loss = trainer.loss(1, {.remote_before = false}, false);
    const Context context(world_.runtime(0));
    const auto start_other = [&](const at::Tensor&) {
      std::thread([&] {
        world_.on(0, [&] {
          const Context second(world_.runtime(0));
          const absl::Status failed = outcome(second, other_loss);
          EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
          EXPECT_THAT(std::string(failed.message()), HasSubstr(context.id().to_string()));
          EXPECT_THAT(std::string(failed.message()), HasSubstr(second.id().to_string()));
          EXPECT_TRUE(second.gradients().empty());
        });
      }).join();
    };
    context.backward({trainer.loss(0, {.on_hidden = start_other}, false)});
    expect_gradients(context, trainer, local);
  });
}

TEST_F(DistAutogradBridgeFailureTest, ANodeThatThrowsOnOneRankFailsThePassOfAllAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    compare(rank, distributed, local, 0, {});
    {
      Step what;
      // At that time the gradients of the second layer are being reduced.
      if (rank == 1) what.on_hidden = [](const at::Tensor&) { throw std::runtime_error("broke"); };
      const Context context(world_.runtime(static_cast<size_t>(rank)));
      const absl::Status failed = outcome(context, distributed.loss(1, what, false));
      if (rank == 1) {
        EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown);
        EXPECT_THAT(std::string(failed.message()), HasSubstr("broke"));
      } else {
        EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(failed.message()), HasSubstr("could not be reduced"));
      }
      EXPECT_EQ(weft::worker_of(failed), "w" + std::to_string(rank));
      EXPECT_TRUE(context.gradients().empty());
    }
    // The ranks no longer agree on their state, so none of them may go on by itself.
    try {
      distributed.loss(2, {}, false);
      ADD_FAILURE() << "a forward after a pass that failed";
    } catch (const c10::Error& refused) {
      EXPECT_THAT(refused.what_without_backtrace(), HasSubstr("update_process_group begins anew"));
    }
    // They go on with a new group, at once.
    const auto next = next_group(rank);
    distributed.ddp.update_process_group(next);
    local.ddp.update_process_group(next);
    for (int step = 2; step < 5; ++step) compare(rank, distributed, local, step, {});
  });
  // It waited neither for the pass's deadline nor for the group's timeout.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(DistAutogradBridgeFailureTest, TheSameContextCannotTryAgain) {
  Trainer trainer(group_of_one(), with_contexts(0), {});
  world_.on(0, [&] {
    const Context context(world_.runtime(0));
    bool breaks = true;
    const auto hook = [&breaks](const at::Tensor&) {
      if (std::exchange(breaks, false)) throw std::runtime_error("broke");
    };
    const at::Tensor loss = trainer.loss(0, {.remote_before = false, .on_hidden = hook}, false);
    EXPECT_FALSE(outcome(context, loss, {.retain_graph = true}).ok());
    const absl::Status again = outcome(context, loss);
    EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
    EXPECT_THAT(std::string(again.message()), HasSubstr("update_process_group begins anew"));
    EXPECT_TRUE(context.gradients().empty());
  });
}

TEST_F(DistAutogradBridgeFailureTest, GradientsThatNobodyWouldAverageAreAnError) {
  world_.on(0, [&] {
    {
      Trainer alone(group_of_one(), {}, {});
      const Context context(world_.runtime(0));
      const absl::Status failed = outcome(context, alone.loss(0, {}, false));
      EXPECT_THAT(std::string(failed.message()),
                  HasSubstr("set DdpOptions::distributed_gradients"));
      EXPECT_TRUE(context.gradients().empty());
    }
    DdpOptions options;
    options.distributed_gradients = std::make_shared<DdpGradients>();  // attached to no worker
    Trainer unobserved(group_of_one(), options, {});
    const Context second(world_.runtime(0));
    EXPECT_TRUE(outcome(second, unobserved.loss(0, {}, false)).ok());
    try {
      unobserved.loss(1, {}, false);
      ADD_FAILURE() << "nobody noticed";
    } catch (const c10::Error& refused) {
      EXPECT_THAT(refused.what_without_backtrace(), HasSubstr("set WorkerOptions::leaf_observer"));
    }
  });
}

TEST_F(DistAutogradBridgeFailureTest, TheNextForwardWaitsUntilAFailedPassIsClearedAway) {
  Trainer trainer(group_of_one(), with_contexts(0), {});
  std::promise<void> next_forward;
  // The line is logged while the failed pass is cleared away. Logging takes so long that a forward
  // which does not wait would come first.
  const auto dawdle = [next = next_forward.get_future().share()] {
    next.wait_for(std::chrono::milliseconds(300));
  };
  Log log(dawdle);
  world_.on(0, [&] {
    {
      const Context context(world_.runtime(0));
      const auto broken = [](const at::Tensor&) { throw std::runtime_error("broke"); };
      EXPECT_FALSE(outcome(context, trainer.loss(0, {.on_hidden = broken}, false)).ok());
    }
    trainer.ddp.update_process_group(group_of_one());
    const Context context(world_.runtime(0));
    const at::Tensor loss = trainer.loss(1, {}, false);
    next_forward.set_value();
    context.backward({loss});
  });
  EXPECT_THAT(log.text(), HasSubstr("'first.weight'"));
  EXPECT_EQ(trainer.ddp.logging_data().reduced_passes, 1u);
}

TEST_F(DistAutogradBridgeFailureTest,
       APassThatFailsBeforeItReducesHoldsTheOthersUpToTheirDeadline) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    {
      Step what;
      if (rank == 1) what.on_output = [](const at::Tensor&) { throw std::runtime_error("broke"); };
      const Context context(world_.runtime(static_cast<size_t>(rank)));
      const at::Tensor loss = distributed.loss(0, what, false);
      weft::dist_autograd::BackwardOptions options;
      if (rank != 1) options.timeout = std::chrono::milliseconds(300);
      const absl::Status failed = outcome(context, loss, options);
      // The first rank whose time is up aborts the group, and so the other ranks fail.
      if (rank == 1) {
        EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown);
      } else {
        EXPECT_THAT(failed.code(),
                    AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable));
      }
    }
    const auto next = next_group(rank);
    distributed.ddp.update_process_group(next);
    local.ddp.update_process_group(next);
    compare(rank, distributed, local, 1, {});
  });
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(DistAutogradBridgeFailureTest, AParameterWhoseGradientNeverComesIsNamedInTheLog) {
  Log log;
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {.side = true});
    const Context context(world_.runtime(static_cast<size_t>(rank)));
    const at::Tensor loss = distributed.loss(0, {}, false);
    const absl::Status failed = outcome(context, loss, {.timeout = std::chrono::milliseconds(300)});
    EXPECT_THAT(failed.code(),
                AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable))
        << failed;
  });
  EXPECT_TRUE(world_.nothing_left());
  EXPECT_THAT(log.text(), HasSubstr("'side.weight'"));
}

TEST_F(DistAutogradBridgeFailureTest, TheDeathOfAnotherWorkerInMidPassFailsThePassOfAll) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    {
      Step what;
      if (rank == 2) what.on_hidden = [&](const at::Tensor&) { world_.kill(kRemote); };
      const Context context(world_.runtime(static_cast<size_t>(rank)));
      const at::Tensor loss = distributed.loss(0, what, false);
      group->barrier();  // from here on nobody calls w4
      EXPECT_EQ(outcome(context, loss).code(), absl::StatusCode::kUnavailable);
    }
    const auto next = next_group(rank);
    distributed.ddp.update_process_group(next);
    const Context context(world_.runtime(static_cast<size_t>(rank)));
    context.backward({distributed.loss(1, {.remote_before = false}, false)});
    for (const at::Tensor& one : distributed.ddp.parameters()) {
      EXPECT_TRUE(context.gradient(one).defined());
    }
  });
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(DistAutogradBridgeFailureTest, APassMayBeCancelledAtAnyTime) {
  Trainer trainer(group_of_one(), with_contexts(0), {});
  Trainer local(group_of_one(), {}, {});
  world_.on(0, [&] {
    for (int i = 0; i < 20; ++i) {
      {
        const Context context(world_.runtime(0));
        const auto pass = context.backward_async({trainer.loss(i, {}, false)});
        for (int yields = 0; yields < 10 * i * i; ++yields) std::this_thread::yield();
        pass.cancel();
        (void)pass.result();
      }
      trainer.ddp.update_process_group(group_of_one());
      compare(0, trainer, local, i, {});
    }
  });
  EXPECT_TRUE(world_.nothing_left());
}

}  // namespace
}  // namespace dist_autograd_bridge_test
