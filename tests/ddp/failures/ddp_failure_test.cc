// Passes that fail: the error, the ranks that get it, and how training goes on.
#include <chrono>
#include <future>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/tests/ddp/ddp_ranks.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

struct TwoHeadsImpl : LeftAndRight {
  std::vector<at::Tensor> forward(const at::Tensor& x) { return {left(x), right(x)}; }
};
TORCH_MODULE(TwoHeads);

std::vector<TwoHeads> heads(int count) {
  std::vector<TwoHeads> models;
  for (int i = 0; i < count; ++i) models.emplace_back();
  return models;
}

TEST(DdpFailureTest, AParameterThatIsReadyTwiceIsNamedAndThePassIsOver) {
  auto models = heads(2);
  run_ranks(2, [&](GroupPtr group) {
    DistributedDataParallel ddp(models[group->rank()], group);
    const auto outputs = ddp(input_of(group->rank()));
    outputs[0].sum().backward({}, /*retain_graph=*/true);
    const auto twice = AllOf(HasSubstr("'left."), HasSubstr("ready twice"));
    EXPECT_THAT(failure_of([&] { outputs[0].sum().backward(); }), twice);
    EXPECT_THAT(ddp.logging_data().error, twice);
    EXPECT_THAT(failure_of([&] { ddp(input_of(0)); }),
                AllOf(HasSubstr("the pass before failed"), twice));
    // Both ranks know of the failure, so they may begin anew.
    ddp.update_process_group(group);
    ddp.zero_grad();
    const auto again = ddp(input_of(group->rank()));
    (again[0].sum() + again[1].sum()).backward();
    const auto weight = models[group->rank()]->left->weight;
    expect_close(weight.grad(), torch::cat({input_of(0), input_of(1)}).sum(0).expand({2, 5}) / 2);
  });
}

TEST(DdpFailureTest, AMissingGradientIsNamedAtTheNextForward) {
  auto models = heads(2);
  run_ranks(2, [&](GroupPtr group) {
    DistributedDataParallel ddp(models[group->rank()], group);
    ddp(input_of(0))[0].sum().backward();
    const auto missing = AllOf(HasSubstr("'right.weight', 'right.bias'"),
                               HasSubstr("find_unused_parameters"), Not(HasSubstr("left")));
    EXPECT_THAT(failure_of([&] { ddp(input_of(0)); }), missing);
    const auto guard = ddp.no_sync();
    EXPECT_THAT(failure_of([&] { ddp(input_of(0)); }), missing);
  });
}

TEST(DdpFailureTest, AStaticGraphThatChangesIsNamed) {
  // Uses its second layer only if it is told to.
  struct Repeat : torch::nn::Module {
    Repeat() {
      one = register_module("one", torch::nn::Linear(5, 5));
      two = register_module("two", torch::nn::Linear(5, 5));
      to(torch::kDouble);
    }
    at::Tensor forward(const at::Tensor& x, bool use_two) { return use_two ? two(one(x)) : one(x); }
    torch::nn::Linear one = nullptr, two = nullptr;
  };
  run_ranks(2, [&](GroupPtr group) {
    DdpOptions options;
    options.static_graph = true;
    DistributedDataParallel less(std::make_shared<Repeat>(), group, options);
    for (int step = 0; step < 2; ++step) less(input_of(0), true).sum().backward();
    less(input_of(0), false).sum().backward();
    EXPECT_THAT(failure_of([&] { less(input_of(0), true); }),
                AllOf(HasSubstr("the graph has changed"), HasSubstr("'two.weight'"),
                      Not(HasSubstr("'one.weight'"))));
    DistributedDataParallel more(std::make_shared<Repeat>(), group, options);
    for (int step = 0; step < 2; ++step) more(input_of(0), false).sum().backward();
    EXPECT_THAT(failure_of([&] { more(input_of(0), true).sum().backward(); }),
                AllOf(HasSubstr("the graph has changed"), HasSubstr("'two.")));
  });
}

// A hook that fails in the given call: it throws, or its future fails or is wrong.
class Thrower : public c10d::CommHookInterface {
 public:
  enum class How { kThrows, kInFuture, kNoFuture, kWrongSize };
  Thrower(How how, int call) : how_(how), left_(call) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    if (left_-- > 0) {
      future->markCompleted(bucket.getBuffer());
    } else if (how_ == How::kThrows) {
      throw std::runtime_error("the hook has had enough");
    } else if (how_ == How::kInFuture) {
      future->setError(std::make_exception_ptr(std::runtime_error("the hook has had enough")));
    } else if (how_ == How::kWrongSize) {
      future->markCompleted(torch::ones({1}, torch::kDouble));
    } else {
      return nullptr;
    }
    return future;
  }
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  const How how_;
  int left_;
};

