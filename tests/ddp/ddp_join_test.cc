// Uneven inputs: what joined ranks do for the other ranks.
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/ddp/batch_norm/sync_batch_norm.h"
#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/ddp/join.h"
#include "weft/ddp/zero_redundancy_optimizer.h"
#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

using Ddp = DistributedDataParallel<MlpImpl>;

void expect_equal_models(const std::vector<Mlp>& models) {
  for (size_t rank = 1; rank < models.size(); ++rank) {
    expect_parameters(*models[0], *models[rank]);
  }
}

// Computes in one process what the ranks compute, each with its number of inputs. `by_all`: the
// average is over all ranks, not only over those that still train.
Mlp truth_of(const std::vector<int>& inputs, bool by_all) {
  Mlp model(7);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0;; ++step) {
    int training = 0;
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      if (step >= inputs[rank]) continue;
      ++training;
      sum = sum + loss_of(model->forward(input_of(static_cast<int>(rank), step)));
    }
    if (training == 0) return model;
    optimizer.zero_grad();
    (sum / (by_all ? static_cast<int>(inputs.size()) : training)).backward();
    optimizer.step();
  }
}

struct How {
  std::string name;
  std::vector<int> inputs;
  DdpOptions options;
  bool by_all = true;
  CommHook (*hook)(std::shared_ptr<ProcessGroup>) = nullptr;

  friend std::ostream& operator<<(std::ostream& out, const How& one) { return out << one.name; }
};
DdpOptions small(bool find_unused, bool fixed, bool views = true) {
  DdpOptions options;
  options.find_unused_parameters = find_unused;
  options.static_graph = fixed;
  options.gradient_as_bucket_view = views;
  options.bucket_cap_mb = {0.0001};
  return options;
}

class Joins : public ::testing::TestWithParam<How> {};

TEST_P(Joins, TrainsAsOneProcessWithAllInputsOver) {
  const How& how = GetParam();
  const int size = static_cast<int>(how.inputs.size());
  auto models = copies(size);
  const Mlp truth = truth_of(how.inputs, how.by_all);
  run_ranks(size, [&](GroupPtr group) {
    const int rank = group->rank();
    Ddp ddp(models[rank], group, how.options);
    if (how.hook != nullptr) ddp.register_comm_hook(how.hook(group));
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    JoinOptions options;
    options.divide_by_initial_world_size = how.by_all;
    // The inputs are split over two joins. A rank with few inputs in one join has as many as others
    // in the other.
    const int split = 2;
    for (const bool first : {true, false}) {
      ddp.join(
          [&] {
            for (int step = first ? 0 : split; step < how.inputs[rank]; ++step) {
              if (first && step == split) break;
              optimizer.zero_grad();
              loss_of(ddp(input_of(rank, step))).backward();
              optimizer.step();
            }
          },
          options);
    }
  });
  expect_equal_models(models);
  expect_parameters(*models[0], *truth, 1e-10);
}
INSTANTIATE_TEST_SUITE_P(
    Case, Joins,
    ::testing::Values(How{"Plain", {1, 3, 5}, small(false, false)},
                      How{"NoInputAtAll", {0, 3}, small(false, false)},
                      How{"NoInputAtAllOfTheLast", {5, 0}, small(false, false)},
                      How{"NobodyHasAny", {0, 0}, small(false, false)},
                      How{"ByThoseWhoTrain", {1, 5, 3}, small(false, false), false},
                      How{"FindUnused", {0, 4, 1}, small(true, false)},
                      How{"StaticGraph", {1, 5, 3}, small(false, true)},
                      How{"StaticGraphNoInput", {5, 0, 4}, small(false, true)},
                      How{"StaticGraphNoInputOfRankZero", {0, 4}, small(false, true)},
                      How{"Copies", {0, 4}, small(false, false, false)},
                      How{"Hook", {0, 4, 1}, small(false, false), true, allreduce_hook},
                      How{"HookStatic", {4, 0}, small(false, true), true, allreduce_hook}),
    [](const auto& info) { return info.param.name; });

// The rank without inputs in the first join has all inputs in the second.
TEST(DdpJoinTest, ARankThatShadowedTheFirstPassOfAStaticGraphTrainsLater) {
  for (const int idle : {0, 1}) {
    for (const int shadowed : {1, 2, 3}) {
      auto models = copies(2);
      run_ranks(2, [&](GroupPtr group) {
        const int rank = group->rank();
        Ddp ddp(models[rank], group, small(false, true));
        torch::optim::SGD optimizer(ddp.parameters(), 0.1);
        const auto steps = [&](int count) {
          for (int step = 0; step < count; ++step) {
            optimizer.zero_grad();
            loss_of(ddp(input_of(rank, step))).backward();
            optimizer.step();
          }
        };
        ddp.join([&] { steps(rank == idle ? 0 : shadowed); });
        ddp.join([&] { steps(4); });
        steps(2);
        EXPECT_TRUE(ddp.logging_data().has_rebuilt_buckets);
      });
      expect_equal_models(models);
    }
  }
}

TEST(DdpJoinTest, EvaluationAndNoSyncInsideTheBody) {
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    models[rank]->register_buffer("buffer", torch::full({1}, rank));
    Ddp ddp(models[rank], group, small(false, false));
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    ddp.join([&] {
      for (int step = 0; step < (rank == 0 ? 5 : 1); ++step) {
        optimizer.zero_grad();
        {
          const torch::NoGradGuard no_grad;
          ddp(input_of(rank, step));
        }
        {
          const auto guard = ddp.no_sync();
          loss_of(ddp(input_of(rank, step))).backward();
        }
        loss_of(ddp(input_of(rank, step + 1))).backward();
        optimizer.step();
      }
    });
    EXPECT_TRUE(ddp.logging_data().has_rebuilt_buckets);
  });
  expect_equal_models(models);
}

