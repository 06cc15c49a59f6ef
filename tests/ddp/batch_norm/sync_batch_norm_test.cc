#include "weft/ddp/batch_norm/sync_batch_norm.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "weft/base/mutex.h"
#include "weft/tests/comm/failure_of.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using at::Tensor;
using torch::nn::BatchNormOptions;
using Group = std::shared_ptr<ProcessGroup>;
using Tensors = std::vector<Tensor>;
using ::testing::HasSubstr;

constexpr int64_t kChannels = 5;

// Makes a batch for each step from a fixed seed, so that all ranks have the same.
Tensors batches(int64_t samples, const std::vector<int64_t>& rest, int64_t steps = 3) {
  torch::Generator generator = at::detail::createCPUGenerator(7);
  std::vector<int64_t> shape = {samples, kChannels};
  shape.insert(shape.end(), rest.begin(), rest.end());
  Tensors all;
  for (int64_t step = 0; step < steps; ++step) {
    all.push_back(at::randn(shape, generator, at::kDouble) * (1 + step) + 3);
  }
  return all;
}

// A loss whose gradient differs from value to value.
Tensor loss_of(const Tensor& output, const Tensor& input) {
  return (output.sin() * (input.detach() * 0.7).cos() + output.pow(3) * 0.1).sum();
}

struct Outcome {
  Tensors outputs, input_grads;  // one for each step
  Tensor weight_grad, bias_grad, running_mean, running_var, num_batches_tracked;
};

template <class Norm>
Outcome train(Norm& norm, const Tensors& inputs) {
  norm.to(at::kDouble);
  if (norm.weight.defined()) {
    const torch::NoGradGuard no_grad;
    norm.weight.copy_(at::linspace(0.5, 1.5, kChannels));
    norm.bias.copy_(at::linspace(-1, 1, kChannels));
  }
  Outcome outcome;
  for (const Tensor& batch : inputs) {
    const Tensor input = batch.detach().clone().set_requires_grad(true);
    const Tensor output = norm.forward(input);
    loss_of(output, input).backward();
    outcome.outputs.push_back(output.detach());
    outcome.input_grads.push_back(input.grad());
  }
  if (norm.weight.defined()) {
    outcome.weight_grad = norm.weight.grad();
    outcome.bias_grad = norm.bias.grad();
  }
  outcome.running_mean = norm.running_mean;
  outcome.running_var = norm.running_var;
  outcome.num_batches_tracked = norm.num_batches_tracked;
  return outcome;
}

Outcome train_alone(const BatchNormOptions& options, const Tensors& inputs) {
  switch (inputs[0].dim()) {
    case 4: {
      torch::nn::BatchNorm2d norm(options);
      return train(*norm, inputs);
    }
    case 5: {
      torch::nn::BatchNorm3d norm(options);
      return train(*norm, inputs);
    }
    default: {
      torch::nn::BatchNorm1d norm(options);
      return train(*norm, inputs);
    }
  }
}

std::vector<Outcome> train_ranks(const BatchNormOptions& options, const Tensors& inputs,
                                 const std::vector<int64_t>& shares) {
  std::vector<Outcome> outcomes(shares.size());
  run_ranks(static_cast<int>(shares.size()), [&](const Group& group) {
    const auto rank = static_cast<size_t>(group->rank());
    Tensors mine;
    for (const Tensor& batch : inputs) mine.push_back(batch.split_with_sizes(shares)[rank]);
    SyncBatchNorm norm(options, group);
    outcomes[rank] = train(*norm, mine);
  });
  return outcomes;
}

void expect_close(const Tensor& actual, const Tensor& expected, const std::string& what,
                  double tolerance = 1e-10) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const double error = expected.numel() == 0 ? 0 : (actual - expected).abs().max().item<double>();
  EXPECT_LE(error, tolerance) << what;
}

