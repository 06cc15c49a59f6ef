// DistributedDataParallel under distributed autograd.
//
// Trainers form a group, one worker holds a part of the model, and a master drives the trainers.
#include "weft/ddp/dist_autograd_bridge.h"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "weft/base/mutex.h"
#include "weft/tests/ddp/bridge/bridge_fixture.h"

namespace dist_autograd_bridge_test {

class DistAutogradBridgeTest : public BridgeTest {
 protected:
  // Each trainer compares a few steps.
  void compare_steps(const std::function<Step(int rank, int step)>& what, const DdpOptions& options,
                     const DenseOptions& dense = {}, int steps = 4) {
    on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
      Trainer distributed(group, with_contexts(rank, options), dense);
      Trainer local(group, options, dense);
      for (int step = 0; step < steps; ++step) {
        compare(rank, distributed, local, step, what(rank, step));
      }
      EXPECT_EQ(distributed.ddp.logging_data().reduced_passes, static_cast<uint64_t>(steps));
    });
    EXPECT_TRUE(world_.nothing_left());
  }
};

TEST_F(DistAutogradBridgeTest, AveragesAreInTheContextAloneAndThoseOfLocalDdp) {
  for (const bool before : {false, true}) {
    for (const bool after : {false, true}) {
      SCOPED_TRACE(testing::Message() << "remote before: " << before << ", after: " << after);
      compare_steps([&](int, int) { return Step{.remote_before = before, .remote_after = after}; },
                    {});
    }
  }
}

TEST_F(DistAutogradBridgeTest, OneBucketForAllGivesTheSame) {
  compare_steps([](int, int) { return Step{}; }, {.bucket_cap_mb = {25}});
}

TEST_F(DistAutogradBridgeTest, AParameterMayBeUnusedOnSomeRanksOnly) {
  compare_steps([](int rank, int step) { return Step{.use_side = (rank + step) % 3 == 1}; },
                {.find_unused_parameters = true}, {.side = true});
}

TEST_F(DistAutogradBridgeTest, AParameterThatNobodyUsesHasNoGradient) {
  compare_steps([](int rank, int) { return Step{.use_side = rank > 1}; },
                {.find_unused_parameters = true}, {.side = true, .never = true});
}

TEST_F(DistAutogradBridgeTest, AnOutputThatTheLossDoesNotUseCountsAsUnused) {
  compare_steps([](int rank, int) { return Step{.use_side = true, .loss_of_side = rank > 1}; },
                {.find_unused_parameters = true}, {.side = true});
  compare_steps([](int, int) { return Step{.use_side = true, .loss_of_side = false}; },
                {.find_unused_parameters = true}, {.side = true});
}

TEST_F(DistAutogradBridgeTest, AStaticGraphNeedNotBeWalkedAgain) {
  compare_steps([](int rank, int) { return Step{.use_side = rank > 1}; }, {.static_graph = true},
                {.side = true, .never = true});
}

TEST_F(DistAutogradBridgeTest, SparseGradientsStaySparse) {
  compare_steps([](int, int) { return Step{.remote_after = true}; }, {}, {.table = true});
}

TEST_F(DistAutogradBridgeTest, PassesOfOneContextAddUp) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    const Context context(world_.runtime(static_cast<size_t>(rank)));
    for (int step = 0; step < 3; ++step) {
      local.loss(step, {}, true).backward();
      context.backward({distributed.loss(step, {}, false)});
      expect_gradients(context, distributed, local);
    }
  });
}

TEST_F(DistAutogradBridgeTest, UnderNoSyncGradientsAreThisWorkersOwn) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    {
      const auto alone = distributed.ddp.no_sync();
      const auto alone_too = local.ddp.no_sync();
      compare(rank, distributed, local, 0, {});
    }
    compare(rank, distributed, local, 1, {});
    EXPECT_EQ(distributed.ddp.logging_data().reduced_passes, 1u);
  });
}

// The whole model, with its remote calls, is the module of DistributedDataParallel.
struct HybridImpl : torch::nn::Module {
  HybridImpl() {
    dense = register_module("dense", std::make_shared<DenseImpl>());
    own = register_module("own", torch::nn::Linear(4, 4));
    to(torch::kDouble);
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& rows, RemoteNetImpl* local) {
    const at::Tensor x = local != nullptr ? local->embed(rows) : weft::rpc_sync("w4", embed, rows);
    const at::Tensor out = dense->forward(torch::tanh(own(x)), rows, false, nullptr).front();
    return local != nullptr ? local->score(out) : weft::rpc_sync("w4", score, out);
  }
  std::shared_ptr<DenseImpl> dense;
  torch::nn::Linear own = nullptr;
};

