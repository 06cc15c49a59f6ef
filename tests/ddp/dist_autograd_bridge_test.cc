// DistributedDataParallel under distributed autograd: trainers in a group, a worker with a part of
// the model, a master that drives.
#include "weft/ddp/dist_autograd_bridge.h"

#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "weft/base/log.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/autograd_world.h"
#include "weft/tests/support/group_world.h"

namespace dist_autograd_bridge_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using weft::DdpGradients;
using weft::DdpOptions;
using weft::DistributedDataParallel;
using weft::ProcessGroup;
using weft::dist_autograd::Context;
using weft::testing::AutogradWorld;

constexpr size_t kTrainers = 4;
constexpr size_t kRemote = 4;  // worker w4
constexpr size_t kMaster = 5;
constexpr int64_t kBatch = 4;

// Numbers that depend on the place alone: the same on all ranks, and in all copies of a module.
void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double at = 0;
  for (at::Tensor& one : module.parameters()) {
    one.copy_(torch::sin(torch::arange(one.numel(), torch::kDouble) * 1.7 + ++at).view_as(one) / 2);
  }
}

// ---- the worker with a part of the model

struct RemoteNetImpl : torch::nn::Module {
  RemoteNetImpl() {
    table = register_module(
        "table", torch::nn::EmbeddingBag(
                     torch::nn::EmbeddingBagOptions(10, 3).mode(torch::kSum).sparse(true)));
    linear = register_module("linear", torch::nn::Linear(3, 4));
    head = register_module("head", torch::nn::Linear(2, 2));
    to(torch::kDouble);
    fill(*this);
  }
  at::Tensor embed(const at::Tensor& rows) { return torch::relu(linear(table(rows))); }
  at::Tensor score(const at::Tensor& x) { return torch::tanh(head(x)); }

  torch::nn::EmbeddingBag table = nullptr;
  torch::nn::Linear linear = nullptr, head = nullptr;
};

RemoteNetImpl& remote_net() {
  static RemoteNetImpl net;
  return net;
}
at::Tensor embed(const at::Tensor& rows) { return remote_net().embed(rows); }
WEFT_REGISTER_FUNCTION(embed);
at::Tensor score(const at::Tensor& x) { return remote_net().score(x); }
WEFT_REGISTER_FUNCTION(score);
std::vector<at::Tensor> remote_gradients() {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& one : remote_net().parameters()) {
    at::Tensor gradient =
        weft::dist_autograd::gradient(weft::dist_autograd::current_context(), one);
    if (!gradient.defined()) gradient = torch::zeros_like(one);
    gradients.push_back(gradient.to_dense());
  }
  return gradients;
}
WEFT_REGISTER_FUNCTION(remote_gradients);

// ---- the module that is replicated

struct DenseOptions {
  bool side = false;   // a branch that a forward may leave out
  bool never = false;  // a layer that no forward uses
  bool table = false;  // a sparse embedding
};

struct DenseImpl : torch::nn::Module {
  explicit DenseImpl(const DenseOptions& options = {}) {
    first = register_module("first", torch::nn::Linear(4, 3));
    second = register_module("second", torch::nn::Linear(3, 2));
    if (options.side) side = register_module("side", torch::nn::Linear(3, 2));
    if (options.never) never = register_module("never", torch::nn::Linear(3, 2));
    if (options.table) {
      table = register_module(
          "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)));
    }
    to(torch::kDouble);
    fill(*this);
  }
  // `on_hidden` sees the gradient between the layers.
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& rows, bool use_side,
                                  const std::function<void(const at::Tensor&)>& on_hidden) {
    at::Tensor hidden = torch::tanh(first(x));
    if (table) hidden = hidden + table(rows).sum(1);
    if (on_hidden) hidden.register_hook(on_hidden);
    std::vector<at::Tensor> outputs = {second(hidden)};
    if (use_side) outputs.push_back(side(hidden));
    return outputs;
  }

