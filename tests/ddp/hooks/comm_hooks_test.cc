#include "weft/ddp/hooks/comm_hooks.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/comm/failure_of.h"
#include "weft/tests/ddp/grad_buckets.h"
#include "weft/tests/support/group_world.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

const Shapes kShapes = {{8, 5}, {7}, {2, 3, 2}};
const int64_t kNumel = numel_of(kShapes);

// A hook of the user.
class UserHook : public c10d::CppCommHookInterface<
                     std::function<c10::intrusive_ptr<c10::ivalue::Future>(c10d::GradBucket&)>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return state_(bucket);
  }
};

TEST(CommHooks, AllreduceGivesEveryRankTheMeanInTheBucketsOwnMemory) {
  run_ranks(3, [](std::shared_ptr<ProcessGroup> group) {
    const CommHook hook = allreduce_hook(group);
    const at::Tensor buffer = gradients(group->rank(), kNumel);
    c10d::GradBucket bucket = make_bucket(buffer, kShapes);
    const at::Tensor result = result_of(*hook, bucket);
    EXPECT_EQ(result.data_ptr(), buffer.data_ptr());
    EXPECT_TRUE(at::allclose(result, mean_gradients(3, kNumel), 1e-6, 1e-6));
  });
}

// The backend adds half-precision values in rank order and in single precision.
void expect_compressed(at::ScalarType half, CommHook (*make)(std::shared_ptr<ProcessGroup>)) {
  run_ranks(3, [&](std::shared_ptr<ProcessGroup> group) {
    at::Tensor sum = at::zeros({kNumel}, at::kFloat);
    for (int rank = 0; rank < 3; ++rank) {
      sum += gradients(rank, kNumel).to(half).div(3).to(at::kFloat);
    }
    const CommHook hook = make(group);
    const at::Tensor buffer = gradients(group->rank(), kNumel);
    c10d::GradBucket bucket = make_bucket(buffer, kShapes);
    const at::Tensor result = result_of(*hook, bucket);
    EXPECT_EQ(result.data_ptr(), buffer.data_ptr());
    EXPECT_TRUE(result.equal(sum.to(half).to(at::kFloat)));
  });
}

TEST(CommHooks, Fp16IsTheSameBitsAsCastDivideSumByHand) {
  expect_compressed(at::kHalf, fp16_compress_hook);
}

TEST(CommHooks, Bf16IsTheSameBitsAsCastDivideSumByHand) {
  expect_compressed(at::kBFloat16, bf16_compress_hook);
}

TEST(CommHooks, AWrapperAroundAllreduceIsTheSameBitsAsTheCompressHook) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    for (const bool brain : {false, true}) {
      const at::Tensor buffer = gradients(group->rank(), kNumel);
      const at::Tensor other = buffer.clone();
      c10d::GradBucket bucket = make_bucket(buffer, kShapes);
      c10d::GradBucket other_bucket = make_bucket(other, kShapes);
      const CommHook inner = allreduce_hook(group);
      const CommHook wrapped = brain ? bf16_compress_wrapper(inner) : fp16_compress_wrapper(inner);
      const CommHook direct = brain ? bf16_compress_hook(group) : fp16_compress_hook(group);
      const at::Tensor result = result_of(*wrapped, bucket);
      EXPECT_EQ(result.data_ptr(), buffer.data_ptr());
      EXPECT_EQ(bucket.getBuffer().data_ptr(), buffer.data_ptr());
      EXPECT_TRUE(result.equal(result_of(*direct, other_bucket)));
    }
  });
}

TEST(CommHooks, AWrapperShowsItsInnerHookHalfPrecisionAndItsGradients) {
  at::ScalarType seen = at::kFloat;
  std::vector<int64_t> shape;
  const auto inner = std::make_shared<UserHook>([&](c10d::GradBucket& bucket) {
    seen = bucket.getBuffer().scalar_type();
    shape = bucket.getGradients()[0].sizes().vec();
    return noop_hook()->runHook(bucket);
  });
  c10d::GradBucket bucket = make_bucket(gradients(0, kNumel), kShapes);
  const at::Tensor result = result_of(*bf16_compress_wrapper(inner), bucket);
  EXPECT_EQ(seen, at::kBFloat16);
  EXPECT_EQ(shape, kShapes[0]);
  EXPECT_TRUE(result.equal(gradients(0, kNumel).to(at::kBFloat16).to(at::kFloat)));
}

