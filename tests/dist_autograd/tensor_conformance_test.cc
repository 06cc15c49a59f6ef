// What happens to tensors between caller and callee; the same over every transport.
//
// They are copied when the call is made and keep the sender's memory format. Only a recv node makes
// them part of the sender's graph.
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include "absl/strings/str_cat.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/tests/support/runtime_world.h"

namespace tensor_conformance_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;
using weft::Future;
using weft::dist_autograd::Context;
using weft::testing::autograd_alone;
using weft::testing::RuntimeWorld;
using weft::testing::TransportKind;

constexpr int64_t kCopied = int64_t{1} << 20;  // bytes; only larger shared memory is not copied

at::Tensor same(const at::Tensor& x) { return x; }
WEFT_REGISTER_FUNCTION(same);

std::vector<int64_t> strides_of(const at::Tensor& x) { return x.strides().vec(); }
WEFT_REGISTER_FUNCTION(strides_of);

int64_t address_of(const at::Tensor& x) { return reinterpret_cast<int64_t>(x.const_data_ptr()); }

// A tensor as the callee sees it.
struct Arrived {
  bool requires_grad = false;
  bool is_leaf = false;
  std::string grad_fn;  // its name; "": none
  int64_t address = 0;
};
inline auto weft_fields(Arrived& arrived) {
  return std::tie(arrived.requires_grad, arrived.is_leaf, arrived.grad_fn, arrived.address);
}
std::vector<Arrived> look_at(std::vector<at::Tensor> all) {
  std::vector<Arrived> seen;
  for (const at::Tensor& x : all) {
    Arrived arrived;
    arrived.requires_grad = x.requires_grad();
    arrived.is_leaf = x.is_leaf();
    if (x.grad_fn() != nullptr) arrived.grad_fn = x.grad_fn()->name();
    arrived.address = address_of(x);
    seen.push_back(std::move(arrived));
  }
  return seen;
}
WEFT_REGISTER_FUNCTION(look_at);

class TensorConformance : public ::testing::TestWithParam<TransportKind> {};
INSTANTIATE_TEST_SUITE_P(Transports, TensorConformance,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

// ---- arguments that are written to

// Calls of w1 to w0, which has not started. So no call has left when the test writes to the
// arguments.
class Held {
 public:
  explicit Held(TransportKind kind)
      : world_({.kind = kind, .references = false, .autograd = true, .started = false}) {
    world_.start(1);
  }

  RuntimeWorld& world() { return world_; }
  void call(at::Tensor argument, weft::CallOptions options = {}) {
    at::Tensor value = argument.detach().clone();
    Future<at::Tensor> reply = weft::rpc_async({"w0", options}, same, argument);
    calls_.push_back({std::move(argument), std::move(value), std::move(reply)});
  }
  // Writes to all arguments, starts w0, and returns what w0 saw.
  std::vector<at::Tensor> overwrite_and_run() {
    {
      at::NoGradGuard no_grad;
      for (const Call& call : calls_) call.argument.fill_(kWritten);
    }
    world_.start(0);
    std::vector<at::Tensor> seen;
    for (const Call& call : calls_) seen.push_back(call.reply.wait().detach());
    return seen;
  }
  // The value of the argument when the call was made.
  const at::Tensor& value(size_t call) const { return calls_.at(call).value; }

  static constexpr int64_t kWritten = 9;

 private:
  struct Call {
    at::Tensor argument;
    at::Tensor value;
    Future<at::Tensor> reply;
  };
  RuntimeWorld world_;
  std::vector<Call> calls_;
};

TEST_P(TensorConformance, AnArgumentMayBeWrittenOnceItsCallIsMade) {
  Held held(GetParam());
  const Context context(held.world().runtime(1));
  // Sizes that travel in the header, in a small frame and in a large one, and the bound itself.
  for (const int64_t bytes : {int64_t{100}, int64_t{5000}, int64_t{200000}, kCopied}) {
    held.call(at::full({bytes}, 7, at::kByte));
  }
  held.call(at::ones({1000}, at::kDouble).slice(0, 0, 500));  // a part of another tensor's memory
  held.call(at::ones({64, 32}, at::kDouble).t());
  held.call(at::ones({500}, at::kDouble).set_requires_grad(true));
  const std::vector<at::Tensor> seen = held.overwrite_and_run();
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_TRUE(at::equal(seen[i], held.value(i))) << "call " << i;
  }
}

TEST_P(TensorConformance, ASnapshotOfALargeArgumentIsTakenWhenItsCallIsMade) {
  Held held(GetParam());
  const Context context(held.world().runtime(1));
  held.call(at::full({kCopied + 1}, 7, at::kByte), {.snapshot = true});
  held.call(at::ones({kCopied}, at::kDouble).set_requires_grad(true), {.snapshot = true});
  // No user may do this. The argument is sent in place, which shows that the calls before had not
  // left.
  held.call(at::full({kCopied + 1}, 7, at::kByte));
  const std::vector<at::Tensor> seen = held.overwrite_and_run();
  EXPECT_TRUE(at::equal(seen[0], held.value(0)));
  EXPECT_TRUE(at::equal(seen[1], held.value(1)));
  EXPECT_TRUE(at::equal(seen[2], at::full({kCopied + 1}, Held::kWritten, at::kByte)));
}

