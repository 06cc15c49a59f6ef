// Shared parts of the tests of batching: a function that waits for the test, and three workers.
//
// Thread safety: Watched may be used from any thread; a fixture is for the test's own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "weft/rpc/batching/batching.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/runtime_world.h"

namespace batching_test {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::Batcher;
using weft::BatchOptions;
using weft::Future;
using weft::testing::eventually;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;

// Holds batches back until the test releases them, and remembers how large they were.
class Watched {
 public:
  // Releases the batches when it is destroyed, which is before a batcher that was declared earlier.
  class Hold {
   public:
    explicit Hold(Watched& watched) : watched_(watched) {}
    ~Hold() { release(); }
    void release() const { watched_.release(); }

   private:
    Watched& watched_;
  };

  Hold hold() {
    weft::MutexLock lock(mutex_);
    gate_ = std::make_shared<weft::Promise<void>>(nullptr);
    return Hold(*this);
  }
  void reset() {
    weft::MutexLock lock(mutex_);
    sizes_.clear();
  }
  // The batched function calls it.
  void pass(size_t calls) {
    std::shared_ptr<weft::Promise<void>> gate;
    {
      weft::MutexLock lock(mutex_);
      sizes_.push_back(calls);
      gate = gate_;
    }
    if (gate != nullptr) gate->future().wait();
  }
  std::vector<size_t> sizes() {
    weft::MutexLock lock(mutex_);
    return sizes_;
  }
  bool has_begun(size_t batches) {
    return eventually([&] { return sizes().size() >= batches; });
  }

 private:
  void release() {
    std::shared_ptr<weft::Promise<void>> gate;
    {
      weft::MutexLock lock(mutex_);
      gate.swap(gate_);
    }
    if (gate != nullptr) gate->set_value();
  }

  weft::Mutex mutex_;
  std::shared_ptr<weft::Promise<void>> gate_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> sizes_ ABSL_GUARDED_BY(mutex_);
};

inline Watched watched;
inline std::atomic<Batcher<at::Tensor(at::Tensor)>*> served{nullptr};

// Calls the batcher as remote callers do: through a function that returns its future.
inline Future<at::Tensor> twice(const at::Tensor& x) { return (*served.load())(x); }
WEFT_REGISTER_FUNCTION(twice);

// An object that owns its batcher and is destroyed with its last reference.
class Doubler {
 public:
  Doubler() = default;
  Future<at::Tensor> twice(const at::Tensor& x) { return twice_(x); }

 private:
  const double factor_ = 2;
  Batcher<at::Tensor(at::Tensor)> twice_{[this](at::Tensor x) { return x * factor_; }};
};
WEFT_REGISTER_CLASS(Doubler, weft::constructor<>(), &Doubler::twice);

inline at::Tensor half(const at::Tensor& x) { return x / 2; }
WEFT_REGISTER_FUNCTION(half);

inline at::Tensor half_of_positive(const at::Tensor& x) {
  TORCH_CHECK(x.ge(0).all().item<bool>(), "negative");
  return x / 2;
}
WEFT_REGISTER_FUNCTION(half_of_positive);

class Batching : public ::testing::Test {
 protected:
  Batching() {
    watched.~Watched();
    new (&watched) Watched;
  }

  // Doubles the numbers; throws if one is negative.
  static at::Tensor run(at::Tensor x) {
    watched.pass(static_cast<size_t>(x.size(0)));
    TORCH_CHECK(x.ge(0).all().item<bool>(), "negative numbers among ", x.size(0));
    return x * 2;
  }
  static at::Tensor row(double value) { return at::full({2}, value); }
  // Makes `twice` call `batcher`. It ends the RuntimeWorld when it is destroyed, before the batcher
  // is.
  struct Serving {
    Serving(Batching& test, Batcher<at::Tensor(at::Tensor)>& batcher) : test(test) {
      served = &batcher;
    }
    ~Serving() { test.world_.end(); }
    Batching& test;
  };
  // Waits until this many calls wait in the batcher.
  template <class B>
  static bool waits(const B& batcher, size_t calls) {
    return eventually([&] { return batcher.stats().pending == calls; });
  }

  RuntimeWorld world_{TransportKind::kInproc, 3};
  weft::CallScopeGuard scope_{world_.scope(0)};
};

using Numbers = Batcher<at::Tensor(at::Tensor)>;

inline std::vector<double> values(std::vector<Future<at::Tensor>>& futures) {
  std::vector<double> values;
  for (auto& future : futures) {
    EXPECT_EQ(future.wait().sizes(), at::IntArrayRef({2}));
    values.push_back(future.wait()[1].item<double>());
  }
  return values;
}
inline std::vector<absl::StatusCode> codes(const std::vector<Future<at::Tensor>>& futures) {
  std::vector<absl::StatusCode> codes;
  for (const auto& future : futures) codes.push_back(future.result().status().code());
  return codes;
}

}  // namespace batching_test
