// The options of DistributedDataParallel, and the modules that it accepts.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Parameters p0, p1, ... of which forward sums some.
struct Bare : torch::nn::Module {
  explicit Bare(const std::vector<at::Tensor>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      register_parameter("p" + std::to_string(i), parameters[i],
                         parameters[i].requires_grad() || !parameters[i].is_leaf());
    }
  }
  at::Tensor forward(double factor) {
    at::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const at::Tensor& one : parameters()) sum = sum + one.to(torch::kDouble).sum() * factor;
    return sum;
  }
};
at::Tensor trained(const at::Tensor& one) { return one.requires_grad_(); }

TEST(DdpOptionsTest, IgnoredOnesAreNeitherReducedNorSent) {
  run_ranks(2, [](GroupPtr group) {
    const double rank = group->rank();
    auto model = std::make_shared<Bare>(
        std::vector{trained(torch::full({2}, rank)), trained(torch::full({2}, rank))});
    model->register_buffer("kept", torch::full({2}, rank));
    model->register_buffer("sent", torch::full({2}, rank));
    DdpOptions options;
    options.ignored = {"p1", "kept"};
    DistributedDataParallel ddp(model, group, options);
    ddp(rank + 1).backward();
    const auto parameters = model->parameters(), buffers = model->buffers();
    EXPECT_EQ(parameters[0][0].item<double>(), 0);
    EXPECT_EQ(parameters[1][0].item<double>(), rank);
    EXPECT_EQ(buffers[0][0].item<double>(), rank);
    EXPECT_EQ(buffers[1][0].item<double>(), 0);
    EXPECT_EQ(parameters[0].grad()[0].item<double>(), 1.5);
    EXPECT_EQ(parameters[1].grad()[0].item<double>(), rank + 1);
  });
}

TEST(DdpOptionsTest, FrozenOnesAreSentButNotReduced) {
  run_ranks(2, [](GroupPtr group) {
    const double rank = group->rank();
    auto model = std::make_shared<Bare>(
        std::vector{torch::full({2}, rank + 5), trained(torch::full({2}, rank))});
    DistributedDataParallel ddp(model, group);
    ddp(rank + 1).backward();
    EXPECT_EQ(model->parameters()[0][0].item<double>(), 5);
    EXPECT_FALSE(model->parameters()[0].grad().defined());
    EXPECT_THAT(ddp.logging_data().bucket_parameters, ElementsAre(ElementsAre(0)));
  });
}

TEST(DdpOptionsTest, TypesMixedAndEmptyOnesAmongThem) {
  const std::vector<at::ScalarType> types = {torch::kDouble,   torch::kHalf,   torch::kFloat,
                                             torch::kBFloat16, torch::kDouble, torch::kHalf};
  for (const std::string backend : {"weft", "gloo"}) {
    for (const bool views : {false, true}) {
      run_ranks(
          2,
          [&](GroupPtr group) {
            std::vector<at::Tensor> parameters;
            for (const at::ScalarType type : types) {
              parameters.push_back(trained(torch::ones({3, 2}, type)));
              parameters.push_back(trained(torch::ones({0, 4}, type)));
            }
            parameters.push_back(trained(torch::ones({0}, torch::kComplexFloat)));
            auto model = std::make_shared<Bare>(parameters);
            DdpOptions options;
            options.gradient_as_bucket_view = views;
            DistributedDataParallel ddp(model, group, options);
            for (int step = 0; step < 3; ++step) {
              ddp.zero_grad();
              torch::real(ddp(group->rank() + 1)).backward();
              for (const at::Tensor& one : model->parameters()) {
                EXPECT_EQ(one.grad().scalar_type(), one.scalar_type());
                EXPECT_EQ(one.grad().sizes(), one.sizes());
                EXPECT_EQ(one.grad().to(torch::kDouble).sum().item<double>(), 1.5 * one.numel());
              }
            }
          },
          [&](ProcessGroupOptions& options) { options.backend = backend; });
    }
  }
}

