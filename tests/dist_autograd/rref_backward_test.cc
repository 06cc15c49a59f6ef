// Backward passes that begin at the value of an RRef (C16).
#include "weft/dist_autograd/rref_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/autograd_driver.h"
#include "weft/tests/dist_autograd/worker_weights.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/runtime_world.h"

namespace rref_backward_test {

using ::testing::HasSubstr;
using weft::RpcError;
using weft::RRef;
using weft::dist_autograd::backward;
using weft::dist_autograd::backward_async;
using weft::dist_autograd::Context;
using weft::testing::error_of;
using weft::testing::eventually;
using weft::testing::expect_equal;
using weft::testing::leaf;
using weft::testing::my_weight;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;
using weft::testing::weight_of;

at::Tensor weighted(const at::Tensor& x) { return x.mul(my_weight()); }
WEFT_REGISTER_FUNCTION(weighted);
at::Tensor loss_of(const at::Tensor& x) { return x.mul(my_weight()).sum(); }
WEFT_REGISTER_FUNCTION(loss_of);
// Computes the loss through a third worker.
at::Tensor loss_over(const at::Tensor& x, const std::string& worker) {
  return weft::rpc_sync(worker, weighted, x).mul(my_weight()).sum();
}
WEFT_REGISTER_FUNCTION(loss_over);
at::Tensor gradient_of_weight() {
  return weft::dist_autograd::gradient(weft::dist_autograd::current_context(), my_weight());
}
WEFT_REGISTER_FUNCTION(gradient_of_weight);
at::Tensor no_loss(const at::Tensor&) { throw std::runtime_error("there is no loss"); }
WEFT_REGISTER_FUNCTION(no_loss);
weft::Promise<void>& gate() {
  static weft::Promise<void> promise(nullptr);
  return promise;
}
weft::Future<at::Tensor> late_loss(at::Tensor x) {
  return gate().future().then([loss = loss_of(x)](const weft::Future<void>&) { return loss; });
}
WEFT_REGISTER_FUNCTION(late_loss);

template <class T>
concept HasBackward = requires(weft::ContextId context, RRef<T> loss) {
  backward(context, loss);
  backward_async(context, loss);
  backward(loss);
};
static_assert(HasBackward<at::Tensor>);
static_assert(!HasBackward<int64_t> && !HasBackward<std::vector<at::Tensor>>,
              "only a tensor has gradients");

class RRefBackward : public ::testing::TestWithParam<TransportKind> {
 protected:
  RuntimeWorld& world() { return world_; }