TEST(DdpFailureTest, AHookThatFailsIsNamedWithItsParameters) {
  using How = Thrower::How;
  for (const How how : {How::kThrows, How::kInFuture, How::kNoFuture, How::kWrongSize}) {
    const std::string why = how == How::kNoFuture    ? "it returned no future"
                            : how == How::kWrongSize ? "not of the size of the bucket"
                                                     : "the hook has had enough";
    auto models = copies(2);
    run_ranks(2, [&](GroupPtr group) {
      DdpOptions options;
      options.bucket_cap_mb = {0.0001, 25};
      DistributedDataParallel ddp(models[group->rank()], group, options);
      ASSERT_GT(ddp.logging_data().bucket_bytes.size(), 1u);
      ddp.register_comm_hook(std::make_shared<Thrower>(how, 1));
      const auto named = AllOf(HasSubstr("hook"), HasSubstr("bucket 1"), HasSubstr("first."),
                               Not(HasSubstr("second.bias")), HasSubstr(why));
      EXPECT_THAT(failure_of([&] { loss_of(ddp(input_of(0))).backward(); }), named);
      EXPECT_THAT(ddp.logging_data().error, named);
      EXPECT_THAT(failure_of([&] { ddp(input_of(0)); }), HasSubstr("the pass before failed"));
    });
  }
}

TEST(DdpFailureTest, ANanOfOneRankIsNamedOnAllAndTrainingGoesOn) {
  for (const bool views : {false, true}) {
    auto models = copies(3);
    const Mlp whole = whole_of({0, 1, 2}, {1});
    run_ranks(3, [&](GroupPtr group) {
      const int rank = group->rank();
      DdpOptions options;
      options.check_nans = true;
      options.gradient_as_bucket_view = views;
      DistributedDataParallel ddp(models[rank], group, options);
      const double factor = rank == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
      const auto named = AllOf(HasSubstr("is not finite"),
                               HasSubstr("' is not finite; this rank's "
                                         "own was"),
                               HasSubstr(rank == 1 ? "was not either" : "was finite"));
      EXPECT_THAT(failure_of([&] { (loss_of(ddp(input_of(rank))) * factor).backward(); }), named);
      EXPECT_THAT(ddp.logging_data().error, named);
      ddp.zero_grad();
      loss_of(ddp(input_of(rank, 1))).backward();
      expect_gradients(*models[rank], *whole);
      EXPECT_EQ(ddp.logging_data().error, "");
    });
  }
}

TEST(DdpFailureTest, ARankThatComesTooLateIsNamed) {
  auto models = copies(3);
  run_ranks(
      3,
      [&](GroupPtr group) {
        const int rank = group->rank();
        DistributedDataParallel ddp(models[rank], group);
        const at::Tensor loss = loss_of(ddp(input_of(rank)));
        if (rank == 1) return;  // its group is destroyed, and it never comes
        const std::string failure = failure_of([&] { loss.backward(); });
        EXPECT_THAT(failure, AllOf(HasSubstr("bucket 0"), HasSubstr("rank 1")));
      },
      [](ProcessGroupOptions& options) { options.timeout = 5s; });
}

TEST(DdpFailureTest, ARankThatWaitsTooLongSaysForWhom) {
  auto models = copies(2);
  std::promise<void> failed;
  std::shared_future<void> has_failed = failed.get_future().share();
  run_ranks(
      2,
      [&](GroupPtr group) {
        const int rank = group->rank();
        DistributedDataParallel ddp(models[rank], group);
        const at::Tensor loss = loss_of(ddp(input_of(rank)));
        if (rank == 1) return has_failed.wait();
        EXPECT_THAT(failure_of([&] { loss.backward(); }),
                    AllOf(HasSubstr("second.weight"), HasSubstr("rank 1")));
        failed.set_value();
      },
      [](ProcessGroupOptions& options) { options.timeout = 1s; });
}

