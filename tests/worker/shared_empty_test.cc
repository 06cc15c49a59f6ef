// Tensors that are made in shared memory and given away.
#include "weft/worker/shared_empty.h"

#include <cstring>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace shared_empty_test {

using ::testing::HasSubstr;
using weft::CallOptions;
using weft::Destination;
using weft::shared_empty;
using weft::WorkerScope;
using weft::testing::error_of;
using weft::testing::TransportKind;
using weft::testing::WorkerWorld;

constexpr int64_t kSize = 200000;

// Each handler checks that the tensor is all `was`, and overwrites it.
bool overwrite(at::Tensor tensor, double was) {
  const bool right = at::equal(tensor, at::full(tensor.sizes(), was));
  tensor.fill_(was + 1);
  return right;
}
WEFT_REGISTER_FUNCTION(overwrite);
bool overwrite_reference(const at::Tensor& tensor, double was) { return overwrite(tensor, was); }
WEFT_REGISTER_FUNCTION(overwrite_reference);
at::Tensor made_by_handler(double value) { return shared_empty({kSize}).fill_(value); }
WEFT_REGISTER_FUNCTION(made_by_handler);
at::Tensor back(at::Tensor tensor) { return tensor; }
WEFT_REGISTER_FUNCTION(back);

class SharedEmptyTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  WorkerWorld world_{2, WorkerWorld::over(GetParam())};
  WorkerScope scope_{world_[0]};
};

// The caller breaks its promise here and looks, which shows whose memory the handler has.
TEST_P(SharedEmptyTest, AHandlerOfThisHostGetsTheMemoryItselfIfItIsGiven) {
  const bool same_host = GetParam() == TransportKind::kSameHost;
  for (const double was : {1.0, 5.0}) {
    const at::Tensor given = shared_empty({kSize}).fill_(was);
    EXPECT_TRUE(weft::rpc_sync({"worker1", {.give = true}}, overwrite_reference, given, was));
    EXPECT_EQ(given[kSize - 1].item<double>(), same_host ? was + 1 : was);
  }
}

TEST_P(SharedEmptyTest, AHandlerNeverGetsTheMemoryOfATensorThatIsHeld) {
  for (const int64_t size : {kSize, 2 * kSize}) {  // below and above 1 MiB
    const at::Tensor held = shared_empty({size}).fill_(1);
    EXPECT_TRUE(weft::rpc_sync("worker1", overwrite, held, 1.0));
    EXPECT_TRUE(weft::rpc_sync("worker1", overwrite_reference, held, 1.0));
    EXPECT_TRUE(weft::rpc_sync({"worker1", {.snapshot = true}}, overwrite, held, 1.0));
    EXPECT_TRUE(at::equal(held, at::full({size}, 1.0)));
  }
}

TEST_P(SharedEmptyTest, MovedTensorsAndResultsArriveAndMayOutliveTheirMaker) {
  at::Tensor result;
  {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(weft::rpc_sync("worker1", overwrite, shared_empty({kSize}).fill_(i), double(i)));
      const at::Tensor there_and_back =
          weft::rpc_sync("worker1", back, shared_empty({kSize}).fill_(i));
      EXPECT_TRUE(at::equal(there_and_back, at::full({kSize}, double(i))));
    }
    result = weft::rpc_sync("worker1", made_by_handler, 3.0);
  }
  world_.destroy(1);
  EXPECT_TRUE(at::equal(result, at::full({kSize}, 3.0)));
}

TEST_P(SharedEmptyTest, HasTheSizesAndTheTypeOfItsOptions) {
  const at::Tensor large = shared_empty({1000, 7, 3}, at::kDouble);
  EXPECT_EQ(large.sizes(), (at::IntArrayRef{1000, 7, 3}));
  EXPECT_EQ(large.scalar_type(), at::kDouble);
  EXPECT_TRUE(large.is_contiguous());
  EXPECT_TRUE(shared_empty({kSize}, at::TensorOptions().requires_grad(true)).requires_grad());
  EXPECT_EQ(shared_empty({0, 5}).numel(), 0);
  EXPECT_EQ(shared_empty({}).dim(), 0);
  EXPECT_EQ(shared_empty({int64_t{1} << 20}, at::kBool).nbytes(), size_t{1} << 20);
}

INSTANTIATE_TEST_SUITE_P(All, SharedEmptyTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc,
                                           TransportKind::kSameHost),
                         [](const auto& info) { return to_string(info.param); });

TEST(SharedEmptyErrorsTest, NameWhatIsWrong) {
  const absl::Status nobody = error_of([] { return shared_empty({3}); });
  EXPECT_EQ(nobody.code(), absl::StatusCode::kFailedPrecondition) << nobody;
  WorkerWorld world(2);
  const absl::Status both = error_of([] { return shared_empty({3}); });
  EXPECT_THAT(std::string(both.message()), HasSubstr("WorkerScope"));
  WorkerScope scope(world[0]);
  const auto refused = [](at::IntArrayRef sizes, const at::TensorOptions& options,
                          const char* says) {
    const absl::Status status = error_of([&] { return shared_empty(sizes, options); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  };
  refused({3, -1}, {}, "[3, -1]");
  refused({INT64_MAX, 2}, {}, "not possible");
  refused({3}, at::kMeta, "meta");
  refused({3}, at::TensorOptions().layout(at::kSparse), "strided");
}

TEST(SharedEmptyErrorsTest, ATensorCannotBeGivenAndKept) {
  WorkerWorld world(2);
  WorkerScope scope(world[0]);
  const absl::Status status = error_of([] {
    return weft::rpc_sync({"worker1", {.snapshot = true, .give = true}}, overwrite,
                          at::full({3}, 1.0), 1.0);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("snapshot"));
}

}  // namespace shared_empty_test
