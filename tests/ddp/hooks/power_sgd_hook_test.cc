#include "weft/ddp/hooks/power_sgd_hook.h"

#include <functional>
#include <future>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "weft/base/mutex.h"
#include "weft/ddp/hooks/comm_hooks.h"
#include "weft/ddp/hooks/internal/low_rank.h"
#include "weft/tests/ddp/grad_buckets.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// Three matrices, two of them of the same shape, a vector, a scalar and a convolution's kernel.
const Shapes kModel = {{20, 30}, {30}, {20, 30}, {}, {16, 4, 3, 3}, {12, 9}};
const int64_t kModelNumel = numel_of(kModel);

// Compresses every matrix from the first iteration on.
PowerSgdOptions at_once(int64_t rank = 1) {
  PowerSgdOptions options;
  options.matrix_approximation_rank = rank;
  options.start_power_sgd_iter = 0;
  options.min_compression_rate = 0.001;
  options.use_error_feedback = false;
  options.warm_start = false;
  return options;
}

PowerSgdOptions with_memory(int64_t rank = 1) {
  PowerSgdOptions options;
  options.matrix_approximation_rank = rank;
  options.start_power_sgd_iter = 2;
  return options;
}

// Runs the first iterations, which a hook of with_memory() does not compress.
void pass_start(PowerSgdHook& hook, ProcessGroup& group, const Shapes& shapes = kModel) {
  for (int i = 0; i < 2; ++i) {
    c10d::GradBucket bucket =
        make_bucket(gradients(group.rank(), numel_of(shapes), 90 + i), shapes);
    result_of(hook, bucket);
  }
}

// Collects the results of all ranks and checks that they have the same bits.
class SameBits {
 public:
  void add(int rank, const at::Tensor& tensor) {
    const MutexLock lock(mutex_);
    got_[rank].push_back(tensor.clone());
  }
  void check() const {
    const MutexLock lock(mutex_);
    for (const auto& [rank, tensors] : got_) {
      ASSERT_EQ(tensors.size(), got_.at(0).size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(tensors[i].equal(got_.at(0)[i])) << "rank " << rank << ", result " << i;
      }
    }
  }

 private:
  mutable Mutex mutex_;
  std::map<int, std::vector<at::Tensor>> got_ ABSL_GUARDED_BY(mutex_);
};

void expect_mean_at_full_rank(PowerSgdOptions options, at::ScalarType type, double tolerance) {
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const auto hook = power_sgd_hook(group, options);
    for (int number = 0; number < 3; ++number) {
      c10d::GradBucket bucket =
          make_bucket(gradients(group->rank(), kModelNumel, number, type), kModel);
      const at::Tensor result = result_of(*hook, bucket);
      EXPECT_LT(relative_error(result, mean_gradients(3, kModelNumel, number, type)), tolerance);
    }
    EXPECT_GT(hook->stats().numel_before, 0);
  });
}

TEST(PowerSgd, AtFullRankIsTheMean) {
  expect_mean_at_full_rank(at_once(64), at::kFloat, 1e-4);
  expect_mean_at_full_rank(at_once(64), at::kDouble, 1e-9);
}

TEST(PowerSgd, AtFullRankIsTheMeanWithMemoryToo) {
  PowerSgdOptions options = with_memory(64);
  options.min_compression_rate = 0.001;
  expect_mean_at_full_rank(options, at::kFloat, 1e-4);
  expect_mean_at_full_rank(options, at::kDouble, 1e-9);
}

TEST(PowerSgd, AtFullRankIsTheMeanWhenMatricesAreBatched) {
  PowerSgdOptions options = at_once(64);
  options.batch_tensors_with_same_shape = true;
  expect_mean_at_full_rank(options, at::kDouble, 1e-9);
}

TEST(PowerSgd, AtFullRankIsTheMeanWhenTheBucketIsOneMatrix) {
  PowerSgdOptions options = at_once(1000);
  options.flatten_bucket = true;
  expect_mean_at_full_rank(options, at::kDouble, 1e-9);
  options.use_error_feedback = options.warm_start = true;
  options.start_power_sgd_iter = 2;
  expect_mean_at_full_rank(options, at::kDouble, 1e-9);
}

void expect_exact_for_rank_one(int64_t approximation) {
  run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
    const Shapes shapes = {{40, 30}};
    const at::Tensor base = at::outer(gradients(7, 40), gradients(8, 30)).reshape(-1);
    const auto hook = power_sgd_hook(group, at_once(approximation));
    c10d::GradBucket bucket = make_bucket(base * (group->rank() + 1), shapes);
    EXPECT_LT(relative_error(result_of(*hook, bucket), base * 1.5), 1e-5);
  });
}