 private:
  RuntimeWorld world_{RuntimeWorld::Options{.kind = GetParam(), .workers = 3, .autograd = true}};
  weft::CallScopeGuard scope_{world_.scope(0)};
};
INSTANTIATE_TEST_SUITE_P(Transports, RRefBackward,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

TEST_P(RRefBackward, OfAUserRunsAtTheOwnerAndLeavesTheGradientsWhereTheLeavesAre) {
  const at::Tensor x = leaf();
  Context context;
  const RRef<at::Tensor> loss = weft::remote("w1", loss_of, x);
  backward(context.id(), loss);
  expect_equal(context.gradient(x), weight_of("w1").detach());
  expect_equal(weft::rpc_sync("w1", gradient_of_weight), x.detach());
  EXPECT_FALSE(weight_of("w1").grad().defined()) << "a context touches no .grad";
}

TEST_P(RRefBackward, OfAUserReachesAThirdWorker) {
  const at::Tensor x = leaf();
  Context context;
  backward(context.id(), weft::remote("w1", loss_over, x, "w2"));
  expect_equal(context.gradient(x), weight_of("w1").mul(weight_of("w2")).detach());
  expect_equal(weft::rpc_sync("w2", gradient_of_weight), x.mul(weight_of("w1")).detach());
}

TEST_P(RRefBackward, OfTheOwnerIsThatOfTheContext) {
  const at::Tensor x = leaf();
  Context context;
  const RRef<at::Tensor> loss = weft::make_rref(weft::rpc_sync("w1", weighted, x).sum());
  backward(context.id(), loss, {.retain_graph = true});
  backward_async(context.id(), loss).wait();
  expect_equal(context.gradient(x), weight_of("w1").mul(2).detach());
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(RRefBackward, WithoutAContextIsLocalAndTheOwnersAlone) {
  const at::Tensor x = leaf();
  const RRef<at::Tensor> mine = weft::make_rref(x.mul(x).sum());
  backward(mine, /*retain_graph=*/true);
  backward(mine);
  expect_equal(x.grad(), x.detach().mul(4));
  const absl::Status again = error_of([&] { backward(mine); });
  EXPECT_EQ(again.code(), absl::StatusCode::kUnknown) << again;
  const RRef<at::Tensor> theirs = weft::remote("w1", loss_of, x.detach());
  const absl::Status refused = error_of([&] { backward(theirs); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(weft::ran_of(refused), weft::Ran::kNo);
  EXPECT_THAT(refused.message(), ::testing::AllOf(HasSubstr("w1"), HasSubstr("context")));
}

TEST_P(RRefBackward, WaitsForTheValue) {
  gate() = weft::Promise<void>(nullptr);
  const at::Tensor x = leaf();
  Context context;
  const RRef<at::Tensor> loss = weft::remote("w1", late_loss, x);
  const weft::Future<void> pass = backward_async(context.id(), loss);
  loss.creation().wait();
  EXPECT_FALSE(pass.done());
  gate().set_value();
  pass.wait();
  expect_equal(context.gradient(x), weight_of("w1").detach());
}

TEST_P(RRefBackward, FailsWithWhatIsWrongWithTheLossAndLeavesNoGradient) {
  const at::Tensor x = leaf();
  weft::ContextId ended;
  {
    Context context;
    ended = context.id();
    const absl::Status thrown =
        error_of([&] { backward(context.id(), weft::remote("w1", no_loss, x)); });
    EXPECT_THAT(thrown.message(), HasSubstr("there is no loss"));
    EXPECT_EQ(weft::worker_of(thrown), "w1");
    const absl::Status vector =
        error_of([&] { backward(context.id(), weft::remote("w1", weighted, x)); });
    EXPECT_EQ(vector.code(), absl::StatusCode::kInvalidArgument) << vector;
    EXPECT_EQ(weft::worker_of(vector), "w1");
    EXPECT_FALSE(context.gradient(x).defined());
    // The context is still usable.
    backward(context.id(), weft::remote("w1", loss_of, x));
    expect_equal(context.gradient(x), weight_of("w1").detach());
    EXPECT_EQ(error_of([] {
                backward(weft::dist_autograd::current_context(), RRef<at::Tensor>());
              }).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  // Each worker releases it in time.
  EXPECT_TRUE(eventually([&] { return world().autograd(1).gauges().contexts == 0; }));
  const RRef<at::Tensor> late = weft::remote("w1", loss_of, x);
  EXPECT_EQ(error_of([&] { backward(ended, late); }).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(RRefBackward, SaysThatAContextIsNotFoundWhereNobodyMadeIt) {
  const RRef<at::Tensor> loss = weft::remote("w1", loss_of, leaf());
  loss.to_here();
  // A context number of this worker's own, and one of another worker that never came here. Both are
  // tried on the user and on the owner.
  for (const weft::ContextId& context :
       {weft::ContextId{world().id(0), 77}, weft::ContextId{world().id(1), 77}}) {
    for (const char* where : {"user", "owner"}) {
      const absl::Status status = error_of([&] {
        weft::CallScopeGuard scope(world().scope(where == std::string("owner") ? 1 : 0));
        if (where == std::string("user")) return backward(context, loss);
        backward(context, weft::make_rref(weight_of("w1").sum()));
      });
      EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << where << ": " << status;
      EXPECT_EQ(weft::ran_of(status), weft::Ran::kNo);
    }
  }
}

}  // namespace rref_backward_test