TEST(DdpOptionsTest, BucketsOfEmptyParametersAlone) {
  for (const std::string backend : {"weft", "gloo"}) {
    run_ranks(
        2,
        [](GroupPtr group) {
          auto model = std::make_shared<Bare>(std::vector{trained(torch::ones({0, 4})),
                                                          trained(torch::ones({0}, torch::kDouble)),
                                                          trained(torch::ones({1}, torch::kHalf))});
          DistributedDataParallel ddp(model, group);
          for (int step = 0; step < 3; ++step) ddp(1).backward();
          EXPECT_EQ(model->parameters()[0].grad().sizes(), model->parameters()[0].sizes());
          EXPECT_EQ(model->parameters()[2].grad()[0].item<double>(), 3);
        },
        [&](ProcessGroupOptions& options) { options.backend = backend; });
  }
}

TEST(DdpOptionsTest, SharedParametersAreOne) {
  run_ranks(2, [](GroupPtr group) {
    const at::Tensor one = trained(torch::ones({2}, torch::kDouble));
    for (const bool fixed : {false, true}) {
      auto model = std::make_shared<Bare>(std::vector{one, one});
      DdpOptions options;
      options.static_graph = fixed;
      DistributedDataParallel ddp(model, group, options);
      EXPECT_THAT(ddp.logging_data().bucket_parameters, ElementsAre(ElementsAre(0)));
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(group->rank() + 1).backward();
        EXPECT_EQ(one.grad()[0].item<double>(), 3);
      }
    }
  });
}

TEST(DdpOptionsTest, ChannelsLastParametersKeepTheirLayout) {
  for (const bool views : {false, true}) {
    run_ranks(2, [&](GroupPtr group) {
      auto model = std::make_shared<torch::nn::Conv2dImpl>(torch::nn::Conv2dOptions(3, 4, 2));
      model->weight.set_data(torch::arange(48, torch::kFloat)
                                 .reshape({4, 3, 2, 2})
                                 .contiguous(at::MemoryFormat::ChannelsLast) *
                             (group->rank() + 1));
      DdpOptions options;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel ddp(model, group, options);
      expect_close(model->weight.detach(), torch::arange(48, torch::kFloat).reshape({4, 3, 2, 2}));
      const at::Tensor x = torch::arange(27, torch::kFloat).reshape({1, 3, 3, 3});
      torch::nn::Conv2d alone(torch::nn::Conv2dOptions(3, 4, 2));
      alone->forward(x * 1.5).sum().backward();
      for (int step = 0; step < 3; ++step) {
        ddp.zero_grad();
        ddp(x * (group->rank() + 1)).sum().backward();
        EXPECT_EQ(model->weight.grad().strides(), model->weight.strides());
        expect_close(model->weight.grad(), alone->weight.grad(), 1e-4);
      }
    });
  }
}

TEST(DdpOptionsTest, ViewsLieInTheBucketsAndStayThere) {
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    Counted counted(group);
    DdpOptions options;
    options.bucket_cap_mb = {0.0001};
    DistributedDataParallel ddp(models[rank], counted.counted, options);
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    std::vector<const void*> places;
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad(/*set_to_none=*/false);
      if (step > 0) {
        for (const at::Tensor& one : ddp.parameters()) {
          EXPECT_EQ(one.grad().abs().sum().item<double>(), 0);
        }
      }
      counted.backend->all_reduces = 0;
      loss_of(ddp(input_of(rank, step))).backward();
      const DdpLogging logging = ddp.logging_data();
      EXPECT_EQ(counted.backend->all_reduces, static_cast<int>(logging.bucket_bytes.size()));
      optimizer.step();
      std::vector<const void*> now;
      for (const at::Tensor& one : ddp.parameters()) now.push_back(one.grad().data_ptr());
      if (step >= 2) {
        EXPECT_EQ(now, places) << "step " << step;
      }
      places = now;
      // Parameters that follow each other in a bucket follow each other in memory.
      const auto parameters = ddp.parameters();
      for (const auto& bucket : logging.bucket_parameters) {
        for (size_t i = 1; i < bucket.size(); ++i) {
          const at::Tensor before = parameters[bucket[i - 1]].grad();
          EXPECT_EQ(parameters[bucket[i]].grad().data_ptr<double>(),
                    before.data_ptr<double>() + before.numel());
        }
      }
    }
    EXPECT_GT(ddp.logging_data().bucket_bytes.size(), 1u);
    EXPECT_GT(counted.backend->allocated, 0) << "buckets are where the others can reach them";
  });
}