// The ranks give up a pass half way, and two of three go on.
TEST(DdpFailureTest, GoesOnWithFewerRanksAfterAPassWasGivenUpHalfWay) {
  for (const bool fixed : {false, true}) {
    auto models = copies(3);
    const Mlp whole = whole_of({0, 2});
    run_ranks(3, [&](GroupPtr group) {
      const int rank = group->rank();
      const GroupPtr left = rank == 1 ? nullptr : group->new_group({0, 2});
      DdpOptions options;
      options.static_graph = fixed;
      options.bucket_cap_mb = {0.0001, 0.0001};
      DistributedDataParallel ddp(models[rank], group, options);
      for (int step = 0; step < 3; ++step) loss_of(ddp(input_of(rank, step))).backward();
      EXPECT_TRUE(ddp.logging_data().has_rebuilt_buckets);
      at::Tensor output = ddp(input_of(rank));
      if (rank == 1) return;
      // On rank 2 the gradients of the second layer are being reduced. Those of the first layer
      // never come.
      if (rank == 2) {
        torch::autograd::grad({loss_of(output)}, {models[rank]->second->weight});
        output = models[rank]->second(torch::tanh(models[rank]->first(input_of(rank)).detach()));
        loss_of(output).backward();
      }
      ddp.update_process_group(left);
      EXPECT_EQ(ddp.logging_data().world_size, 2);
      EXPECT_FALSE(ddp.logging_data().has_rebuilt_buckets);
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        loss_of(ddp(input_of(rank))).backward();
        expect_gradients(*models[rank], *whole);
      }
      EXPECT_TRUE(ddp.logging_data().has_rebuilt_buckets);
    });
  }
}

// Rank 0 sends its order of buckets and goes on with new buckets. Rank 1 never hears of it.
TEST(DdpFailureTest, RanksAgreeOnTheirBucketsAfterOneHadBuiltThemAgain) {
  auto models = copies(3);
  const Mlp whole = whole_of({0, 1});
  run_ranks(
      3,
      [&](GroupPtr group) {
        const int rank = group->rank();
        const GroupPtr left = rank == 2 ? nullptr : group->new_group({0, 1});
        DdpOptions options;
        options.bucket_cap_mb = {0.0001};
        DistributedDataParallel ddp(models[rank], group, options);
        loss_of(ddp(input_of(rank))).backward();
        if (rank == 2) return;
        if (rank == 0) failure_of([&] { ddp(input_of(rank)); });
        ddp.update_process_group(left);
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          loss_of(ddp(input_of(rank))).backward();
          expect_gradients(*models[rank], *whole);
        }
      },
      [](ProcessGroupOptions& options) { options.timeout = 5s; });
}

TEST(DdpFailureTest, AnErrorInForwardLeavesNothingBehind) {
  auto models = copies(2);
  const Mlp whole = whole_of({0, 1});
  run_ranks(2, [&](GroupPtr group) {
    const int rank = group->rank();
    DistributedDataParallel ddp(models[rank], group);
    EXPECT_NE(failure_of([&] { ddp(torch::ones({3, 7}, torch::kDouble)); }), "");
    loss_of(ddp(input_of(rank))).backward();
    expect_gradients(*models[rank], *whole);
  });
}

TEST(DdpFailureTest, AGraphMayOutliveItsDdp) {
  for (const bool fixed : {false, true}) {
    run_ranks(1, [&](GroupPtr group) {
      Mlp model(7);
      at::Tensor loss;
      {
        DdpOptions options;
        options.static_graph = fixed;
        DistributedDataParallel ddp(model, group, options);
        loss = loss_of(ddp(input_of(0)));
      }
      loss.backward();
      expect_gradients(*model, *whole_of({0}));
    });
  }
}

// A rank of the old group may still write into the old buckets.
TEST(DdpFailureTest, GradientsLeaveTheBucketsOfAGroupThatIsGivenUp) {
  const std::vector<Mlp> models = copies(2);
  run_ranks(2, [&](GroupPtr group) {
    DistributedDataParallel ddp(models[group->rank()], group);
    loss_of(ddp(input_of(group->rank()))).backward();
    const at::Tensor& gradient = models[group->rank()]->first->weight.grad();
    const at::Tensor value = gradient.clone();
    const void* const old = gradient.data_ptr();
    ddp.update_process_group(group->new_group({0, 1}));
    EXPECT_NE(models[group->rank()]->first->weight.grad().data_ptr(), old);
    EXPECT_TRUE(at::equal(models[group->rank()]->first->weight.grad(), value));
  });
}

}  // namespace
}  // namespace weft::testing