void expect_as_one_batch(const BatchNormOptions& options, const Tensors& inputs,
                         const std::vector<int64_t>& shares) {
  const Outcome expected = train_alone(options, inputs);
  const std::vector<Outcome> ranks = train_ranks(options, inputs, shares);
  if (::testing::Test::HasFailure()) return;
  for (size_t step = 0; step < inputs.size(); ++step) {
    Tensors outputs, grads;
    for (const Outcome& rank : ranks) {
      outputs.push_back(rank.outputs[step]);
      grads.push_back(rank.input_grads[step]);
    }
    expect_close(at::cat(outputs), expected.outputs[step], "output");
    expect_close(at::cat(grads), expected.input_grads[step], "input gradient");
  }
  if (expected.weight_grad.defined()) {
    Tensor weight_grad = at::zeros_like(expected.weight_grad);
    Tensor bias_grad = at::zeros_like(expected.bias_grad);
    for (const Outcome& rank : ranks) {
      weight_grad += rank.weight_grad;
      bias_grad += rank.bias_grad;
    }
    expect_close(weight_grad, expected.weight_grad, "weight gradient");
    expect_close(bias_grad, expected.bias_grad, "bias gradient");
  }
  for (const Outcome& rank : ranks) {
    expect_close(rank.running_mean, expected.running_mean, "running mean");
    expect_close(rank.running_var, expected.running_var, "running variance");
    ASSERT_EQ(rank.num_batches_tracked.defined(), expected.num_batches_tracked.defined());
    if (!expected.running_mean.defined()) continue;
    EXPECT_TRUE(rank.num_batches_tracked.equal(expected.num_batches_tracked));
    EXPECT_TRUE(rank.running_mean.equal(ranks[0].running_mean)) << "bits differ between ranks";
    EXPECT_TRUE(rank.running_var.equal(ranks[0].running_var)) << "bits differ between ranks";
  }
}

TEST(SyncBatchNorm, EqualsOneBatchForAnyNumberOfRanksAndShares) {
  for (const std::vector<int64_t>& shares : std::vector<std::vector<int64_t>>{
           {8}, {4, 4}, {7, 1}, {8, 0}, {0, 8}, {3, 0, 5}, {1, 1, 1}, {2, 1, 0, 6}}) {
    int64_t samples = 0;
    for (const int64_t share : shares) samples += share;
    SCOPED_TRACE(c10::str(shares));
    expect_as_one_batch(kChannels, batches(samples, {}), shares);
    expect_as_one_batch(kChannels, batches(samples, {3, 2}), shares);
  }
}

TEST(SyncBatchNorm, EqualsOneBatchForAllShapes) {
  for (const std::vector<int64_t>& rest :
       std::vector<std::vector<int64_t>>{{}, {1}, {6}, {3, 2}, {2, 1, 3}}) {
    SCOPED_TRACE(c10::str(rest));
    expect_as_one_batch(kChannels, batches(6, rest), {1, 5});
  }
}

TEST(SyncBatchNorm, EqualsOneBatchWithAllOptions) {
  const Tensors inputs = batches(7, {4});
  for (const bool affine : {false, true}) {
    for (const bool track : {false, true}) {
      const auto options = BatchNormOptions(kChannels).affine(affine).track_running_stats(track);
      expect_as_one_batch(options, inputs, {3, 4});
    }
  }
  expect_as_one_batch(BatchNormOptions(kChannels).momentum(std::nullopt), inputs, {3, 4});
  expect_as_one_batch(BatchNormOptions(kChannels).momentum(0.7).eps(0.3), inputs, {3, 4});
}

