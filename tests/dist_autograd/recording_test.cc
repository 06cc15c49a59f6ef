// Checks what calls record, where the record is kept, and when it is dropped, as the drivers count
// it.
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/autograd_driver.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/runtime_world.h"

namespace recording_test {

using weft::dist_autograd::Context;
using weft::testing::autograd_alone;
using weft::testing::eventually;
using weft::testing::RuntimeWorld;

at::Tensor leaf() { return at::rand({3}, at::kDouble).set_requires_grad(true); }

at::Tensor sum_of(std::vector<at::Tensor> all) {
  at::Tensor sum = all.at(0);
  for (size_t i = 1; i < all.size(); ++i) sum = sum.add(all[i]);
  return sum;
}
WEFT_REGISTER_FUNCTION(sum_of);

std::vector<bool> which_require_grad(std::vector<at::Tensor> all) {
  std::vector<bool> which;
  for (const at::Tensor& tensor : all) which.push_back(tensor.requires_grad());
  return which;
}
WEFT_REGISTER_FUNCTION(which_require_grad);

at::Tensor through(const at::Tensor& x, std::string next, std::string last) {
  if (next.empty()) return x.mul(3);
  return weft::rpc_sync(next, through, x.mul(2), last, std::string());
}
WEFT_REGISTER_FUNCTION(through);

at::Tensor with_own_leaf(const at::Tensor& x) {
  return x.mul(at::ones({3}, at::kDouble).set_requires_grad(true));
}
WEFT_REGISTER_FUNCTION(with_own_leaf);

std::vector<at::Tensor> gradients_here() {
  std::vector<at::Tensor> all;
  const auto context = weft::dist_autograd::current_context();
  for (const auto& entry : weft::dist_autograd::gradients(context)) all.push_back(entry.gradient);
  return all;
}
WEFT_REGISTER_FUNCTION(gradients_here);

TEST(Recording, ACallWithManyTensorsIsOneTransfer) {
  RuntimeWorld world(autograd_alone(2));
  Context context(world.runtime(0));
  const at::Tensor constant = at::ones({3}, at::kDouble);
  const at::Tensor y =
      weft::rpc_sync("w1", sum_of, std::vector<at::Tensor>{leaf(), constant, leaf(), leaf()});
  EXPECT_EQ(world.autograd(0).gauges().sends, 1u);  // the call
  EXPECT_EQ(world.autograd(1).gauges().sends, 1u);  // its reply
  // No tensor requires grad, so nothing is recorded. The context exists on w1 all the same.
  (void)weft::rpc_sync("w1", which_require_grad, std::vector<at::Tensor>{constant});
  EXPECT_EQ(world.autograd(0).gauges().sends, 1u);
  EXPECT_EQ(world.autograd(1).gauges().sends, 1u);
  EXPECT_EQ(world.autograd(1).gauges().contexts, 1u);
}

TEST(Recording, TheMiddleOfANestedCallHasTwoTransfers) {
  RuntimeWorld world(autograd_alone(3));
  {
    Context context(world.runtime(0));
    (void)weft::rpc_sync("w1", through, leaf(), std::string("w2"), std::string());
    EXPECT_EQ(world.autograd(0).gauges().sends, 1u);
    EXPECT_EQ(world.autograd(1).gauges().sends, 2u);  // on to w2, back to w0
    EXPECT_EQ(world.autograd(2).gauges().sends, 1u);
  }
  // The release reaches w2 although w0 never called it.
  EXPECT_TRUE(world.nothing_left());
  {
    Context context(world.runtime(0));
    // w0 -> w1 -> w0: each has one context, not one per visit.
    (void)weft::rpc_sync("w1", through, leaf(), std::string("w0"), std::string());
    EXPECT_EQ(world.autograd(0).gauges().sends, 2u);
    EXPECT_EQ(world.autograd(1).gauges().sends, 2u);
    EXPECT_EQ(world.autograd(1).gauges().contexts, 1u);
    EXPECT_EQ(world.autograd(0).gauges().contexts, 1u);
  }
  EXPECT_TRUE(world.nothing_left());
}

TEST(Recording, TensorsWithoutGradientsStayWithoutAndRemoteLeavesStayThere) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf(), constant = at::ones({3}, at::kDouble);
  Context context(world.runtime(0));
  EXPECT_EQ(weft::rpc_sync("w1", which_require_grad, std::vector<at::Tensor>{constant, x}),
            (std::vector<bool>{false, true}));
  const at::Tensor y = weft::rpc_sync("w1", with_own_leaf, x.mul(constant));
  context.backward({y.sum()});
  EXPECT_FALSE(context.gradient(constant).defined());
  EXPECT_EQ(context.gradients().size(), 1u);  // x; not the leaf that w1 made
  const std::vector<at::Tensor> there = weft::rpc_sync("w1", gradients_here);
  ASSERT_EQ(there.size(), 1u);
  EXPECT_TRUE(at::allclose(there[0], x.detach()));
}

TEST(Recording, ABackwardLetsGoOfTheGraphUnlessItIsRetained) {
  RuntimeWorld world(autograd_alone(2));
  const at::Tensor x = leaf();
  Context context(world.runtime(0));
  at::Tensor y = x.mul(2);
  const c10::weak_intrusive_ptr<at::TensorImpl> inner(y.getIntrusivePtr());
  const at::Tensor loss = weft::rpc_sync("w1", sum_of, std::vector<at::Tensor>{y, y}).sum();
  y.reset();
  const auto sends = [&](size_t worker) { return world.autograd(worker).gauges().sends; };
  context.backward({loss}, {.retain_graph = true});
  EXPECT_EQ(sends(0), 1u);
  EXPECT_EQ(sends(1), 1u);
  context.backward({loss});
  EXPECT_EQ(sends(0), 0u);
  EXPECT_TRUE(eventually([&] { return sends(1) == 0; }));  // not an urgent message
  EXPECT_TRUE(eventually([&] { return inner.expired(); }));
}

TEST(Recording, PassesThatFailLeaveNothingBehindOnAnyWorker) {
  RuntimeWorld world(autograd_alone(3));
  const at::Tensor x = leaf();
  {
    Context context(world.runtime(0));
    const at::Tensor y = weft::rpc_sync("w1", through, x, std::string("w2"), std::string());
    y.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
    const absl::Status failed = context.backward_async({y.sum()}).result().status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnknown) << failed;
    for (size_t worker = 0; worker < 3; ++worker) {
      EXPECT_TRUE(eventually([&] {
        const auto gauges = world.autograd(worker).gauges();
        return gauges.passes + gauges.timers == 0;
      })) << worker;
    }
    EXPECT_TRUE(context.gradients().empty());
    for (const char* worker : {"w1", "w2"}) {
      EXPECT_TRUE(weft::rpc_sync(worker, gradients_here).empty()) << worker;
    }
  }
  EXPECT_TRUE(world.nothing_left());
}

}  // namespace recording_test
