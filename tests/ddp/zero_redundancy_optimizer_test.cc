#include "weft/ddp/zero_redundancy_optimizer.h"

#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "weft/tests/comm/failure_of.h"
#include "weft/tests/ddp/grad_buckets.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Tensors = std::vector<at::Tensor>;

const Shapes kShapes = {{8, 5}, {5}, {3, 4}, {4}, {7, 7}, {2}, {}};

Tensors make_parameters(const Shapes& shapes = kShapes, at::ScalarType type = at::kDouble) {
  Tensors result;
  for (const auto& shape : shapes) {
    const int number = static_cast<int>(result.size());
    result.push_back(gradients(50, c10::multiply_integers(shape), number, type).view(shape));
    result.back().set_requires_grad(true);
  }
  return result;
}

// Sets the gradients that DDP would have left; they are equal on all ranks.
void set_gradients(const Tensors& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    parameter.mutable_grad() = gradients(60 + step, parameter.numel(), static_cast<int>(i))
                                   .to(parameter.scalar_type())
                                   .view(parameter.sizes())
                                   .clone();  // LibTorch's zero_grad refuses views
  }
}

void expect_equal(const Tensors& parameters, const Tensors& expected, const std::string& where) {
  ASSERT_EQ(parameters.size(), expected.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(parameters[i], expected[i], 0, 1e-12)) << where << ", parameter " << i;
  }
}

// Two groups: the first four parameters have other options than the rest.
template <class Options>
std::vector<OptimizerParamGroup> two_groups(const Tensors& parameters, const Options& first) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(Tensors(parameters.begin(), parameters.begin() + 4),
                      std::make_unique<Options>(first));
  groups.emplace_back(Tensors(parameters.begin() + 4, parameters.end()));
  return groups;
}

template <class Optimizer, class Options>
void expect_as_one_process(Options first, Options rest) {
  for (const int size : {1, 2, 3, 9}) {
    for (const bool view : {false, true}) {
      run_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
        const Tensors parameters = make_parameters();
        const Tensors reference = make_parameters();
        ZeroRedundancyOptimizer<Optimizer, Options> optimizer(two_groups(parameters, first), rest,
                                                              group, {view});
        Optimizer whole(two_groups(reference, first), rest);
        for (int step = 0; step < 5; ++step) {
          set_gradients(parameters, step);
          set_gradients(reference, step);
          optimizer.step();
          whole.step();
          expect_equal(parameters, reference,
                       "size " + std::to_string(size) + ", step " + std::to_string(step));
        }
        optimizer.zero_grad();
        for (const at::Tensor& one : parameters) EXPECT_FALSE(one.grad().defined());
      });
    }
  }
}

TEST(Zero, SgdWithMomentumIsAsOneProcess) {
  expect_as_one_process<SGD>(SGDOptions(0.1).momentum(0.9),
                             SGDOptions(0.01).momentum(0.5).weight_decay(0.1));
}

TEST(Zero, AdamIsAsOneProcess) {
  expect_as_one_process<Adam>(AdamOptions(0.1), AdamOptions(0.01).amsgrad(true));
}

TEST(Zero, AdamWIsAsOneProcess) {
  expect_as_one_process<AdamW>(AdamWOptions(0.1).weight_decay(0.2), AdamWOptions(0.01));
}

TEST(Zero, PartitionsTheLargestFirstToTheRankWithTheLeast) {
  // 49 goes to rank 0, 40 to rank 1, and all the others to rank 2.
  EXPECT_THAT(zero_partition({{40, 5, 12, 4, 49, 2, 1}}, 3),
              ElementsAre(ElementsAre(1, 2, 2, 2, 0, 2, 2)));
  // Equal sizes go to the ranks in order. The next group starts with what the ranks already hold.
  EXPECT_THAT(zero_partition({{3, 3, 3}, {2, 3}}, 2),
              ElementsAre(ElementsAre(0, 1, 0), ElementsAre(0, 1)));
}

TEST(Zero, KeepsTheStateOfItsShareOnly) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    const Tensors parameters = make_parameters();
    ZeroRedundancyOptimizer<Adam, AdamOptions> optimizer(parameters, AdamOptions(), group);
    set_gradients(parameters, 0);
    optimizer.step();
    EXPECT_TRUE(optimizer.state().empty());
    const std::vector<int>& ranks = optimizer.partition()[0];
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(optimizer.local().state().count(parameters[i].unsafeGetTensorImpl()),
                ranks[i] == group->rank());
    }
  });
}

TEST(Zero, TakesEachParameterFromItsOwnerOnly) {
  for (const bool view : {false, true}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      const Tensors parameters = make_parameters();
      ZeroRedundancyOptimizer<SGD, SGDOptions> optimizer(parameters, SGDOptions(1), group, {view});
      for (const at::Tensor& one : parameters) {
        one.mutable_grad() = at::full_like(one, group->rank() + 1).detach();
      }
      optimizer.step();
      const Tensors before = make_parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const int owner = optimizer.partition()[0][i];
        EXPECT_TRUE(parameters[i].equal(before[i] - (owner + 1))) << i;
      }
    });
  }
}