TEST(SyncBatchNorm, KeepsChannelsLastInputsAsTheyAre) {
  Tensors inputs = batches(6, {3, 4});
  for (Tensor& input : inputs) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  expect_as_one_batch(kChannels, inputs, {2, 4});
  for (const Outcome& rank : train_ranks(kChannels, inputs, {2, 4})) {
    EXPECT_TRUE(rank.outputs[0].is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(rank.input_grads[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST(SyncBatchNorm, KeepsItsPrecisionFarFromZero) {
  // In fp32 a sum of squares of such values keeps no digit of their variance.
  const Tensor whole = batches(64, {8}, 1)[0] + 1e4;
  const auto stddev_of = [](const Tensor& output) {
    return output.transpose(0, 1).flatten(1).std(1, /*unbiased=*/false);
  };
  Tensors outputs(2);
  run_ranks(2, [&](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels).eps(0), group);
    const int rank = group->rank();
    outputs[static_cast<size_t>(rank)] = norm(whole.chunk(2)[rank].to(at::kFloat));
  });
  expect_close(stddev_of(at::cat(outputs)), at::ones({kChannels}, at::kDouble), "deviation", 1e-3);
}

TEST(SyncBatchNorm, ComputesHalfTypesInSingle) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    const Tensor whole = batches(32, {4}, 1)[0].to(type);
    torch::nn::BatchNorm1d reference{kChannels};
    reference->to(at::kDouble);
    const Tensor in_double = whole.to(at::kDouble).set_requires_grad(true);
    const Tensor expected = reference(in_double);
    loss_of(expected, in_double).backward();
    run_ranks(2, [&](const Group& group) {
      SyncBatchNorm norm(kChannels, group);  // weights in fp32, as under autocast
      const Tensor input = whole.chunk(2)[group->rank()].clone().set_requires_grad(true);
      const Tensor output = norm(input);
      EXPECT_EQ(output.scalar_type(), type);
      loss_of(output.to(at::kDouble), input.to(at::kDouble)).backward();
      EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
      const double unit = type == at::kHalf ? 1e-3 : 8e-3;
      expect_close(output.to(at::kDouble), expected.detach().chunk(2)[group->rank()], "output",
                   4 * unit);
      expect_close(input.grad().to(at::kDouble), in_double.grad().chunk(2)[group->rank()],
                   "gradient", 4 * unit);
      expect_close(norm->running_var.to(at::kDouble), reference->running_var, "variance", 1e-4);
    });
  }
}

struct Net : torch::nn::Module {
  explicit Net(const Group& group = nullptr)
      : conv1(register_module("conv1", torch::nn::Conv2d(2, 4, 3))),
        conv2(register_module("conv2", torch::nn::Conv2d(4, 3, 2))),
        fc(register_module("fc", torch::nn::Linear(12, 2))),
        norm1(register_module("norm1", SyncBatchNorm(4, group))),
        norm2(register_module("norm2", SyncBatchNorm(3, group))) {
    torch::Generator generator = at::detail::createCPUGenerator(3);
    const torch::NoGradGuard no_grad;
    to(at::kDouble);
    for (auto& parameter : parameters()) {
      parameter.copy_(at::randn(parameter.sizes(), generator, at::kDouble) * 0.5);
    }
  }
  Tensor forward(const Tensor& input) {
    const Tensor hidden = norm2(conv2(norm1(conv1(input)).relu())).tanh();
    return fc(hidden.flatten(1));
  }
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc;
  SyncBatchNorm norm1, norm2;
};

TEST(SyncBatchNorm, GivesADeepNetTheGradientsOfOneBatch) {
  torch::Generator generator = at::detail::createCPUGenerator(1);
  const Tensor whole = at::randn({9, 2, 5, 5}, generator, at::kDouble);
  const std::vector<int64_t> shares = {5, 1, 3};
  Net alone;
  alone.forward(whole).pow(2).sum().backward();
  struct {
    Mutex mutex;
    Tensors all ABSL_GUARDED_BY(mutex);
  } sums;
  {
    const MutexLock lock(sums.mutex);
    for (const Tensor& parameter : alone.parameters()) {
      sums.all.push_back(at::zeros_like(parameter));
    }
  }
  run_ranks(3, [&](const Group& group) {
    Net net(group);
    net.forward(whole.split_with_sizes(shares)[group->rank()]).pow(2).sum().backward();
    const MutexLock lock(sums.mutex);
    for (size_t i = 0; i < sums.all.size(); ++i) sums.all[i] += net.parameters()[i].grad();
  });
  const MutexLock lock(sums.mutex);
  for (size_t i = 0; i < sums.all.size(); ++i) {
    expect_close(sums.all[i], alone.parameters()[i].grad(), alone.named_parameters().keys()[i]);
  }
}

TEST(SyncBatchNorm, GivesTheGradientsThatDifferencesGive) {
  const Tensor whole = batches(5, {}, 1)[0];
  run_ranks(2, [&](const Group& group) {
    SyncBatchNorm norm(BatchNormOptions(kChannels).track_running_stats(false), group);
    norm->to(at::kDouble);
    const auto loss = [&](const Tensor& batch) {  // of all ranks, as a function of all inputs
      const Tensor input = batch.split_with_sizes({2, 3})[group->rank()];
      const Tensor mine = (norm(input).pow(3) * at::arange(kChannels)).sum();
      const Tensor all = mine.detach().clone();
      group->all_reduce(all);
      return std::pair(mine, all.item<double>());
    };
    const Tensor input = whole.clone().set_requires_grad(true);
    loss(input).first.backward();
    const Tensor grad = input.grad().clone();
    group->all_reduce(grad);  // collects the gradients of each rank's rows
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t channel = 0; channel < kChannels; ++channel) {
        const auto moved = [&](double by) {
          const Tensor batch = whole.clone();
          batch[row][channel] += by;
          return loss(batch).second;
        };
        const double difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        EXPECT_NEAR(grad[row][channel].item<double>(), difference, 1e-6);
      }
    }
  });
}

TEST(SyncBatchNorm, IsBatchNormInEvalModeAndWithoutAGroup) {
  const Tensors inputs = batches(6, {4});
  torch::nn::BatchNorm1d reference{kChannels};
  const Outcome expected = train(*reference, inputs);
  reference->eval();
  const Tensor expected_eval = reference(inputs[0]);

  SyncBatchNorm alone(kChannels);
  expect_close(train(*alone, inputs).input_grads[2], expected.input_grads[2], "gradient");
  alone->eval();
  expect_close(alone(inputs[0]), expected_eval, "eval");

  run_ranks(2, [&](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    train(*norm, {inputs[0].chunk(2)[group->rank()]});
    norm->running_mean.copy_(reference->running_mean);
    norm->running_var.copy_(reference->running_var);
    norm->eval();
    if (group->rank() == 0) expect_close(norm(inputs[0]), expected_eval, "eval, one rank only");
  });
}