TEST(PowerSgd, OfRankOneIsExactForMatricesOfRankOne) { expect_exact_for_rank_one(1); }

// At rank two, Gram-Schmidt meets a second column that lies in the span of the first.
TEST(PowerSgd, OfRankTwoIsExactForMatricesOfRankOne) { expect_exact_for_rank_one(2); }

TEST(PowerSgd, SendsVectorsAndSmallMatricesUncompressed) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    PowerSgdOptions options = at_once(2);
    options.min_compression_rate = 2;
    const Shapes shapes = {{40, 30}, {30}, {4, 4}, {0, 3}, {}};
    const int64_t numel = numel_of(shapes);
    const auto hook = power_sgd_hook(group, options);
    c10d::GradBucket bucket = make_bucket(gradients(group->rank(), numel), shapes);
    const at::Tensor result = result_of(*hook, bucket);
    const at::Tensor mean = mean_gradients(2, numel);
    EXPECT_TRUE(at::allclose(result.narrow(0, 1200, 47), mean.narrow(0, 1200, 47), 1e-6, 1e-6));
    EXPECT_GT(relative_error(result.narrow(0, 0, 1200), mean.narrow(0, 0, 1200)), 0.1);
    const PowerSgdStats stats = hook->stats();
    EXPECT_EQ(stats.numel_before, 1247);
    EXPECT_EQ(stats.numel_after, (40 + 30) * 2 + 47);
    EXPECT_DOUBLE_EQ(stats.rate(), 1247.0 / 187);
  });
}

// The applied updates add up to the true means, except for the error of the last one.
TEST(PowerSgd, ErrorFeedbackMakesUpForWhatWasLeftOut) {
  const Shapes shapes = {{20, 30}};
  const int64_t numel = numel_of(shapes);
  std::map<bool, double> left;
  for (const bool feedback : {true, false}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      PowerSgdOptions options = with_memory(2);
      options.use_error_feedback = feedback;
      const auto hook = power_sgd_hook(group, options);
      pass_start(*hook, *group, shapes);
      constexpr int kIterations = 60;
      at::Tensor applied = at::zeros({numel}, at::kDouble);
      for (int i = 0; i < kIterations; ++i) {
        c10d::GradBucket bucket =
            make_bucket(gradients(group->rank(), numel, 0, at::kDouble), shapes);
        applied += result_of(*hook, bucket);
      }
      const double error =
          relative_error(applied, kIterations * mean_gradients(2, numel, 0, at::kDouble));
      if (group->rank() == 0) left[feedback] = error;
    });
  }
  EXPECT_LT(left[true], 0.15);
  EXPECT_GT(left[false], 0.6);
}

TEST(PowerSgd, GivesAllRanksTheSameBits) {
  SameBits same;
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    for (const int64_t rank : {1, 2, 4}) {
      const auto hook = power_sgd_hook(group, with_memory(rank));
      for (int number = 0; number < 5; ++number) {
        c10d::GradBucket bucket =
            make_bucket(gradients(group->rank(), kModelNumel, number), kModel);
        same.add(group->rank(), result_of(*hook, bucket));
      }
    }
  });
  same.check();
}

TEST(PowerSgd, AveragesUntilItsStart) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    PowerSgdOptions options = with_memory(1);
    options.start_power_sgd_iter = 3;
    const auto hook = power_sgd_hook(group, options);
    for (int iteration = 0; iteration < 5; ++iteration) {
      for (int index = 0; index < 2; ++index) {
        const int number = 2 * iteration + index;
        c10d::GradBucket bucket =
            make_bucket(gradients(group->rank(), kModelNumel, number), kModel, index, 2);
        const double error =
            relative_error(result_of(*hook, bucket), mean_gradients(2, kModelNumel, number));
        if (iteration < 3) {
          EXPECT_LT(error, 1e-6) << iteration;
        } else {
          EXPECT_GT(error, 0.1) << iteration;
        }
      }
    }
  });
}

