// A parameter for each worker of a RuntimeWorld, and comparison of gradients.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "weft/base/mutex.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/session/call_scope.h"

namespace weft::testing {

inline at::Tensor leaf() { return at::rand({3}, at::kDouble).set_requires_grad(true); }

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(actual.defined());
  EXPECT_TRUE(at::allclose(actual, expected, 1e-10, 1e-12)) << actual << expected;
}

// The parameter that lives on the worker of this name.
inline at::Tensor& weight_of(const std::string& worker) {
  static struct {
    Mutex mutex;
    std::map<std::string, at::Tensor> by_worker ABSL_GUARDED_BY(mutex);
  } weights;
  const MutexLock lock(weights.mutex);
  at::Tensor& weight = weights.by_worker[worker];
  if (!weight.defined()) weight = leaf();
  return weight;
}
// The parameter of the worker on which this call runs.
inline at::Tensor& my_weight() { return weight_of(CallScope::current().runtime->name()); }

}  // namespace weft::testing
