// Random programs over several workers of one process: their gradients are those of local autograd.
//
// WEFT_TEST_SEED=n repeats one program, WEFT_TEST_RUNS=n makes more.
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "weft/tests/dist_autograd/random_program.h"
#include "weft/tests/support/runtime_world.h"

namespace weft::testing {
namespace {

class RandomPrograms : public ::testing::TestWithParam<TransportKind> {};
INSTANTIATE_TEST_SUITE_P(Transport, RandomPrograms,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return to_string(info.param); });

TEST_P(RandomPrograms, GradientsAreThoseOfOneProcess) {
  const uint64_t runs = number_from_environment("WEFT_TEST_RUNS", 40);
  const uint64_t one = number_from_environment("WEFT_TEST_SEED", 0);
  const uint64_t first = one != 0 ? one : std::random_device()() | 1;
  std::printf("first seed %llu\n", static_cast<unsigned long long>(first));
  Ingredients contents;
  for (size_t workers = 2; workers <= 4; ++workers) {
    RuntimeWorld world({.kind = GetParam(), .workers = workers, .autograd = true});
    std::vector<std::string> names;
    for (size_t i = 0; i < workers; ++i) names.push_back(world.name(i));
    const auto run = [&](size_t trainer, uint64_t seed, Ingredients& counted) {
      CallScopeGuard guard(world.scope(trainer));
      EXPECT_EQ(check_program(names, seed, counted), "")
          << "WEFT_TEST_SEED=" << seed << ", workers " << workers << ", trainer " << trainer;
    };
    for (uint64_t seed = first; seed < first + (one != 0 ? 1 : runs); ++seed) {
      // Two contexts at the same time, on the same parameters.
      Ingredients others;
      std::thread other([&] { run(1, one != 0 ? one : seed * 31 + 7, others); });
      run(0, seed, contents);
      other.join();
      contents += others;
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", workers " << workers;
    }
  }
  std::printf("%s\n", contents.to_string().c_str());
  if (one == 0) {
    EXPECT_EQ(contents.missing(), "");
  }
}

}  // namespace
}  // namespace weft::testing