TEST_F(DistAutogradBridgeTest, TheReplicatedModuleMayCallOtherWorkers) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    DistributedDataParallel<HybridImpl> distributed(std::make_shared<HybridImpl>(), group,
                                                    with_contexts(rank));
    DistributedDataParallel<HybridImpl> local(std::make_shared<HybridImpl>(), group);
    RemoteNetImpl copy;
    for (int step = 0; step < 3; ++step) {
      local.zero_grad();
      local(rows_of(rank, step), &copy).pow(2).sum().backward();
      const Context context(world_.runtime(static_cast<size_t>(rank)));
      context.backward({distributed(rows_of(rank, step), nullptr).pow(2).sum()});
      for (const auto& one : distributed.module()->named_parameters()) {
        expect_equal(context.gradient(one.value()),
                     local.module()->named_parameters()[one.key()].grad(), one.key());
        EXPECT_FALSE(one.value().grad().defined());
      }
    }
  });
}

// ---- driven by a master: the state that a trainer's function finds at its worker

struct Driven {
  weft::Mutex mutex;
  std::map<std::string, Trainer*> trainers ABSL_GUARDED_BY(mutex);
};
Driven& driven() {
  static Driven driven;
  return driven;
}
// Returns sums of the absolute gradients: of the replicated module, of the trainer's own layer, and
// of the worker with the embeddings.
std::vector<double> train(const Step& what) {
  Trainer* trainer = nullptr;
  {
    Driven& all = driven();
    const weft::MutexLock lock(all.mutex);
    trainer = all.trainers.at(weft::CallScope::current().runtime->name());
  }
  const Context context;
  context.backward({trainer->loss(0, what, /*local=*/false)});
  std::vector<double> sums(3);
  for (const at::Tensor& one : trainer->ddp.module()->parameters()) {
    sums[0] += context.gradient(one).abs().sum().item<double>();
  }
  for (const at::Tensor& one : trainer->own->parameters()) {
    sums[1] += context.gradient(one).abs().sum().item<double>();
  }
  for (const at::Tensor& one : weft::rpc_sync("w4", remote_gradients)) {
    sums[2] += one.abs().sum().item<double>();
  }
  return sums;
}
std::vector<double> train_with(double sign, int like) {
  return train({.sign = sign, .like = like});
}
WEFT_REGISTER_FUNCTION(train_with);

// Trainers 0 and 2 have the same examples with opposite losses, and so have 1 and 3. Averaged
// gradients are zero, and the others are not.
TEST_F(DistAutogradBridgeTest, GradientsThatCancelOverTheTrainersCancelWhereTheyAreAveraged) {
  std::array<std::unique_ptr<Trainer>, kTrainers> trainers;
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    trainers[static_cast<size_t>(rank)] =
        std::make_unique<Trainer>(group, with_contexts(rank), DenseOptions{});
  });
  Driven& all = driven();
  {
    const weft::MutexLock lock(all.mutex);
    for (size_t i = 0; i < kTrainers; ++i) {
      all.trainers["w" + std::to_string(i)] = trainers[i].get();
    }
  }
  for (int step = 0; step < 3; ++step) {
    std::vector<weft::Future<std::vector<double>>> results;
    world_.on(kMaster, [&] {
      for (size_t i = 0; i < kTrainers; ++i) {
        results.push_back(
            weft::rpc_async("w" + std::to_string(i), train_with, i < 2 ? 1.0 : -1.0, i % 2));
      }
    });
    for (auto& result : results) {
      const std::vector<double> sums = result.wait();
      EXPECT_LT(sums[0], 1e-12);
      EXPECT_GT(sums[1], 0.1);
      EXPECT_GT(sums[2], 0.1);
    }
  }
  const weft::MutexLock lock(all.mutex);
  all.trainers.clear();
}

TEST_F(DistAutogradBridgeTest, RanksWithMoreInputsGoOnInAJoin) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    weft::join({&local.ddp.joinable(), &distributed.ddp.joinable()}, [&] {
      for (int step = 0; step <= rank; ++step) compare(rank, distributed, local, step, {});
    });
  });
  EXPECT_TRUE(world_.nothing_left());
}

}  // namespace dist_autograd_bridge_test
