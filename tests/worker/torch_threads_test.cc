// Checks on how many of LibTorch's threads a handler computes.
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/worker_world.h"

namespace torch_threads_test {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

// Each handler waits for the next one, so that each has a thread of its own.
std::vector<int64_t> torch_threads(std::string next, std::string after, int64_t more) {
  std::vector<int64_t> all;
  if (more > 0) all = weft::rpc_sync(next, torch_threads, after, next, more - 1);
  all.push_back(at::get_num_threads());
  return all;
}
WEFT_REGISTER_FUNCTION(torch_threads);

// The environment and LibTorch's setting belong to the process. Both are restored at the end.
class TorchThreadsTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  TorchThreadsTest() {
    if (const char* value = std::getenv(kVariable)) variable_ = value;
  }
  ~TorchThreadsTest() override {
    if (variable_) {
      setenv(kVariable, variable_->c_str(), /*overwrite=*/1);
    } else {
      unsetenv(kVariable);
    }
    at::set_num_threads(threads_);
  }

  static std::vector<int64_t> of_handlers() {
    WorkerWorld world(2, WorkerWorld::over(GetParam()));
    return weft::rpc_sync(world[0].to("worker1"), torch_threads, "worker0", "worker1", 5);
  }

  static constexpr const char* kVariable = "OMP_NUM_THREADS";

 private:
  const int threads_ = at::get_num_threads();
  std::optional<std::string> variable_;
};
INSTANTIATE_TEST_SUITE_P(Transports, TorchThreadsTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

TEST_P(TorchThreadsTest, IsOneWithoutOmpNumThreads) {
  unsetenv(kVariable);
  at::set_num_threads(3);
  EXPECT_THAT(of_handlers(), AllOf(SizeIs(6), Each(1)));
}

TEST_P(TorchThreadsTest, IsWhatOmpNumThreadsSays) {
  setenv(kVariable, "3", /*overwrite=*/1);
  at::set_num_threads(3);  // as LibTorch does if the variable is set when it starts
  EXPECT_THAT(of_handlers(), AllOf(SizeIs(6), Each(3)));
}

}  // namespace torch_threads_test