TEST(SyncBatchNorm, LeavesTheStatisticsOfABatchThatIsEmptyEverywhere) {
  run_ranks(2, [&](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    const Tensor input = at::zeros({0, kChannels}).set_requires_grad(true);
    const Tensor output = norm(input);
    output.sum().backward();
    EXPECT_EQ(output.sizes(), input.sizes());
    EXPECT_TRUE(norm->weight.grad().equal(at::zeros({kChannels})));
    EXPECT_TRUE(norm->running_mean.equal(at::zeros({kChannels})));
    EXPECT_TRUE(norm->running_var.equal(at::ones({kChannels})));
  });
}

TEST(SyncBatchNorm, RefusesASingleValuePerChannelOnEveryRank) {
  run_ranks(3, [](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    const Tensor input = at::ones({group->rank() == 1 ? 1 : 0, kChannels});
    EXPECT_THAT(value_error_of([&] { norm(input); }),
                HasSubstr("all ranks together have one value per channel"));
    EXPECT_TRUE(norm->running_mean.equal(at::zeros({kChannels})));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  });
}

TEST(SyncBatchNorm, NamesRanksThatDifferOnEveryRank) {
  run_ranks(3, [](const Group& group) {
    const int64_t channels = group->rank() == 2 ? 4 : 5;
    SyncBatchNorm norm(channels, group);
    EXPECT_THAT(value_error_of([&] {
                  norm(at::ones({2, channels}));
                }),
                HasSubstr("rank 0 has 5 channels of Float, rank 2 has 4 channels of Float"));
  });
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    const auto type = group->rank() == 0 ? at::kFloat : at::kHalf;
    EXPECT_THAT(value_error_of([&] {
                  norm(at::ones({2, kChannels}, type));
                }),
                HasSubstr("rank 0 has 5 channels of Float, rank 1 has 5 channels of Half"));
  });
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    norm(at::ones({2, kChannels}));
    const auto type = group->rank() == 0 ? at::kFloat : at::kHalf;
    EXPECT_ANY_THROW(norm(at::ones({2, kChannels}, type))) << "a type that changes on one rank";
  });
}

TEST(SyncBatchNorm, RefusesInputsThatDoNotFit) {
  SyncBatchNorm norm(kChannels);
  const auto error = [&](const Tensor& input) { return value_error_of([&] { norm(input); }); };
  EXPECT_THAT(error(at::ones({kChannels})), HasSubstr("takes (N, 5)"));
  EXPECT_THAT(error(at::ones({2, 4, 3})), HasSubstr("not [2, 4, 3]"));
  EXPECT_THAT(error(at::ones({2, kChannels}, at::kLong)), HasSubstr("of Long"));
  EXPECT_THAT(error(Tensor()), HasSubstr("undefined"));
  EXPECT_THAT(value_error_of([] { SyncBatchNorm(0); }), HasSubstr("at least 1"));
}

TEST(SyncBatchNorm, RefusesToBeDifferentiatedTwice) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    const Tensor input = at::randn({3, kChannels}).set_requires_grad(true);
    const Tensor gradient = torch::autograd::grad({norm(input).pow(2).sum()}, {input}, {}, true,
                                                  /*create_graph=*/true)[0];
    EXPECT_THAT(failure_as<c10::Error>([&] { gradient.pow(2).sum().backward(); }),
                HasSubstr("cannot be differentiated twice"));
  });
}

TEST(SyncBatchNorm, KeepsItsGroupAndStateWhenCloned) {
  run_ranks(2, [](const Group& group) {
    SyncBatchNorm norm(kChannels, group);
    norm(at::randn({3, kChannels}));
    const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
    EXPECT_EQ(copy->group(), group);
    EXPECT_TRUE(copy->running_mean.equal(norm->running_mean));
    EXPECT_FALSE(copy->running_mean.is_alias_of(norm->running_mean));
    EXPECT_FALSE(copy->weight.is_same(norm->weight));
    const Tensor input = at::randn({3, kChannels});
    EXPECT_TRUE(copy->forward(input).equal(norm(input)));
    EXPECT_EQ(copy->num_batches_tracked.item<int64_t>(), 2);
  });
}

}  // namespace
}  // namespace weft::testing