TEST(Zero, ASchedulersLearningRateReachesTheShares) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Tensors parameters = make_parameters();
    const Tensors reference = make_parameters();
    ZeroRedundancyOptimizer<SGD, SGDOptions> optimizer(parameters, SGDOptions(0.5), group);
    SGD whole(reference, SGDOptions(0.5));
    torch::optim::StepLR scheduler(optimizer, 1, 0.1);
    torch::optim::StepLR whole_scheduler(whole, 1, 0.1);
    for (int step = 0; step < 3; ++step) {
      set_gradients(parameters, step);
      set_gradients(reference, step);
      optimizer.step();
      whole.step();
      scheduler.step();
      whole_scheduler.step();
    }
    expect_equal(parameters, reference, "scheduled");
    EXPECT_NEAR(optimizer.local().param_groups()[0].options().get_lr(), 0.05, 1e-12);
  });
}

TEST(Zero, AnAddedGroupIsSpreadToo) {
  for (const bool view : {false, true}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      const Tensors parameters = make_parameters();
      const Tensors reference = make_parameters();
      const Tensors first(parameters.begin(), parameters.begin() + 4);
      ZeroRedundancyOptimizer<Adam, AdamOptions> optimizer(first, AdamOptions(0.1), group, {view});
      Adam whole(Tensors(reference.begin(), reference.begin() + 4), AdamOptions(0.1));
      for (int step = 0; step < 4; ++step) {
        if (step == 2) {
          const std::vector<int> before = optimizer.partition()[0];
          optimizer.add_param_group(two_groups(parameters, AdamOptions(1))[1]);
          whole.add_param_group(two_groups(reference, AdamOptions(1))[1]);
          EXPECT_EQ(optimizer.partition()[0], before);
        }
        set_gradients(parameters, step);
        set_gradients(reference, step);
        optimizer.step();
        whole.step();
        expect_equal(parameters, reference, "step " + std::to_string(step));
      }
    });
  }
}

TEST(Zero, CallsTheClosureOnceWithGradientsOn) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Tensors parameters = make_parameters();
    ZeroRedundancyOptimizer<SGD, SGDOptions> optimizer(parameters, SGDOptions(0.5), group);
    int calls = 0;
    const at::NoGradGuard no_grad;
    const at::Tensor loss = optimizer.step([&] {
      ++calls;
      at::Tensor sum = parameters[0].sum();
      sum.backward();
      return sum;
    });
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(loss.defined());
    EXPECT_TRUE(parameters[0].equal(make_parameters()[0] - 0.5));
  });
}

TEST(Zero, KeepsTypesAndStridesOfParameters) {
  for (const bool view : {false, true}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      Tensors parameters = {at::ones({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast),
                            at::ones({5, 6}).t(), at::ones({7}, at::kDouble),
                            at::ones({4, 8}).narrow(1, 0, 4), at::ones({0, 3})};
      std::vector<std::vector<int64_t>> strides;
      for (at::Tensor& one : parameters) {
        strides.push_back(one.strides().vec());
        one = one.detach().set_requires_grad(true);
        one.mutable_grad() = at::arange(one.numel(), one.options()).view(one.sizes()).detach();
      }
      ZeroRedundancyOptimizer<SGD, SGDOptions> optimizer(parameters, SGDOptions(0.5), group,
                                                         {view});
      optimizer.step();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(parameters[i].equal(1 - 0.5 * parameters[i].grad())) << i;
        // Parameter 3 has gaps.
        if (i != 3) {
          EXPECT_EQ(parameters[i].strides().vec(), strides[i]) << i;
        }
      }
    });
  }
}

template <class Value>
std::string saved(const Value& optimizer) {
  std::ostringstream stream;
  torch::save(optimizer, stream);
  return std::move(stream).str();
}

template <class Value>
void load(Value& optimizer, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::load(optimizer, stream);
}

