// Shared parts of the tests of DistributedDataParallel under distributed autograd.
//
// One worker holds a part of the model; trainers in a process group hold the rest. Each step can be
// compared with the same step in one process.
//
// Thread safety: a fixture's methods may be called from its trainers' threads. A Trainer belongs to
// one thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/ddp/dist_autograd_bridge.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/group_world.h"
#include "weft/tests/support/runtime_world.h"

namespace dist_autograd_bridge_test {

using weft::DdpGradients;
using weft::DdpOptions;
using weft::DistributedDataParallel;
using weft::ProcessGroup;
using weft::dist_autograd::Context;
using weft::testing::RuntimeWorld;

constexpr size_t kTrainers = 4;
constexpr size_t kRemote = 4;  // the worker w4
constexpr size_t kMaster = 5;
constexpr int64_t kBatch = 4;

// Fills the parameters with numbers that depend on their position only. So they are equal on all
// ranks, and in all copies of a module.
inline void fill(torch::nn::Module& module) {
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

inline RemoteNetImpl& remote_net() {
  static RemoteNetImpl net;
  return net;
}
inline at::Tensor embed(const at::Tensor& rows) { return remote_net().embed(rows); }
WEFT_REGISTER_FUNCTION(embed);
inline at::Tensor score(const at::Tensor& x) { return remote_net().score(x); }
WEFT_REGISTER_FUNCTION(score);
inline std::vector<at::Tensor> remote_gradients() {
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
  // `on_hidden` is called with the gradient between the layers.
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

// Describes what a step computes.
struct Step {
  bool remote_before = true;  // the input comes from the worker with the embeddings
  bool remote_after = false;  // the output goes to that worker
  bool use_side = false;      // the forward uses DenseImpl::side
  bool loss_of_side = true;   // the loss uses the output of `side`
  double sign = 1;
  int like = -1;  // uses the inputs of this rank; -1: of its own
  std::function<void(const at::Tensor&)> on_hidden = nullptr;
  std::function<void(const at::Tensor&)> on_output = nullptr;
};

inline at::Tensor rows_of(int rank, int step) {
  return (torch::arange(kBatch * 2).view({kBatch, 2}) * 3 + rank * 5 + step * 7) % 10;
}

// A trainer's model: its own layer, the replicated module, and a copy of the remote part for local
// steps.
struct Trainer {
  Trainer(std::shared_ptr<ProcessGroup> group, const DdpOptions& ddp_options,
          const DenseOptions& dense)
      : ddp(std::make_shared<DenseImpl>(dense), std::move(group), ddp_options) {
    own->to(torch::kDouble);
    fill(*own);
  }

  // If `local` is true, all is computed here. Otherwise the remote parts are called.
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

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& name) {
  ASSERT_EQ(actual.defined(), expected.defined()) << name;
  if (!expected.defined()) return;
  EXPECT_EQ(actual.is_sparse(), expected.is_sparse()) << name;
  EXPECT_TRUE(torch::allclose(actual.to_dense(), expected.to_dense(), 1e-12, 1e-12))
      << name << "\n"
      << actual << "\n"
      << expected;
}

class BridgeTest : public ::testing::Test {
 protected:
  using Body = std::function<void(int rank, std::shared_ptr<ProcessGroup>)>;

  // Runs `body` on each trainer, in a new group.
  void on_trainers(const Body& body) {
    const auto program = [&](const std::shared_ptr<ProcessGroup>& group) {
      const int rank = group->rank();
      world_.on(static_cast<size_t>(rank), [&] { body(rank, group); });
    };
    weft::testing::run_ranks(static_cast<int>(kTrainers), program);
  }
  DdpOptions with_contexts(int rank, DdpOptions options = {}) {
    if (options.bucket_cap_mb.empty()) options.bucket_cap_mb = {1e-5};  // a bucket per parameter
    options.distributed_gradients = gradients_[static_cast<size_t>(rank)];
    return options;
  }

  // Runs one step of `distributed` in a context, and the same step of `local` with LibTorch's
  // engine. The gradients in the context must equal those in `.grad` of `local`.
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

  std::array<std::shared_ptr<DdpGradients>, kTrainers> gradients_ = {
      std::make_shared<DdpGradients>(), std::make_shared<DdpGradients>(),
      std::make_shared<DdpGradients>(), std::make_shared<DdpGradients>()};
  RuntimeWorld world_{RuntimeWorld::Options{.workers = kTrainers + 2,
                                            .references = false,
                                            .autograd = true,
                                            .observers = {{0, gradients_[0].get()},
                                                          {1, gradients_[1].get()},
                                                          {2, gradients_[2].get()},
                                                          {3, gradients_[3].get()}}}};
};

}  // namespace dist_autograd_bridge_test