TEST(CommHooks, AnInnerHooksErrorComesOutOfTheWrapper) {
  const at::Tensor buffer = gradients(0, kNumel);
  const auto throws =
      std::make_shared<UserHook>([](c10d::GradBucket&) -> c10::intrusive_ptr<c10::ivalue::Future> {
        throw std::runtime_error("no time for gradients");
      });
  const auto fails = std::make_shared<UserHook>([](c10d::GradBucket&) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->setError(std::make_exception_ptr(std::runtime_error("no time for gradients")));
    return future;
  });
  for (const CommHook& inner : {CommHook(throws), CommHook(fails)}) {
    c10d::GradBucket bucket = make_bucket(buffer, kShapes);
    const CommHook hook = fp16_compress_wrapper(inner);
    EXPECT_THAT(failure_of([&] { result_of(*hook, bucket); }), HasSubstr("no time for gradients"));
    EXPECT_EQ(bucket.getBuffer().data_ptr(), buffer.data_ptr());
  }
}

TEST(CommHooks, NoopLeavesTheGradients) {
  const at::Tensor buffer = gradients(0, kNumel);
  c10d::GradBucket bucket = make_bucket(buffer, kShapes);
  EXPECT_TRUE(result_of(*noop_hook(), bucket).equal(gradients(0, kNumel)));
}

TEST(CommHooks, PostLocalSgdReducesOverAllThenWithinTheSubgroup) {
  run_ranks(4, [](std::shared_ptr<ProcessGroup> group) {
    const int first = group->rank() / 2 * 2;
    const CommHook hook = post_local_sgd_hook({.group = group,
                                               .subgroup = group->new_group({first, first + 1}),
                                               .start_local_sgd_iter = 2});
    for (int iteration = 0; iteration < 4; ++iteration) {
      for (int index = 0; index < 2; ++index) {
        const int number = 2 * iteration + index;
        c10d::GradBucket bucket =
            make_bucket(gradients(group->rank(), kNumel, number), kShapes, index, 2);
        const at::Tensor local =
            (gradients(first, kNumel, number) + gradients(first + 1, kNumel, number)) / 2;
        const at::Tensor expected = iteration < 2 ? mean_gradients(4, kNumel, number) : local;
        EXPECT_TRUE(at::allclose(result_of(*hook, bucket), expected, 1e-6, 1e-6))
            << "iteration " << iteration << ", bucket " << index;
      }
    }
  });
}

TEST(CommHooks, PostLocalSgdCanLeaveGradientsAloneAfterItsStart) {
  run_ranks(2, [](std::shared_ptr<ProcessGroup> group) {
    const CommHook hook = post_local_sgd_hook(
        {.group = group, .start_local_sgd_iter = 1, .post_local_gradient_allreduce = false});
    c10d::GradBucket first = make_bucket(gradients(group->rank(), kNumel), kShapes);
    EXPECT_TRUE(at::allclose(result_of(*hook, first), mean_gradients(2, kNumel), 1e-6, 1e-6));
    c10d::GradBucket second = make_bucket(gradients(group->rank(), kNumel), kShapes);
    EXPECT_TRUE(result_of(*hook, second).equal(gradients(group->rank(), kNumel)));
  });
}

TEST(CommHooks, RefuseWhatCannotBe) {
  EXPECT_THROW(allreduce_hook(nullptr), c10::ValueError);
  EXPECT_THROW(fp16_compress_wrapper(nullptr), c10::ValueError);
  EXPECT_THROW(post_local_sgd_hook({}), c10::ValueError);
  run_ranks(1, [](std::shared_ptr<ProcessGroup> group) {
    EXPECT_THAT(failure_of([&] { post_local_sgd_hook({.group = group}); }), HasSubstr("subgroup"));
    EXPECT_THAT(
        failure_of([&] {
          post_local_sgd_hook({.group = group, .subgroup = group, .start_local_sgd_iter = -1});
        }),
        HasSubstr("start_local_sgd_iter is -1"));
  });
}

TEST(CommHooks, ARankThatIsGoneIsAnErrorInTheFuture) {
  run_ranks(
      2,
      [](std::shared_ptr<ProcessGroup> group) {
        if (group->rank() == 1) return;
        for (const CommHook& hook : {allreduce_hook(group), fp16_compress_hook(group),
                                     fp16_compress_wrapper(allreduce_hook(group))}) {
          c10d::GradBucket bucket = make_bucket(gradients(0, kNumel), kShapes);
          const auto future = hook->runHook(bucket);
          future->wait();
          EXPECT_TRUE(future->hasError());
        }
      },
      [](ProcessGroupOptions& options) { options.timeout = std::chrono::seconds(5); });
}

}  // namespace
}  // namespace weft::testing
