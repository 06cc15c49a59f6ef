// Hooks, model averaging and ZeRO equal Python's results (golden/hooks.json, zero.json).
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/ddp/hooks/power_sgd_hook.h"
#include "weft/ddp/model_averaging.h"
#include "weft/ddp/zero_redundancy_optimizer.h"
#include "weft/tests/ddp/golden.h"
#include "weft/tests/ddp/grad_buckets.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using nlohmann::json;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

json case_of(const std::string& file, const std::string& name, int world) {
  for (const json& test : golden_cases(file)) {
    if (test.at("name") == name && test.at("world") == world) return test;
  }
  throw std::runtime_error("no golden case " + name);
}

Tensors tensors_of(const json& values, const Names& names, at::ScalarType type = at::kDouble) {
  Tensors result;
  for (const std::string& name : names) result.push_back(tensor_of(values.at(name), type));
  return result;
}

void expect_close(const Tensors& tensors, const Tensors& expected, double tolerance,
                  const std::string& where) {
  ASSERT_EQ(tensors.size(), expected.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(at::allclose(tensors[i], expected[i], tolerance, tolerance))
        << where << ", tensor " << i << "\n"
        << tensors[i] << "\n"
        << expected[i];
  }
}

// Runs the hook on one bucket of these gradients.
Tensors reduced(c10d::CommHookInterface& hook, const Tensors& gradients) {
  Shapes shapes;
  Tensors pieces;
  for (const at::Tensor& gradient : gradients) {
    shapes.push_back(gradient.sizes().vec());
    pieces.push_back(gradient.reshape(-1));
  }
  c10d::GradBucket bucket = make_bucket(at::cat(pieces), shapes);
  const at::Tensor result = result_of(hook, bucket);
  Tensors views;
  int64_t begin = 0;
  for (const at::Tensor& gradient : gradients) {
    views.push_back(result.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
    begin += gradient.numel();
  }
  return views;
}

// ---- hooks

// Gloo adds half-precision values in half precision, so with more than two ranks its rounding
// differs.
void expect_compress(const std::string& name, CommHook (*make)(std::shared_ptr<ProcessGroup>),
                     double tolerance) {
  for (const int world : {2, 3}) {
    const json test = case_of("hooks", name, world);
    run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
      const Names names = {"bias", "weight"};
      const CommHook hook = make(group);
      for (size_t step = 0; step < test.at("steps").size(); ++step) {
        const int rank = group->rank();
        const Tensors given = tensors_of(step_value(test, rank, step, "given"), names, at::kFloat);
        const Tensors expected =
            tensors_of(step_value(test, rank, step, "gradients"), names, at::kFloat);
        expect_close(reduced(*hook, given), expected, world == 2 ? 1e-7 : tolerance, name);
      }
    });
  }
}

TEST(GoldenHooks, Fp16CompressIsAsInPython) {
  expect_compress("fp16_compress", fp16_compress_hook, 1e-3);
}

TEST(GoldenHooks, Bf16CompressIsAsInPython) {
  expect_compress("bf16_compress", bf16_compress_hook, 8e-3);
}

TEST(GoldenHooks, PowerSgdIsAsInPython) {
  const json inputs = case_of("hooks", "power_sgd_inputs", 3);
  const Names names = {"bias", "small", "conv", "right", "left"};  // as DDP rebuilds the bucket
  int cases = 0;
  for (const json& test : golden_cases("hooks")) {
    const auto name = test.at("name").get<std::string>();
    if (name.rfind("power_sgd_rank", 0) != 0) continue;
    ++cases;
    const json& given = test.at("options");
    PowerSgdOptions options;
    options.matrix_approximation_rank = given.at("matrix_approximation_rank");
    options.start_power_sgd_iter = given.at("start_powerSGD_iter");
    options.min_compression_rate = given.at("min_compression_rate");
    options.use_error_feedback = given.at("use_error_feedback");
    options.warm_start = given.at("warm_start");
    options.batch_tensors_with_same_shape = given.at("batch_tensors_with_same_shape");
    run_ranks(test.at("world"), [&](std::shared_ptr<ProcessGroup> group) {
      const auto hook = power_sgd_hook(group, options);
      const int rank = group->rank();
      for (size_t step = 0; step < test.at("steps").size(); ++step) {
        const Tensors results =
            reduced(*hook, tensors_of(step_value(inputs, rank, step, "given"), names));
        if (static_cast<int64_t>(step) < options.start_power_sgd_iter) continue;
        expect_close(results, tensors_of(step_value(test, rank, step, "gradients"), names), 1e-9,
                     name + ", step " + std::to_string(step));
      }
    });
  }
  EXPECT_EQ(cases, 8);
}

// ---- post-local SGD and averaging

