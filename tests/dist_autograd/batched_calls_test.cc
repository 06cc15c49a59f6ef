// Distributed autograd through batches: each context has the gradients of its own calls.
#include <thread>

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/context.h"
#include "weft/rpc/batching/batching.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/runtime_world.h"

namespace batched_calls_test {

using weft::Batcher;
using weft::Future;
using weft::dist_autograd::Context;
using weft::testing::autograd_alone;
using weft::testing::eventually;
using weft::testing::RuntimeWorld;

at::Tensor& weight() {
  static at::Tensor weight = at::full({3}, 2., at::kDouble).set_requires_grad(true);
  return weight;
}

std::atomic<Batcher<at::Tensor(at::Tensor)>*> served{nullptr};
Future<at::Tensor> weighted(const at::Tensor& x) { return (*served.load())(x); }
WEFT_REGISTER_FUNCTION(weighted);
at::Tensor gradient_of_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(), weight());
}
WEFT_REGISTER_FUNCTION(gradient_of_weight);

at::Tensor leaf(double value) { return at::full({3}, value, at::kDouble).set_requires_grad(true); }

void expect_equal(const at::Tensor& actual, double expected) {
  ASSERT_TRUE(actual.defined());
  EXPECT_TRUE(at::allclose(actual, at::full({3}, expected, at::kDouble), 1e-12, 1e-12)) << actual;
}

TEST(BatchedCalls, EachContextHasTheGradientsOfItsOwnCalls) {
  std::vector<int64_t> sizes;
  Batcher<at::Tensor(at::Tensor)> batcher(
      [&](at::Tensor x) {
        sizes.push_back(x.size(0));
        return x.mul(x).mul(weight());
      },
      {.max_wait = weft::kUntilFull});
  served = &batcher;
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor a = leaf(1), b = leaf(2), c = leaf(3);

  Context one(world.runtime(0));
  const Future<at::Tensor> y_a = weft::rpc_async("w1", weighted, a);
  const Future<at::Tensor> y_b = weft::rpc_async("w1", weighted, b);
  Future<at::Tensor> y_c;
  std::thread other([&] {
    Context context(world.runtime(0));
    y_c = weft::rpc_async("w1", weighted, c);
    ASSERT_TRUE(eventually([&] { return batcher.stats().pending == 3; }));
    batcher.flush();
    context.backward({y_c.wait().sum()});
    expect_equal(context.gradient(c), 2 * 3 * 2);
    expect_equal(weft::rpc_sync("w1", gradient_of_weight), 9);
  });
  other.join();
  // Row a counts once and row b twice. Both were in one batch.
  one.backward({y_a.wait().add(y_b.wait(), 2).sum()});
  expect_equal(one.gradient(a), 2 * 1 * 2);
  expect_equal(one.gradient(b), 2 * 2 * 2 * 2);
  expect_equal(weft::rpc_sync("w1", gradient_of_weight), 1 + 2 * 4);
  EXPECT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes.at(0) + sizes.at(1), 3);
}

}  // namespace batched_calls_test