TEST(DdpOptionsTest, BuffersAreThoseOfRankZeroBeforeAForwardThatIsToBeReduced) {
  for (const bool sent : {true, false}) {
    run_ranks(2, [&](GroupPtr group) {
      const double own = group->rank();
      auto model = std::make_shared<Bare>(std::vector{trained(torch::ones({2}))});
      const at::Tensor buffer = model->register_buffer("buffer", torch::zeros({1}, torch::kDouble));
      DdpOptions options;
      options.broadcast_buffers = sent;
      DistributedDataParallel ddp(model, group, options);
      const auto after = [&](bool graph) {
        buffer.fill_(own);
        const torch::AutoGradMode mode(graph);
        const at::Tensor out = ddp(1);
        if (graph) out.backward();
        return buffer.item<double>();
      };
      const double from_zero = sent ? 0 : own;
      EXPECT_EQ(after(true), from_zero);
      {
        const auto guard = ddp.no_sync();
        EXPECT_EQ(after(true), from_zero) << "the pass before was reduced";
        EXPECT_EQ(after(true), own);
      }
      EXPECT_EQ(after(true), own) << "the pass before was not reduced";
      EXPECT_EQ(after(true), from_zero);
      EXPECT_EQ(after(false), from_zero);
      EXPECT_EQ(after(false), own);
    });
  }
}

TEST(DdpOptionsTest, EvaluationBetweenForwardAndBackwardDoesNoHarm) {
  auto models = copies(2);
  const Mlp whole = whole_of({0, 1});
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    DistributedDataParallel ddp(models[rank], group);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      const at::Tensor loss = loss_of(ddp(input_of(rank)));
      ddp.eval();
      {
        const torch::NoGradGuard no_grad;
        EXPECT_FALSE(ddp(input_of(rank)).requires_grad());
      }
      {
        const c10::InferenceMode inference;
        ddp(input_of(rank));
      }
      ddp.train();
      loss.backward();
      expect_gradients(*models[rank], *whole);
    }
  });
}

TEST(DdpOptionsTest, SeveralInOneProcessTakeTurns) {
  const Mlp whole = whole_of({0, 1});
  auto one = copies(2), other = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    DdpOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel first(one[rank], group), second(other[rank], group, options);
    for (int step = 0; step < 3; ++step) {
      first.zero_grad();
      second.zero_grad();
      (loss_of(first(input_of(rank))) + loss_of(second(input_of(rank)))).backward();
      expect_gradients(*one[rank], *whole);
      expect_gradients(*other[rank], *whole);
      second.zero_grad();
      loss_of(second(input_of(rank))).backward();
      expect_gradients(*other[rank], *whole);
    }
  });
}

TEST(DdpOptionsTest, LoggingTellsWhatWasDone) {
  auto models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    DdpOptions options;
    options.bucket_cap_mb = {0.0001};
    DistributedDataParallel ddp(models[group->rank()], group, options);
    for (int step = 0; step < 3; ++step) loss_of(ddp(input_of(0))).backward();
    const DdpLogging logging = ddp.logging_data();
    EXPECT_EQ(logging.rank, group->rank());
    EXPECT_EQ(logging.world_size, 2);
    EXPECT_TRUE(logging.has_rebuilt_buckets);
    EXPECT_EQ(logging.reduced_passes, 3u);
    EXPECT_EQ(logging.ready_order.size(), 4u);
    EXPECT_GT(logging.forward_seconds, 0);
    EXPECT_GT(logging.backward_seconds, 0);
    EXPECT_GT(logging.communication_seconds, 0);
    EXPECT_LE(logging.overlap_seconds, logging.communication_seconds);
    const auto map = logging.as_map();
    EXPECT_EQ(map.at("world_size"), "2");
    EXPECT_EQ(map.at("has_rebuilt_buckets"), "1");
    EXPECT_EQ(map.at("reduced_passes"), "3");
    EXPECT_EQ(map.at("error"), "");
  });
}

}  // namespace
}  // namespace weft::testing