void expect_averaging(
    const std::string& name,
    const std::function<std::shared_ptr<ModelAverager>(std::shared_ptr<ProcessGroup>)>& make) {
  const json test = case_of("hooks", name, 4);
  run_ranks(4, [&](std::shared_ptr<ProcessGroup> group) {
    const Names names = {"bias", "weight"};
    const int rank = group->rank();
    CommHook hook = noop_hook();
    if (const json& given = test.at("hook"); !given.is_null()) {
      PostLocalSgdOptions options;
      options.group = group;
      options.subgroup = group->new_group({rank / 2 * 2, rank / 2 * 2 + 1});
      options.start_local_sgd_iter = given.at("start_localSGD_iter");
      options.post_local_gradient_allreduce = given.value("post_local_gradient_allreduce", true);
      hook = post_local_sgd_hook(options);
    }
    Tensors parameters = tensors_of(test.at("parameters"), names);
    for (at::Tensor& one : parameters) one.set_requires_grad(true);
    PostLocalSgdOptimizer optimizer(
        std::make_shared<SGD>(parameters, SGDOptions(test.at("lr").get<double>())), make(group));
    for (size_t step = 0; step < test.at("steps").size(); ++step) {
      const Tensors gradients =
          reduced(*hook, tensors_of(step_value(test, rank, step, "given"), names));
      for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
      optimizer.step();
      expect_close(parameters, tensors_of(step_value(test, rank, step, "parameters"), names), 1e-12,
                   name + ", step " + std::to_string(step));
    }
  });
}

void expect_periodic(const std::string& name) {
  const json options = case_of("hooks", name, 4).at("averager");
  expect_averaging(name, [&](std::shared_ptr<ProcessGroup> group) {
    return std::make_shared<PeriodicModelAverager>(
        group, PeriodicAveragingOptions{.period = options.at("period"),
                                        .warmup_steps = options.at("warmup_steps")});
  });
}

TEST(GoldenAveraging, PostLocalSgdIsAsInPython) {
  expect_periodic("post_local_sgd");
  expect_periodic("post_local_sgd_without_subgroup_allreduce");
}

TEST(GoldenAveraging, PeriodicAveragingIsAsInPython) { expect_periodic("periodic_averaging"); }

TEST(GoldenAveraging, HierarchicalAveragingIsAsInPython) {
  const json options = case_of("hooks", "hierarchical_averaging", 4).at("averager");
  expect_averaging("hierarchical_averaging", [&](std::shared_ptr<ProcessGroup> group) {
    HierarchicalAveragingOptions levels;
    for (const auto& [period, size] : options.at("period_group_size_dict").items()) {
      levels.group_sizes[std::stoll(period)] = size;
    }
    levels.warmup_steps = options.at("warmup_steps");
    return std::make_shared<HierarchicalModelAverager>(group, levels);
  });
}

// ---- ZeRO

TEST(GoldenZero, PartitionsAreAsInPython) {
  int cases = 0;
  for (const json& test : golden_cases("zero")) {
    if (test.at("kind") != "partition") continue;
    ++cases;
    const auto groups = test.at("groups").get<std::vector<std::vector<int64_t>>>();
    const auto ranks = zero_partition(groups, test.at("world"));
    std::vector<int> flat;
    for (const auto& group : ranks) flat.insert(flat.end(), group.begin(), group.end());
    const auto expected = test.at("partition").get<std::vector<std::vector<std::vector<size_t>>>>();
    for (size_t rank = 0; rank < expected.size(); ++rank) {
      for (const auto& group : expected[rank]) {
        for (const size_t parameter : group) {
          EXPECT_EQ(flat.at(parameter), static_cast<int>(rank))
              << test.at("name") << ", parameter " << parameter;
        }
      }
    }
  }
  EXPECT_EQ(cases, 27);
}

template <class Optimizer, class Options>
void expect_zero_steps(const std::string& name, const Options& options) {
  const Names names = {"first.weight", "first.bias", "second.weight", "second.bias"};
  for (const int world : {2, 3, 4}) {
    const json test = case_of("zero", name, world);
    run_ranks(world, [&](std::shared_ptr<ProcessGroup> group) {
      Tensors parameters = tensors_of(test.at("parameters"), names);
      for (at::Tensor& one : parameters) one.set_requires_grad(true);
      ZeroRedundancyOptimizer<Optimizer, Options> optimizer(parameters, options, group);
      for (const json& step : test.at("steps")) {
        const Tensors gradients = tensors_of(step.at("gradients"), names);
        for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
        optimizer.step();
        expect_close(parameters, tensors_of(step.at("parameters"), names), 1e-12, name);
      }
    });
  }
}

TEST(GoldenZero, StepsAreAsInPython) {
  expect_zero_steps<Adam>("adam", AdamOptions(0.01));
  expect_zero_steps<AdamW>("adam_w", AdamWOptions(0.01).weight_decay(0.1));
  expect_zero_steps<SGD>("sgd_momentum", SGDOptions(0.1).momentum(0.9));
}

}  // namespace
}  // namespace weft::testing