TEST(Zero, WhatTwoRanksSavedContinuesOnThreeAndOnOneAndBack) {
  const AdamOptions first(0.1);
  const AdamOptions rest(0.02);
  const Tensors reference = make_parameters();
  Adam whole(two_groups(reference, first), rest);
  Tensors middle;  // the parameters when the state was saved
  for (int step = 0; step < 6; ++step) {
    set_gradients(reference, step);
    whole.step();
    if (step != 2) continue;
    for (const at::Tensor& one : reference) middle.push_back(one.detach().clone());
  }
  const auto start = [](const Tensors& from) {
    Tensors result;
    for (const at::Tensor& one : from) result.push_back(one.clone().set_requires_grad(true));
    return result;
  };
  const auto go_on = [&](const Tensors& parameters, torch::optim::Optimizer& optimizer) {
    for (int step = 3; step < 6; ++step) {
      set_gradients(parameters, step);
      optimizer.step();
    }
    expect_equal(parameters, reference, "continued");
  };

  std::string bytes;
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const Tensors parameters = make_parameters();
    ZeroRedundancyOptimizer<Adam, AdamOptions> optimizer(two_groups(parameters, first), rest,
                                                         group);
    for (int step = 0; step < 3; ++step) {
      set_gradients(parameters, step);
      optimizer.step();
    }
    optimizer.consolidate_state_dict(1);
    if (group->rank() == 1) bytes = saved(optimizer);
    go_on(parameters, optimizer);  // saving changed nothing
  });

  const auto go_on_from = [&](int size, const std::string& state) {
    run_ranks(size, [&](std::shared_ptr<ProcessGroup> group) {
      const Tensors parameters = start(middle);
      ZeroRedundancyOptimizer<Adam, AdamOptions> optimizer(two_groups(parameters, AdamOptions(9)),
                                                           AdamOptions(9), group);
      load(optimizer, state);
      go_on(parameters, optimizer);
    });
  };
  go_on_from(3, bytes);

  const Tensors parameters = start(middle);
  Adam plain(two_groups(parameters, AdamOptions(9)), AdamOptions(9));
  load(plain, bytes);
  const std::string plain_bytes = saved(plain);
  go_on(parameters, plain);
  go_on_from(2, plain_bytes);
}

TEST(Zero, SavesOnlyWhatWasConsolidatedSinceTheLastStep) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Tensors parameters = make_parameters();
    ZeroRedundancyOptimizer<SGD, SGDOptions> optimizer(parameters, SGDOptions(0.5), group);
    const auto error = [&] { return value_error_of([&] { saved(optimizer); }); };
    EXPECT_THAT(error(), HasSubstr("consolidate_state_dict"));
    optimizer.consolidate_state_dict(0);
    EXPECT_EQ(error().empty(), group->rank() == 0);
    optimizer.step();
    EXPECT_THAT(error(), HasSubstr("consolidate_state_dict"));
    EXPECT_THAT(value_error_of([&] { optimizer.consolidate_state_dict(2); }), HasSubstr("rank 2"));
  });
}

void expect_refused(const std::function<void(int rank, Tensors&)>& change,
                    const std::string& error) {
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    Tensors parameters = make_parameters();
    change(group->rank(), parameters);
    EXPECT_THAT(value_error_of([&] {
                  ZeroRedundancyOptimizer<SGD, SGDOptions>(parameters, SGDOptions(1), group);
                }),
                HasSubstr(error));
  });
}

TEST(Zero, DifferentParametersAreAnErrorOnEveryRankThatNamesTheFirst) {
  expect_refused(
      [](int rank, auto& p) {
        if (rank == 2) p[3] = at::ones({5}, at::kDouble);
      },
      "parameter 3 differs among the ranks: group 0, Double [4] on cpu on rank 0, group "
      "0, Double [5] on cpu on rank 2");
  expect_refused(
      [](int rank, auto& p) {
        if (rank == 0) p[1] = p[1].to(at::kFloat).detach();
      },
      "parameter 1 differs among the ranks: group 0, Float [5]");
  expect_refused(
      [](int rank, auto& p) {
        if (rank == 1) p.pop_back();
      },
      "parameter 6 is not on all ranks: rank 0 has 7 parameters, rank 1 has 6");
  expect_refused([](int, auto& p) { p[4] = p[2]; },
                 "parameter 4 cannot be optimized: group 0, the same as parameter 2");
  expect_refused(
      [](int rank, auto& p) {
        if (rank == 1) p[2] = p[2] * 2;
      },
      "not a leaf");
  expect_refused([](int, auto& p) { p[2] = at::Tensor(); }, "parameter 2 cannot be optimized");
  expect_refused([](int, auto& p) { p.clear(); }, "no parameters");
  EXPECT_THAT(value_error_of([] {
                ZeroRedundancyOptimizer<SGD, SGDOptions>(make_parameters(), SGDOptions(1), nullptr);
              }),
              HasSubstr("group is null"));
}

TEST(Zero, ARefusedGroupIsNotAdded) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Tensors parameters = make_parameters();
    ZeroRedundancyOptimizer<SGD, SGDOptions> optimizer(parameters, SGDOptions(1), group);
    const int64_t length = 3 + group->rank();
    EXPECT_THAT(value_error_of(
                    [&] { optimizer.add_param_group(OptimizerParamGroup({at::ones({length})})); }),
                HasSubstr("parameter 7 differs"));
    EXPECT_EQ(optimizer.param_groups().size(), 1u);
    set_gradients(parameters, 0);
    optimizer.step();
  });
}

}  // namespace
}  // namespace weft::testing