// ---- graphs

TEST_P(TensorConformance, UnderAContextTensorsArriveWithARecvNodeAndAreNoLeavesOfTheSender) {
  RuntimeWorld world(autograd_alone(2, GetParam()));
  const at::Tensor leaf = at::ones({3}, at::kDouble).set_requires_grad(true);
  const std::vector<at::Tensor> sent{leaf, at::ones({3}, at::kDouble), leaf.mul(2)};
  for (const char* to : {"w1", "w0"}) {
    SCOPED_TRACE(to);
    const Context context(world.runtime(0));
    const std::vector<Arrived> seen = weft::rpc_sync(to, look_at, sent);
    ASSERT_EQ(seen.size(), sent.size());
    for (const size_t slot : {0u, 2u}) {
      EXPECT_TRUE(seen[slot].requires_grad);
      EXPECT_FALSE(seen[slot].is_leaf);
      EXPECT_THAT(seen[slot].grad_fn, AllOf(StartsWith("weft::RecvBackward(send(w0.1,"),
                                            EndsWith(absl::StrCat("tensor ", slot, ")"))));
    }
    EXPECT_FALSE(seen[1].requires_grad);
    EXPECT_EQ(seen[1].grad_fn, "");
    for (size_t i = 0; i < sent.size(); ++i) EXPECT_NE(seen[i].address, address_of(sent[i])) << i;
  }
}

TEST_P(TensorConformance, UnderAContextAResultComesBackWithARecvNodeOfTheCallee) {
  RuntimeWorld world(autograd_alone(2, GetParam()));
  const at::Tensor leaf = at::ones({3}, at::kDouble).set_requires_grad(true);
  const Context context(world.runtime(0));
  const at::Tensor back = weft::rpc_sync("w1", same, leaf);
  EXPECT_FALSE(back.is_leaf());
  ASSERT_NE(back.grad_fn().get(), nullptr);
  EXPECT_THAT(back.grad_fn()->name(), StartsWith("weft::RecvBackward(send(w1.1,"));
  EXPECT_NE(address_of(back), address_of(leaf));
}

TEST_P(TensorConformance, WithoutAContextTensorsArriveAsPlainValues) {
  RuntimeWorld world(autograd_alone(2, GetParam()));
  const at::Tensor leaf = at::ones({3}, at::kDouble).set_requires_grad(true);
  const std::vector<at::Tensor> sent{leaf, leaf.mul(2)};
  const std::vector<Arrived> seen =
      world.on(0, [&] { return weft::rpc_sync("w1", look_at, sent); });
  ASSERT_EQ(seen.size(), sent.size());
  for (const Arrived& arrived : seen) {
    EXPECT_FALSE(arrived.requires_grad);
    EXPECT_TRUE(arrived.is_leaf);
    EXPECT_EQ(arrived.grad_fn, "");
  }
}

// ---- memory formats

void expect_order_kept(const at::Tensor& sent) {
  EXPECT_EQ(weft::rpc_sync("w1", strides_of, sent), sent.strides().vec());
  const at::Tensor back = weft::rpc_sync("w1", same, sent);
  EXPECT_EQ(back.strides(), sent.strides());
  EXPECT_TRUE(at::equal(back, sent));
}

TEST_P(TensorConformance, MemoryFormatsSurviveThereAndBackWithAndWithoutAContext) {
  RuntimeWorld world(autograd_alone(2, GetParam()));
  for (const int64_t size : {2, 12, 60}) {  // in the header, in a small frame, in a large one
    const at::Tensor image = at::arange(6 * size * size, at::kFloat).view({2, 3, size, size});
    const at::Tensor volume = at::arange(24 * size * size, at::kFloat).view({2, 3, 4, size, size});
    for (const at::MemoryFormat format :
         {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast,
          at::MemoryFormat::ChannelsLast3d}) {
      for (const at::Tensor& plain : {image, volume}) {
        const bool fits = format == at::MemoryFormat::Contiguous ||
                          (format == at::MemoryFormat::ChannelsLast) == (plain.dim() == 4);
        if (!fits) continue;
        const at::Tensor sent = plain.clone(format);
        SCOPED_TRACE(absl::StrCat(static_cast<int>(format), " of ", sent.dim(), ", ", size));
        ASSERT_TRUE(sent.is_contiguous(format));
        world.on(0, [&] { expect_order_kept(sent); });
        const Context context(world.runtime(0));
        expect_order_kept(sent.set_requires_grad(true));
      }
    }
  }
}

}  // namespace tensor_conformance_test