// Later collectives of the buckets, and the program's own on the same group, run at different times
// on each rank. Each group must see them in the same order on all ranks.
TEST(PowerSgd, DoesNotMixBucketsOrMeetOtherCollectives) {
  SameBits same;
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    const auto hook = power_sgd_hook(group, at_once(64));
    for (int iteration = 0; iteration < 10; ++iteration) {
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
      constexpr int kBuckets = 4;
      for (int index = 0; index < kBuckets; ++index) {
        c10d::GradBucket bucket = make_bucket(
            gradients(group->rank(), kModelNumel, index, at::kDouble), kModel, index, 4);
        futures.push_back(hook->runHook(bucket));
        const at::Tensor other = at::full({3}, group->rank(), at::kDouble);
        group->all_reduce(other);
        EXPECT_EQ(other[0].item<double>(), 3);
      }
      for (int index = 0; index < kBuckets; ++index) {
        futures[index]->waitAndThrow();
        const at::Tensor result = hook->parseHookResult(futures[index]->value());
        EXPECT_LT(relative_error(result, mean_gradients(3, kModelNumel, index, at::kDouble)), 1e-9);
        same.add(group->rank(), result);
      }
    }
  });
  same.check();
}

TEST(PowerSgd, RecoversFromAGradientThatWasZero) {
  const Shapes shapes = {{20, 30}};
  for (const int64_t rank : {1, 2, 3}) {
    run_ranks(2, [&](std::shared_ptr<ProcessGroup> group) {
      PowerSgdOptions options = with_memory(rank);
      const auto hook = power_sgd_hook(group, options);
      pass_start(*hook, *group, shapes);
      c10d::GradBucket zero = make_bucket(at::zeros({600}), shapes);
      EXPECT_EQ(result_of(*hook, zero).abs().max().item<double>(), 0);
      const at::Tensor base = at::outer(gradients(7, 20), gradients(8, 30)).reshape(-1);
      for (int i = 0; i < 2; ++i) {
        c10d::GradBucket bucket = make_bucket(base.clone(), shapes);
        EXPECT_LT(relative_error(result_of(*hook, bucket), base), 1e-4) << rank;
      }
    });
  }
}

TEST(PowerSgd, ForgetsABucketWhoseShapesHaveChanged) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Shapes before = {{20, 30}};
    const Shapes after = {{30, 20}};
    const at::Tensor base = at::outer(gradients(7, 30), gradients(8, 20)).reshape(-1);
    const auto hook = power_sgd_hook(group, with_memory(1));
    pass_start(*hook, *group, before);
    c10d::GradBucket first = make_bucket(gradients(group->rank(), 600), before);
    EXPECT_GT(relative_error(result_of(*hook, first), mean_gradients(2, 600)), 0.1);
    // If the error of the first bucket were added, this one would not be of rank one.
    c10d::GradBucket second = make_bucket(base.clone(), after);
    EXPECT_LT(relative_error(result_of(*hook, second), base), 1e-5);
  });
}

TEST(PowerSgd, WorksInsideAHalfPrecisionWrapper) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const Shapes shapes = {{40, 30}, {8}};
    const at::Tensor base =
        at::cat({at::outer(gradients(7, 40), gradients(8, 30)).reshape(-1), gradients(9, 8)});
    const CommHook hook = bf16_compress_wrapper(power_sgd_hook(group, at_once(1)));
    c10d::GradBucket bucket = make_bucket(base.clone(), shapes);
    EXPECT_LT(relative_error(result_of(*hook, bucket), base), 0.02);
  });
}

TEST(PowerSgd, ContinuesFromASavedStateWithTheSameBits) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const auto run = [&](PowerSgdHook& hook, int number) {
      c10d::GradBucket bucket = make_bucket(gradients(group->rank(), kModelNumel, number), kModel);
      return result_of(hook, bucket);
    };
    const auto hook = power_sgd_hook(group, with_memory(2));
    for (int number = 0; number < 4; ++number) run(*hook, number);
    std::stringstream stream;
    torch::serialize::OutputArchive saved;
    hook->save(saved);
    saved.save_to(stream);

    const auto other = power_sgd_hook(group, with_memory(2));
    torch::serialize::InputArchive loaded;
    loaded.load_from(stream);
    other->load(loaded);
    for (int number = 4; number < 6; ++number) {
      EXPECT_TRUE(run(*hook, number).equal(run(*other, number))) << number;
    }
    EXPECT_EQ(hook->stats().numel_after, other->stats().numel_after);
  });
}

