#include "weft/ddp/distributed_data_parallel.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DistributedDataParallelTest, GradientsAreThoseOfTheWholeBatch) {
  for (const int size : {1, 2, 3}) {
    Mlp whole(7);
    std::vector<at::Tensor> inputs;
    for (int rank = 0; rank < size; ++rank) inputs.push_back(input_of(rank));
    whole->forward(torch::cat(inputs)).pow(2).mean().backward();
    for (const bool views : {false, true}) {
      auto models = copies(size);
      run_ranks(size, [&](GroupPtr group) {
        const int rank = group->rank();
        DdpOptions options;
        options.gradient_as_bucket_view = views;
        DistributedDataParallel ddp(models[rank], group, options);
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          ddp(input_of(rank)).pow(2).mean().backward();
          expect_gradients(*models[rank], *whole);
        }
      });
    }
  }
}

TEST(DistributedDataParallelTest, TrainsAsOneProcessOnTheWholeBatch) {
  Mlp whole(7);
  torch::optim::SGD sgd(whole->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    sgd.zero_grad();
    whole->forward(torch::cat({input_of(0, step), input_of(1, step)})).pow(2).mean().backward();
    sgd.step();
  }
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    DistributedDataParallel ddp(models[rank], group);
    torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
      ddp(input_of(rank, step)).pow(2).mean().backward();
      optimizer.step();
    }
    expect_parameters(*models[rank], *whole);
  });
}

TEST(DistributedDataParallelTest, StartsFromRankZerosParametersAndBuffers) {
  std::vector<torch::nn::BatchNorm1d> models;
  for (int rank = 0; rank < 3; ++rank) {
    models.push_back(torch::nn::BatchNorm1d(4));
    const torch::NoGradGuard no_grad;
    models.back()->weight.fill_(rank + 1);
    models.back()->running_mean.fill_(10 * rank + 5);
  }
  run_ranks(3, [&](GroupPtr group) {
    auto& model = models[group->rank()];
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(model->weight[0].item<double>(), 1);
    EXPECT_EQ(model->running_mean[0].item<double>(), 5);
    EXPECT_THAT(ddp.named_parameters().keys(), ElementsAre("module.weight", "module.bias"));
  });
}

TEST(DistributedDataParallelTest, NoSyncAddsUpAndTheNextPassReducesTheSum) {
  Mlp whole(7);
  for (int step = 0; step < 3; ++step) {
    whole->forward(torch::cat({input_of(0, step), input_of(1, step)})).pow(2).mean().backward();
  }
  for (const bool views : {false, true}) {
    auto models = copies(2);
    run_ranks(2, [&](GroupPtr group) {
      const int rank = group->rank();
      DdpOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel ddp(models[rank], group, options);
      for (int round = 0; round < 2; ++round) {
        ddp.zero_grad();
        {
          const auto guard = ddp.no_sync();
          ddp(input_of(rank, 0)).pow(2).mean().backward();
          ddp(input_of(rank, 1)).pow(2).mean().backward();
        }
        ddp(input_of(rank, 2)).pow(2).mean().backward();
        expect_gradients(*models[rank], *whole);
      }
    });
  }
}

TEST(DistributedDataParallelTest, RanksThatDifferAreNamedOnAll) {
  run_ranks(3, [&](GroupPtr group) {
    const bool odd = group->rank() == 2;
    auto model = std::make_shared<torch::nn::LinearImpl>(odd ? 5 : 4, 2);
    EXPECT_THAT(
        failure_of([&] { DistributedDataParallel<torch::nn::LinearImpl> ddp(model, group); }),
        ::testing::AllOf(HasSubstr("'weight'"), HasSubstr("rank 2"), HasSubstr("[2, 5]")));
  });
}

// In each step another rank has far more to do than the others.
TEST(DistributedDataParallelTest, RanksOfUnequalSpeedTrainAsOne) {
  constexpr int kSteps = 9;
  Mlp whole(7);
  torch::optim::SGD sgd(whole->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const at::Tensor all = torch::cat({input_of(0, step), input_of(1, step), input_of(2, step)});
    whole->forward(all).pow(2).mean().backward();
    sgd.step();
  }
  auto models = copies(3);
  run_ranks(3, [&](GroupPtr group) {
    const int rank = group->rank();
    DdpOptions options;
    options.bucket_cap_mb = {0.0001};
    DistributedDataParallel ddp(models[rank], group, options);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < kSteps; ++step) {
      if (step % 3 == rank) torch::ones({300, 300}).matmul(torch::ones({300, 300}));
      optimizer.zero_grad();
      ddp(input_of(rank, step)).pow(2).mean().backward();
      if (step % 3 == rank) torch::ones({300, 300}).matmul(torch::ones({300, 300}));
      optimizer.step();
    }
    expect_parameters(*models[rank], *whole);
  });
}

}  // namespace
}  // namespace weft::testing
