// Distributed autograd contexts between several workers of one process: gradients, failures, ends.
#include "weft/dist_autograd/context.h"

#include <map>
#include <mutex>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/rpc/function.h"
#include "weft/tests/support/autograd_world.h"

namespace autograd_test {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using weft::Ran;
using weft::RpcError;
using weft::dist_autograd::BackwardOptions;
using weft::dist_autograd::Context;
using weft::dist_autograd::Mode;
using weft::testing::AutogradWorld;

at::Tensor leaf() { return at::rand({3}, at::kDouble).set_requires_grad(true); }

at::Tensor oracle(const at::Tensor& loss, const at::Tensor& variable) {
  return torch::autograd::grad({loss}, {variable}, {}, /*retain_graph=*/true).at(0);
}

void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(actual.defined());
  EXPECT_TRUE(at::allclose(actual, expected, 1e-10, 1e-12)) << actual << expected;
}

// The error of `f`, OK if there is none.
template <class F>
absl::Status error_of(F f) {
  try {
    f();
  } catch (const RpcError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

// A parameter that lives on the worker of this name, and how often it was asked for by its functions.
at::Tensor& weight_of(const std::string& worker) {
  static std::mutex mutex;
  static std::map<std::string, at::Tensor> weights;
  std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& weight = weights[worker];
  if (!weight.defined()) weight = leaf();
  return weight;
}
at::Tensor& my_weight() { return weight_of(weft::CallScope::current().runtime->name()); }

// ---- what the workers can be asked to do

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
WEFT_REGISTER_FUNCTION(add);
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b) { return a.mul(b); }
WEFT_REGISTER_FUNCTION(multiply);
// Uses the worker's own parameter.
at::Tensor weighted(const at::Tensor& x) { return x.mul(my_weight()); }
WEFT_REGISTER_FUNCTION(weighted);
at::Tensor gradient_of_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(), my_weight());
}
WEFT_REGISTER_FUNCTION(gradient_of_weight);
int64_t count_gradients() {
  const auto all = weft::dist_autograd::gradients(weft::dist_autograd::current_context());
  return static_cast<int64_t>(all.size());
}
WEFT_REGISTER_FUNCTION(count_gradients);
// Passes x through all workers named, each multiplying with its parameter.
at::Tensor chain(const at::Tensor& x, std::vector<std::string> rest) {
  const at::Tensor y = x.mul(my_weight());
  if (rest.empty()) return y;
  const std::string next = rest.front();
  rest.erase(rest.begin());
  return weft::rpc_sync(next, chain, y, rest).add(y);
}
WEFT_REGISTER_FUNCTION(chain);

at::Tensor fail_forward(const at::Tensor&) { throw std::runtime_error("no"); }
WEFT_REGISTER_FUNCTION(fail_forward);
// Never answers in time.
at::Tensor wait_for_cancel(weft::CallContext& context, const at::Tensor& x) {
  while (!context.cancelled()) std::this_thread::yield();
  return x;
}
WEFT_REGISTER_FUNCTION(wait_for_cancel);

std::atomic<bool> hook_throws{true};
at::Tensor with_throwing_hook(const at::Tensor& x) {
  at::Tensor y = x.mul(my_weight());
  y.register_hook([](const at::Tensor& gradient) {
    if (hook_throws) throw std::runtime_error("the hook does not want this");
    return gradient;
  });
  return y;
}
WEFT_REGISTER_FUNCTION(with_throwing_hook);

// A hook that holds a pass up until `released`, or the pass is over.
std::atomic<bool> hook_entered{false}, hook_released{false};
at::Tensor with_slow_hook(const at::Tensor& x) {
  at::Tensor y = x.mul(my_weight());
  y.register_hook([](const at::Tensor& gradient) {
    hook_entered = true;
    while (!hook_released) std::this_thread::yield();
    return gradient;
  });
  return y;
}
WEFT_REGISTER_FUNCTION(with_slow_hook);

// ---- gradients

TEST(Context, GradientsOfOneCallAreThoseOfOneProcess) {
  AutogradWorld world(2);
  const at::Tensor a = leaf(), b = leaf();
  {
    Context context(world.runtime(0));
    const at::Tensor loss = weft::rpc_sync("w1", multiply, a, b).sum();
    context.backward({loss});
    expect_equal(context.gradient(a), oracle(a.mul(b).sum(), a));
    expect_equal(context.gradient(b), oracle(a.mul(b).sum(), b));
    EXPECT_EQ(context.gradients().size(), 2u);
    EXPECT_FALSE(a.grad().defined());
  }
  EXPECT_TRUE(world.nothing_left());
}

}  // namespace autograd_test