  torch::nn::Linear first = nullptr, second = nullptr, side = nullptr, never = nullptr;
  torch::nn::Embedding table = nullptr;
};

// What a step computes.
struct Step {
  bool remote_before = true;  // the input comes from the worker with the embeddings
  bool remote_after = false;  // and its output goes there
  bool use_side = false;      // of DenseImpl
  bool loss_of_side = true;   // the loss uses that output
  double sign = 1;
  int like = -1;  // has the inputs of this rank; -1: its own
  std::function<void(const at::Tensor&)> on_hidden = nullptr;
  std::function<void(const at::Tensor&)> on_output = nullptr;
};

at::Tensor rows_of(int rank, int step) {
  return (torch::arange(kBatch * 2).view({kBatch, 2}) * 3 + rank * 5 + step * 7) % 10;
}

// A trainer's model: its own layer, the replicated module, and in a local step a copy of the rest.
struct Trainer {
  Trainer(std::shared_ptr<ProcessGroup> group, const DdpOptions& ddp_options,
          const DenseOptions& dense)
      : ddp(std::make_shared<DenseImpl>(dense), std::move(group), ddp_options) {
    own->to(torch::kDouble);
    fill(*own);
  }

  // `local`: everything here, else what is remote is called.
  at::Tensor loss(int step, const Step& what, bool local) {
    const int rank = what.like < 0 ? ddp.process_group()->rank() : what.like;
    const at::Tensor rows = rows_of(rank, step);
    at::Tensor x =
        torch::cos(torch::arange(kBatch * 4, torch::kDouble) + rank + 3 * step).view({kBatch, 4});
    if (what.remote_before) {
      x = x + (local ? remote.embed(rows) : weft::rpc_sync("w4", embed, rows));
    }
    std::vector<at::Tensor> outputs = ddp(torch::tanh(own(x)), rows, what.use_side, what.on_hidden);
    at::Tensor out = outputs.front();
    if (what.on_output) out.register_hook(what.on_output);
    if (what.use_side && what.loss_of_side) out = out + outputs.back();
    if (what.remote_after) out = local ? remote.score(out) : weft::rpc_sync("w4", score, out);
    return what.sign * out.pow(2).sum();
  }
  void forget() {
    ddp.zero_grad();
    own->zero_grad();
    remote.zero_grad();
  }

  torch::nn::Linear own{4, 4};  // not replicated
  RemoteNetImpl remote;
  DistributedDataParallel<DenseImpl> ddp;
};

void expect_equal(const at::Tensor& actual, const at::Tensor& expected, const std::string& name) {
  ASSERT_EQ(actual.defined(), expected.defined()) << name;
  if (!expected.defined()) return;
  EXPECT_EQ(actual.is_sparse(), expected.is_sparse()) << name;
  EXPECT_TRUE(torch::allclose(actual.to_dense(), expected.to_dense(), 1e-12, 1e-12))
      << name << "\n"
      << actual << "\n"
      << expected;
}

// What the log said while this lives.
class Log {
 public:
  explicit Log(const std::function<void()>& on_line = {}) {
    weft::set_log_sink([this, on_line](weft::LogLevel, std::string_view line) {
      if (on_line) on_line();
      const std::lock_guard<std::mutex> lock(mutex_);
      text_.append(line).append("\n");
    });
  }
  ~Log() { weft::set_log_sink(nullptr); }
  std::string text() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

class DistAutogradBridgeTest : public ::testing::Test {
 protected:
  using Body = std::function<void(int rank, std::shared_ptr<ProcessGroup>)>;