TEST(PowerSgd, ARankThatIsGoneIsAnErrorInTheFuture) {
  run_ranks(
      2,
      [](std::shared_ptr<ProcessGroup> group) {
        const auto hook = power_sgd_hook(group, at_once(1));
        if (group->rank() == 1) return;
        for (int i = 0; i < 2; ++i) {
          c10d::GradBucket bucket = make_bucket(gradients(0, kModelNumel), kModel);
          const auto future = hook->runHook(bucket);
          future->wait();
          EXPECT_TRUE(future->hasError());
        }
      },
      [](ProcessGroupOptions& options) { options.timeout = std::chrono::seconds(5); });
}

TEST(PowerSgd, EndsWithBucketsThatNobodyElseReducesAndFailsThem) {
  std::promise<void> ended;
  const std::shared_future<void> end = ended.get_future().share();
  run_ranks(
      2,
      [&](std::shared_ptr<ProcessGroup> group) {
        auto hook = power_sgd_hook(group, at_once(1));
        if (group->rank() == 1) return end.wait();
        std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
        for (int i = 0; i < 3; ++i) {
          c10d::GradBucket bucket = make_bucket(gradients(0, kModelNumel), kModel);
          futures.push_back(hook->runHook(bucket));
        }
        hook.reset();
        ended.set_value();
        for (const auto& future : futures) {
          ASSERT_TRUE(future->completed());
          EXPECT_TRUE(future->hasError());
        }
      },
      [](ProcessGroupOptions& options) { options.timeout = std::chrono::seconds(2); });
}

TEST(PowerSgd, MayEndOnItsOwnThread) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    c10d::GradBucket bucket = make_bucket(gradients(group->rank(), kModelNumel), kModel);
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
      auto hook = power_sgd_hook(group, at_once(1));
      future = hook->runHook(bucket);
      future->addCallback([hook = std::move(hook)](c10::ivalue::Future&) {});
    }
    future->wait();
    EXPECT_FALSE(future->hasError());
  });
}

TEST(PowerSgd, RefusesOptionsThatCannotBe) {
  const auto refused = [](const std::function<void(PowerSgdOptions&)>& change) {
    PowerSgdOptions options;
    change(options);
    try {
      options.validate();
    } catch (const c10::ValueError& failed) {
      return std::string(failed.what_without_backtrace());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_THAT(refused([](auto& o) { o.matrix_approximation_rank = 0; }), HasSubstr("rank is 0"));
  EXPECT_THAT(refused([](auto& o) { o.start_power_sgd_iter = 1; }), HasSubstr("more than 1"));
  EXPECT_THAT(refused([](auto& o) {
                o.start_power_sgd_iter = 1;
                o.warm_start = false;
              }),
              HasSubstr("more than 1"));
  EXPECT_EQ(refused([](auto& o) {
              o.start_power_sgd_iter = 0;
              o.warm_start = o.use_error_feedback = false;
            }),
            "");
  EXPECT_THAT(refused([](auto& o) { o.min_compression_rate = -1; }), HasSubstr("rate is -1"));
  EXPECT_THAT(refused([](auto& o) { o.orthogonalization_epsilon = -1; }), HasSubstr("epsilon"));
  EXPECT_THROW(power_sgd_hook(nullptr), c10::ValueError);
}

// The values are numpy.random.RandomState(seed).randint(10**9) of numpy 2.4.6.
TEST(PowerSgd, DrawsTheSeedsThatNumpyDraws) {
  ddp_internal::SeedSequence zero(0);
  for (const uint64_t seed : {209652396, 398764591, 924231285, 404868288, 441365315, 463622907}) {
    EXPECT_EQ(zero.next(), seed);
  }
  ddp_internal::SeedSequence seven(7);
  EXPECT_EQ(seven.next(), 327741615u);
  ddp_internal::SeedSequence copy(0);
  copy.set_state(seven.state());
  EXPECT_EQ(copy.next(), seven.next());
}

TEST(PowerSgd, MakesColumnsOrthonormalInTheSpanTheyHad) {
  for (const int64_t columns : {1, 2, 5}) {
    const at::Tensor matrices =
        gradients(1, 3 * 12 * columns, 0, at::kDouble).view({3, 12, columns});
    const at::Tensor before = matrices.clone();
    ddp_internal::orthogonalize(matrices, 0);
    const at::Tensor product = matrices.transpose(1, 2).bmm(matrices);
    EXPECT_TRUE(at::allclose(product, at::eye(columns, at::kDouble).expand_as(product), 0, 1e-12));
    const at::Tensor projected = matrices.bmm(matrices.transpose(1, 2).bmm(before));
    EXPECT_TRUE(at::allclose(projected, before, 0, 1e-12));
  }
}

}  // namespace
}  // namespace weft::testing