TEST(DdpJoinTest, AnErrorInTheBodyIsThrownAndTheOthersFailInTime) {
  auto models = copies(2);
  run_ranks(
      2,
      [&](GroupPtr group) {
        const int rank = group->rank();
        Ddp ddp(models[rank], group);
        const std::string failure = failure_of([&] {
          ddp.join([&] {
            for (int step = 0; step < 3; ++step) {
              if (rank == 1 && step == 1) throw std::runtime_error("no more");
              loss_of(ddp(input_of(rank, step))).backward();
            }
          });
        });
        if (rank == 1) {
          EXPECT_EQ(failure, "no more");
        } else {
          EXPECT_THAT(failure, HasSubstr("rank 1"));
        }
      },
      [](ProcessGroupOptions& options) { options.timeout = 5s; });
}

TEST(DdpJoinTest, AJoinThatEndedByAnErrorMayBeginAgain) {
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    Ddp ddp(models[group->rank()], group);
    for (int round = 0; round < 2; ++round) {
      EXPECT_EQ(failure_of([&] { ddp.join([] { throw std::runtime_error("no more"); }); }),
                "no more");
    }
    ddp.join([&] { loss_of(ddp(input_of(0))).backward(); });
  });
}

TEST(DdpJoinTest, BadArguments) {
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    Ddp ddp(models[group->rank()], group);
    EXPECT_THAT(failure_of([] { join({}, [] {}); }), HasSubstr("at least one"));
    const std::string nested = failure_of([&] { ddp.join([&] { ddp.join([] {}); }); });
    EXPECT_THAT(nested, HasSubstr("a join inside a join"));
    const auto other = group->new_group({0, 1});
    Ddp second(models[group->rank()], other);
    EXPECT_THAT(failure_of([&] {
                  join({&ddp.joinable(), &second.joinable()}, [] {});
                }),
                HasSubstr("one process group"));
  });
}

TEST(DdpJoinTest, SeveralDivideByThoseWhoTrain) {
  const Mlp truth = truth_of({1, 3}, false);
  auto one = copies(2), other = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    Ddp first(one[rank], group), second(other[rank], group);
    torch::optim::SGD optimizer(first.parameters(), 0.1), another(second.parameters(), 0.1);
    JoinOptions options;
    options.divide_by_initial_world_size = false;
    join(
        {&first.joinable(), &second.joinable()},
        [&] {
          for (int step = 0; step < (rank == 0 ? 1 : 3); ++step) {
            for (auto* const ddp : {&first, &second}) {
              ddp->zero_grad();
              loss_of((*ddp)(input_of(rank, step))).backward();
            }
            optimizer.step();
            another.step();
          }
        },
        options);
  });
  expect_equal_models({one[0], one[1], other[0], other[1], truth});
}

TEST(DdpJoinTest, AShareOfTheOptimizerGoesOnWhereInputsHaveEnded) {
  const auto train = [](const std::vector<Mlp>& models, bool shared, bool views) {
    run_ranks(3, [&](GroupPtr group) {
      const int rank = group->rank();
      DdpOptions options;
      options.gradient_as_bucket_view = views;
      Ddp ddp(models[rank], group, options);
      const torch::optim::AdamOptions adam(0.05);
      torch::optim::Adam plain(ddp.parameters(), adam);
      ZeroRedundancyOptimizer<torch::optim::Adam, torch::optim::AdamOptions> zero(ddp.parameters(),
                                                                                  adam, group);
      std::vector<Joinable*> joinables = {&ddp.joinable()};
      if (shared) joinables.push_back(&zero);
      join(joinables, [&] {
        for (int step = 0; step < 2 + 2 * rank; ++step) {
          ddp.zero_grad();
          loss_of(ddp(input_of(rank, step))).backward();
          shared ? zero.step() : plain.step();
        }
      });
    });
  };
  for (const bool views : {true, false}) {
    const auto truth = copies(3), models = copies(3);
    train(truth, /*shared=*/false, views);
    train(models, /*shared=*/true, views);
    expect_equal_models(models);
    expect_parameters(*models[0], *truth[0]);
  }
}

TEST(DdpJoinTest, RefusesAModuleWhoseForwardNeedsAllRanks) {
  run_ranks(2, [](GroupPtr group) {
    torch::nn::Sequential net(torch::nn::Linear(5, 4),
                              SyncBatchNorm(torch::nn::BatchNormOptions(4), group));
    net->to(torch::kDouble);
    DistributedDataParallel ddp(net, group);
    int steps = 0;
    const auto body = [&] {
      for (; steps < 1 + group->rank(); ++steps) loss_of(ddp(input_of(0))).backward();
    };
    EXPECT_THAT(failure_of([&] { ddp.join(body); }), HasSubstr("'1' is a SyncBatchNorm"));
    EXPECT_EQ(steps, 0);
    JoinOptions options;
    options.throw_on_early_termination = true;
    EXPECT_THAT(failure_of([&] { ddp.join(body, options); }), HasSubstr("no more inputs"));
    EXPECT_EQ(steps, 1);
  });
}

}  // namespace
}  // namespace weft::testing
