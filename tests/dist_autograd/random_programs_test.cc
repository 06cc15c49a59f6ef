// Random programs over several workers: their gradients are those of the same program in one
// process. WEFT_TEST_SEED=n repeats one program, WEFT_TEST_RUNS=n makes more.
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "weft/rpc/function.h"
#include "weft/tests/support/autograd_world.h"

namespace random_programs_test {

using weft::dist_autograd::Context;
using weft::dist_autograd::Mode;
using weft::testing::AutogradWorld;

constexpr int kMaxDepth = 4;

at::Tensor leaf() { return at::rand({2, 3}, at::kDouble).set_requires_grad(true); }

at::Tensor weight_of(const std::string& worker) {
  static std::mutex mutex;
  static std::map<std::string, at::Tensor> weights;
  std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& weight = weights[worker];
  if (!weight.defined()) weight = leaf();
  return weight;
}

// One function of a program: a few operations on its two arguments and the parameter of the worker
// that runs it, among them calls to other workers. All follows from the seed, so the same program
// can be run in one process.
struct Step {
  uint64_t seed = 0;
  int64_t depth = 0;
  int64_t workers = 0;
  bool fails = false;
};
auto weft_fields(Step& s) { return std::tie(s.seed, s.depth, s.workers, s.fails); }

enum class Fate { kUsed, kUnused, kFails, kCancelled };

at::Tensor remote_step(Step step, const at::Tensor& a, const at::Tensor& b);

// `calls`: make them, else compute their results here.
at::Tensor run_step(const std::string& worker, const Step& step, const at::Tensor& a,
                    const at::Tensor& b, bool calls) {
  std::mt19937_64 random(step.seed);
  const auto below = [&](size_t limit) { return random() % limit; };
  std::vector<at::Tensor> values = {a, b, weight_of(worker)};
  const auto pick = [&]() -> const at::Tensor& { return values[below(values.size())]; };
  const size_t operations = 2 + below(4);
  for (size_t i = 0; i < operations; ++i) {
    const size_t kind = below(step.depth < kMaxDepth ? 7 : 4);
    const at::Tensor x = pick(), y = pick();
    if (kind == 0) values.push_back(x.add(y));
    if (kind == 1) values.push_back(x.mul(y).tanh());
    if (kind == 2) values.push_back(x.sub(y).sin());
    if (kind == 3) values.push_back(x.sigmoid());
    if (kind < 4) continue;

    const size_t dice = below(20);
    const Fate fate = dice == 0   ? Fate::kFails
                      : dice == 1 ? Fate::kCancelled
                      : dice < 4  ? Fate::kUnused
                                  : Fate::kUsed;
    const std::string target = "w" + std::to_string(below(step.workers));
    const Step inner{random(), step.depth + 1, step.workers, fate == Fate::kFails};
    if (!calls) {
      if (fate == Fate::kUsed) values.push_back(run_step(target, inner, x, y, false));
      continue;
    }
    weft::Future<at::Tensor> result = weft::rpc_async(target, remote_step, inner, x, y);
    if (fate == Fate::kCancelled) {
      result.cancel();
    } else if (fate == Fate::kFails) {
      EXPECT_FALSE(result.result().ok());
    } else if (fate == Fate::kUnused) {
      (void)result.wait();
    } else {
      values.push_back(result.wait());
    }
  }
  if (step.fails) throw std::runtime_error("this call was meant to fail");
  return values.back().tanh().add(pick());
}

at::Tensor remote_step(Step step, const at::Tensor& a, const at::Tensor& b) {
  return run_step(weft::CallScope::current().runtime->name(), step, a, b, true);
}
WEFT_REGISTER_FUNCTION(remote_step);

at::Tensor gradient_of_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(),
                                       weight_of(weft::CallScope::current().runtime->name()));
}
WEFT_REGISTER_FUNCTION(gradient_of_weight);

void expect_gradient(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  if (!expected.defined()) {
    EXPECT_TRUE(!actual.defined() || at::allclose(actual, at::zeros_like(actual))) << what;
    return;
  }
  ASSERT_TRUE(actual.defined()) << what;
  EXPECT_TRUE(at::allclose(actual, expected, 1e-10, 1e-12)) << what << actual << expected;
}

void run_program(AutogradWorld& world, uint64_t seed, size_t trainer) {
  SCOPED_TRACE("WEFT_TEST_SEED=" + std::to_string(seed));
  const auto workers = static_cast<int64_t>(world.size());
  const std::string name = "w" + std::to_string(trainer);
  const at::Tensor a = leaf(), b = leaf();
  const Step program{seed, 0, workers, false};
  const int passes = 1 + static_cast<int>(seed % 2);

  std::vector<at::Tensor> variables = {a, b};
  for (int64_t i = 0; i < workers; ++i) variables.push_back(weight_of("w" + std::to_string(i)));
  const at::Tensor expected_loss = run_step(name, program, a, b, false).sum();
  auto expected = torch::autograd::grad({expected_loss}, variables, {}, std::nullopt,
                                        /*create_graph=*/false, /*allow_unused=*/true);

  Context context(world.runtime(trainer));
  const at::Tensor loss = run_step(name, program, a, b, true).sum();
  for (int pass = 0; pass < passes; ++pass) {
    context.backward({loss}, {.retain_graph = pass + 1 < passes,
                              .mode = seed % 3 == 0 ? Mode::kEager : Mode::kDefault});
  }
  for (at::Tensor& gradient : expected) {
    if (gradient.defined()) gradient = gradient.mul(passes);
  }
  expect_gradient(context.gradient(a), expected[0], "a");
  expect_gradient(context.gradient(b), expected[1], "b");
  for (int64_t i = 0; i < workers; ++i) {
    const std::string worker = "w" + std::to_string(i);
    expect_gradient(weft::rpc_sync(worker, gradient_of_weight), expected[2 + i], worker.c_str());
  }
}

uint64_t number_from(const char* variable, uint64_t fallback) {
  const char* text = std::getenv(variable);
  return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
}

TEST(RandomPrograms, GradientsAreThoseOfOneProcess) {
  const uint64_t runs = number_from("WEFT_TEST_RUNS", 30);
  const uint64_t one = number_from("WEFT_TEST_SEED", 0);
  const uint64_t first = one != 0 ? one : std::random_device()() | 1;
  std::printf("first seed %llu\n", static_cast<unsigned long long>(first));
  for (size_t workers = 2; workers <= 4; ++workers) {
    AutogradWorld world(workers);
    for (uint64_t seed = first; seed < first + (one != 0 ? 1 : runs); ++seed) {
      // Two contexts at once, on the same parameters.
      std::thread other([&] { run_program(world, seed * 31 + 7, 1); });
      run_program(world, seed, 0);
      other.join();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", workers " << workers;
    }
    EXPECT_TRUE(world.nothing_left());
  }
}

}  // namespace random_programs_test