  // Runs `body` on each trainer, in a new group.
  void on_trainers(const Body& body) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(kTrainers); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          auto group =
              weft::init_process_group(weft::testing::group_options(rank, kTrainers, store));
          world_.on(static_cast<size_t>(rank), [&] { body(rank, group); });
        } catch (const std::exception& failed) {
          ADD_FAILURE() << "rank " << rank << ": " << failed.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // A group after the first one.
  std::shared_ptr<ProcessGroup> next_group(int rank) {
    return weft::init_process_group(weft::testing::group_options(rank, kTrainers, next_store_));
  }
  DdpOptions with_contexts(int rank, DdpOptions options = {}) {
    if (options.bucket_cap_mb.empty()) options.bucket_cap_mb = {1e-5};  // a bucket for each
    options.distributed_gradients = gradients_[static_cast<size_t>(rank)];
    return options;
  }

  // One step of `distributed` in a context, and of `local` with LibTorch's engine: the same
  // gradients everywhere, of the one in the context and of the other in `.grad`.
  void compare(int rank, Trainer& distributed, Trainer& local, int step, const Step& what) {
    local.forget();
    local.loss(step, what, /*local=*/true).backward();
    const Context context(world_.runtime(static_cast<size_t>(rank)));
    context.backward({distributed.loss(step, what, /*local=*/false)});
    expect_gradients(context, distributed, local);
  }
  static void expect_gradients(const Context& context, Trainer& distributed, Trainer& local) {
    const auto replicated = distributed.ddp.module()->named_parameters();
    const auto expected = local.ddp.module()->named_parameters();
    for (const auto& one : replicated) {
      expect_equal(context.gradient(one.value()), expected[one.key()].grad(), one.key());
      EXPECT_FALSE(one.value().grad().defined()) << one.key();
    }
    for (const char* const name : {"weight", "bias"}) {
      expect_equal(context.gradient(distributed.own->named_parameters()[name]),
                   local.own->named_parameters()[name].grad(), name);
      EXPECT_FALSE(distributed.own->named_parameters()[name].grad().defined());
    }
    const std::vector<at::Tensor> remote = weft::rpc_sync("w4", remote_gradients);
    const std::vector<at::Tensor> copies = local.remote.parameters();
    for (size_t i = 0; i < copies.size(); ++i) {
      const at::Tensor& gradient = copies[i].grad();
      expect_equal(remote[i],
                   gradient.defined() ? gradient.to_dense() : torch::zeros_like(copies[i]),
                   "of the remote worker");
    }
  }
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

  // The status that a pass ends with.
  static absl::Status outcome(const Context& context, at::Tensor loss,
                              weft::dist_autograd::BackwardOptions options = {}) {
    try {
      context.backward({std::move(loss)}, options);
    } catch (const weft::RpcError& failed) {
      return failed.status();
    }
    return absl::OkStatus();
  }

  std::array<std::shared_ptr<DdpGradients>, kTrainers> gradients_ = {
      std::make_shared<DdpGradients>(), std::make_shared<DdpGradients>(),
      std::make_shared<DdpGradients>(), std::make_shared<DdpGradients>()};
  AutogradWorld world_{kTrainers + 2,
                       {.observers = {{0, gradients_[0].get()},
                                      {1, gradients_[1].get()},
                                      {2, gradients_[2].get()},
                                      {3, gradients_[3].get()}}}};
  const c10::intrusive_ptr<c10d::Store> next_store_ = c10::make_intrusive<c10d::HashStore>();
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

// The whole model is the module of DistributedDataParallel, calls included.
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

// ---- driven by a master: what a trainer's function finds at its worker

struct Driven {
  std::mutex mutex;
  std::map<std::string, Trainer*> trainers;
};
Driven& driven() {
  static Driven driven;
  return driven;
}
// Sums of the absolute gradients: of the replicated module, of the trainer's layer, of the worker
// with the embeddings.
std::vector<double> train(const Step& what) {
  Trainer* trainer = nullptr;
  {
    const std::lock_guard<std::mutex> lock(driven().mutex);
    trainer = driven().trainers.at(weft::CallScope::current().runtime->name());
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

// Trainers 0 and 2, and 1 and 3, have the same examples, with opposite losses: what is averaged is
// nothing, and what is not averaged is something.
TEST_F(DistAutogradBridgeTest, GradientsThatCancelOverTheTrainersCancelWhereTheyAreAveraged) {
  std::array<std::unique_ptr<Trainer>, kTrainers> trainers;
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    trainers[static_cast<size_t>(rank)] =
        std::make_unique<Trainer>(group, with_contexts(rank), DenseOptions{});
  });
  for (size_t i = 0; i < kTrainers; ++i) {
    driven().trainers["w" + std::to_string(i)] = trainers[i].get();
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
  driven().trainers.clear();
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

// ---- failures

TEST_F(DistAutogradBridgeTest, ASecondPassAtTheSameTimeIsRefusedAndTheFirstGoesOn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto group = weft::init_process_group(weft::testing::group_options(0, 1, store));
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

TEST_F(DistAutogradBridgeTest, ANodeThatThrowsOnOneRankFailsThePassOfAllAtOnce) {
  const auto began = std::chrono::steady_clock::now();
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    compare(rank, distributed, local, 0, {});
    {
      Step what;
      // The gradients of the second layer are being reduced then.
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
    // On with a new group, at once.
    const auto next = next_group(rank);
    distributed.ddp.update_process_group(next);
    local.ddp.update_process_group(next);
    for (int step = 2; step < 5; ++step) compare(rank, distributed, local, step, {});
  });
  // Neither the pass's deadline nor the group's timeout.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
  EXPECT_TRUE(world_.nothing_left());
}

TEST_F(DistAutogradBridgeTest, TheNextForwardWaitsUntilAFailedPassIsClearedAway) {
  const auto new_group = [] {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    return weft::init_process_group(weft::testing::group_options(0, 1, store));
  };
  Trainer trainer(new_group(), with_contexts(0), {});
  std::promise<void> next_forward;
  // The line comes while the failed pass is cleared away: long enough for a forward that does not
  // wait.
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
    trainer.ddp.update_process_group(new_group());
    const Context context(world_.runtime(0));
    const at::Tensor loss = trainer.loss(1, {}, false);
    next_forward.set_value();
    context.backward({loss});
  });
  EXPECT_THAT(log.text(), HasSubstr("'first.weight'"));
  EXPECT_EQ(trainer.ddp.logging_data().reduced_passes, 1u);
}

TEST_F(DistAutogradBridgeTest, APassThatFailsBeforeItReducesHoldsTheOthersUpToTheirDeadline) {
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
      // The first to run out of time aborts the group, and so fails the rest.
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

TEST_F(DistAutogradBridgeTest, AParameterWhoseGradientNeverComesIsNamedInTheLog) {
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

TEST_F(DistAutogradBridgeTest, TheDeathOfAnotherWorkerInMidPassFailsThePassOfAll) {
  on_trainers([&](int rank, const std::shared_ptr<ProcessGroup>& group) {
    Trainer distributed(group, with_contexts(rank), {});
    Trainer local(group, {}, {});
    {
      Step what;
      if (rank == 2) what.on_hidden = [&](const at::Tensor&) { world_.kill(kRemote); };
      const Context context(world_.runtime(static_cast<size_t>(rank)));
      const at::Tensor loss = distributed.loss(0, what, false);
      group->barrier();  // nobody calls it any more
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
  EXPECT_TRUE(world_.nothing_left(kRemote));
}

TEST_F(DistAutogradBridgeTest, APassMayBeCancelledAtAnyTime) {
  const auto new_group = [] {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    return weft::init_process_group(weft::testing::group_options(0, 1, store));
  };
  Trainer trainer(new_group(), with_contexts(0), {});
  Trainer local(new_group(), {}, {});
  world_.on(0, [&] {
    for (int i = 0; i < 20; ++i) {
      {
        const Context context(world_.runtime(0));
        const auto pass = context.backward_async({trainer.loss(i, {}, false)});
        for (int yields = 0; yields < 10 * i * i; ++yields) std::this_thread::yield();
        pass.cancel();
        (void)pass.result();
      }
      trainer.ddp.update_process_group(new_group());
      compare(0, trainer, local, i, {});
    }
  });
  EXPECT_TRUE(world_.nothing_left());
}

}  // namespace dist_autograd_bridge_test
