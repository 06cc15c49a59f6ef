// The verbs over a loopback: what a user's call looks like, and what becomes of it.
#include "weft/rpc/verbs.h"

#include <new>
#include <optional>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rpc/support/loopback_runtime.h"
#include "weft/tests/support/error_of.h"

namespace verbs_test {

using ::testing::HasSubstr;
using ::testing::Not;
using weft::Ran;
using weft::RpcError;
using weft::testing::error_of;

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
WEFT_REGISTER_FUNCTION(add);

int64_t use_count_by_value(at::Tensor t) { return static_cast<int64_t>(t.use_count()); }
WEFT_REGISTER_FUNCTION(use_count_by_value);
int64_t use_count_by_rvalue(at::Tensor&& t) { return static_cast<int64_t>(t.use_count()); }
WEFT_REGISTER_FUNCTION(use_count_by_rvalue);

size_t holders_of_argument = 0;
at::Tensor give_back(const at::Tensor& t) {
  holders_of_argument = t.use_count();
  return t;
}
WEFT_REGISTER_FUNCTION(give_back);

struct Batch {
  at::Tensor x;
  std::vector<int64_t> labels;
  std::string name;
};
auto weft_fields(Batch& b) { return std::tie(b.x, b.labels, b.name); }
std::string describe(const Batch& batch, std::optional<double> scale) {
  return batch.name + std::to_string(batch.labels.size()) + (scale ? "scaled" : "plain");
}
WEFT_REGISTER_FUNCTION(describe, weft::run_inline);

int64_t total(std::vector<int64_t> values) {
  int64_t sum = 0;
  for (int64_t value : values) sum += value;
  return sum;
}
WEFT_REGISTER_FUNCTION(total);
int64_t total_of_views(c10::IntArrayRef a, std::span<const double> b, at::TensorList c,
                       std::string_view d) {
  return static_cast<int64_t>(a.size() * 1000 + b.size() * 100 + c.size() * 10 + d.size());
}
WEFT_REGISTER_FUNCTION(total_of_views);

double twice(double x) noexcept { return 2 * x; }
float twice(float x) { return 2 * x; }
WEFT_REGISTER_FUNCTION_AS("twice.f64", weft::overload<double>(twice));
WEFT_REGISTER_FUNCTION_AS("twice.f32", weft::overload<float>(twice), weft::run_inline);

template <class T>
T increment(T x) {
  return x + 1;
}
WEFT_REGISTER_FUNCTION_AS("increment.i32", increment<int>);

int nothing_calls = 0;
void nothing() { ++nothing_calls; }
WEFT_REGISTER_FUNCTION(nothing);

std::string who_calls(weft::CallContext& context, int number) {
  return context.caller_name() + std::to_string(number);
}
WEFT_REGISTER_FUNCTION(who_calls);

struct MoveOnly {
  int value = 0;
  MoveOnly() = default;
  explicit MoveOnly(int v) : value(v) {}
  MoveOnly(MoveOnly&&) = default;
  MoveOnly& operator=(MoveOnly&&) = default;
};
auto weft_fields(MoveOnly& m) { return std::tie(m.value); }
MoveOnly pass_on(MoveOnly m) { return MoveOnly(m.value + 1); }
WEFT_REGISTER_FUNCTION(pass_on);

std::vector<std::string> kept = {"a", "b"};
const std::vector<std::string>& keeper() { return kept; }
WEFT_REGISTER_FUNCTION(keeper);

absl::StatusOr<int> checked(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return value;
}
WEFT_REGISTER_FUNCTION(checked);
absl::Status only_status(bool good) {
  return good ? absl::OkStatus() : absl::AbortedError("not good");
}
WEFT_REGISTER_FUNCTION(only_status);

weft::Promise<int> pending;
weft::Future<int> later() { return pending.future(); }
WEFT_REGISTER_FUNCTION(later);
weft::Future<MoveOnly> later_move_only() { return weft::Future<MoveOnly>::ready(MoveOnly(7)); }
WEFT_REGISTER_FUNCTION(later_move_only);
weft::Future<int> forgotten_future() { return {}; }
WEFT_REGISTER_FUNCTION(forgotten_future);

int throwing(int kind) {
  switch (kind) {
    case 0:
      throw 1;
    case 1:
      TORCH_CHECK(false, "sizes differ");
    case 2:
      throw std::bad_alloc();
    case 3:
      throw std::runtime_error("went wrong");
    default:
      throw RpcError(weft::with_ran(absl::NotFoundError("nested"), Ran::kNo));
  }
}
WEFT_REGISTER_FUNCTION(throwing);

struct Moody {
  int value = 0;
};

}  // namespace verbs_test

// A hand-written codec that throws in both directions.
template <>
struct weft::Codec<verbs_test::Moody> {
  static void encode(Writer& writer, const verbs_test::Moody& moody) {
    if (moody.value < 0) throw std::runtime_error("cannot encode");
    writer.scalar(moody.value);
  }
  static verbs_test::Moody decode(Reader& reader) {
    verbs_test::Moody moody{reader.scalar<int>()};
    if (moody.value == 13) throw std::runtime_error("cannot decode");
    return moody;
  }
  static void schema(SchemaBuilder& schema) { schema.text("moody"); }
};

namespace verbs_test {

Moody cheer_up(Moody moody) {
  return {moody.value == 1 ? -1 : moody.value == 2 ? 13 : moody.value};
}
WEFT_REGISTER_FUNCTION(cheer_up);

const auto half = weft::define("half", [](double x) { return x / 2; });
inline constexpr weft::Function<at::Tensor(at::Tensor)> elsewhere{"serving::infer"};
inline constexpr weft::Function<at::Tensor(at::Tensor)> add_misspelt{"verbs_test::add"};

int unregistered(int x) { return x; }

class VerbsTest : public ::testing::Test {
 protected:
  VerbsTest() {
    weft::RegistryBuilder builder;
    count.emplace(builder.add("count", [this](int by) { return counted += by; }));
    auto registry = builder.build();
    EXPECT_TRUE(registry.ok()) << registry.status();
    runtime = std::make_shared<weft::testing::LoopbackRuntime>(*registry);
    weft::CallScope here;
    here.runtime = runtime;
    scope.emplace(here);
  }
  int counted = 0;
  std::optional<weft::Function<int(int)>> count;
  std::shared_ptr<weft::testing::LoopbackRuntime> runtime;
  std::optional<weft::CallScopeGuard> scope;
};

TEST_F(VerbsTest, CallsAFunctionOfTensors) {
  const at::Tensor ones = at::ones({2, 3});
  EXPECT_TRUE(at::equal(weft::rpc_sync("w", add, ones, ones), ones.add(1)));
  EXPECT_TRUE(at::equal(weft::rpc_async("w", add, ones, ones).wait(), ones.add(1)));
}

TEST_F(VerbsTest, ArgumentsConvertAsInADirectCall) {
  EXPECT_EQ(weft::rpc_sync("w", total, {1, 2, 3}), 6);
  EXPECT_EQ(weft::rpc_sync("w", total, {}), 0);
  EXPECT_EQ(weft::rpc_sync("w", describe, {at::Tensor(), {1, 2}, "n"}, std::nullopt), "n2plain");
  EXPECT_EQ(weft::rpc_sync("w", describe, {{}, {}, "n"}, 3), "n0scaled");
  struct {
    unsigned bits : 3 = 5;
  } with_bits;
  EXPECT_EQ(weft::rpc_sync("w", increment<int>, with_bits.bits), 6);
  const auto chosen = nothing_calls >= 0 ? &total : nullptr;
  EXPECT_EQ(weft::rpc_sync("w", chosen, {4}), 4);
}

TEST_F(VerbsTest, ViewsTravelAsWhatTheyShow) {
  const std::vector<double> numbers = {1, 2};
  EXPECT_EQ(
      weft::rpc_sync("w", total_of_views, {1, 2, 3}, numbers, {at::ones(1), at::ones(1)}, "four"),
      3224);
}

TEST_F(VerbsTest, ATensorGivenAwayIsHeldByTheCalleeAlone) {
  EXPECT_EQ(weft::rpc_sync("w", use_count_by_value, at::ones(1)), 1);
  EXPECT_EQ(weft::rpc_sync("w", use_count_by_rvalue, at::ones(1)), 1);
  at::Tensor mine = at::ones(1);
  EXPECT_EQ(weft::rpc_sync("w", use_count_by_value, mine), 2);
  EXPECT_EQ(weft::rpc_sync("w", use_count_by_value, std::move(mine)), 1);
}

// Otherwise it would be copied before it is sent (TensorSendOptions::holders).
TEST_F(VerbsTest, AnArgumentThatIsTheResultIsNotHeldTwice) {
  const at::Tensor mine = at::ones(1);
  weft::rpc_sync("w", give_back, mine);
  EXPECT_EQ(holders_of_argument, 2);  // `mine`, and the callee
  EXPECT_EQ(runtime->holders_of_result, 2);
}

TEST_F(VerbsTest, MoveOnlyValuesTravelBothWays) {
  EXPECT_EQ(weft::rpc_sync("w", pass_on, MoveOnly(1)).value, 2);
  EXPECT_EQ(weft::rpc_sync("w", later_move_only).value, 7);
}

TEST_F(VerbsTest, OverloadsAndTemplateInstancesAreCalledByPointer) {
  EXPECT_EQ(weft::rpc_sync("w", weft::overload<double>(twice), 3), 6.0);
  EXPECT_EQ(weft::rpc_sync("w", static_cast<float (*)(float)>(twice), 3), 6.0f);
  EXPECT_EQ(weft::rpc_sync("w", increment<int>, 3), 4);
}

TEST_F(VerbsTest, VoidReferenceContextAndNamedFunctionsWork) {
  const int before = nothing_calls;
  weft::rpc_sync("w", nothing);
  EXPECT_EQ(nothing_calls, before + 1);
  EXPECT_EQ(weft::rpc_sync("w", keeper), kept);
  EXPECT_EQ(weft::rpc_sync("w", who_calls, 4), "caller4");
  EXPECT_EQ(weft::rpc_sync("w", half, 3), 1.5);
  EXPECT_EQ(weft::rpc_sync("w", weft::Function<double(double)>("half"), 3), 1.5);
  EXPECT_EQ(weft::rpc_sync("w", *count, 2), 2);
  EXPECT_EQ(weft::rpc_sync("w", *count, 3), 5);
}

TEST_F(VerbsTest, AStatusOfTheFunctionIsTheCallsStatus) {
  EXPECT_EQ(weft::rpc_sync("w", checked, 3), 3);
  const absl::Status status = error_of([] { return weft::rpc_sync("w", checked, -1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(weft::ran_of(status), Ran::kYes);
  weft::rpc_sync("w", only_status, true);
  EXPECT_EQ(weft::rpc_async("w", only_status, false).result().status().code(),
            absl::StatusCode::kAborted);
}

TEST_F(VerbsTest, AFunctionThatReturnsAFutureRepliesWhenItCompletes) {
  pending = weft::Promise<int>();
  weft::Future<int> future = weft::rpc_async("w", later);
  EXPECT_FALSE(future.done());
  pending.set(5);
  ASSERT_TRUE(future.done());
  EXPECT_EQ(future.wait(), 5);

  pending = weft::Promise<int>();
  future = weft::rpc_async("w", later);
  pending = weft::Promise<int>();  // the first promise is dropped
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(weft::ran_of(future.result().status()), Ran::kYes);
  EXPECT_EQ(weft::rpc_async("w", forgotten_future).result().status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(VerbsTest, WhateverAFunctionThrowsReachesTheCaller) {
  const auto thrown = [&](int kind) {
    const absl::Status status = error_of([&] { return weft::rpc_sync("w", throwing, kind); });
    EXPECT_EQ(weft::ran_of(status), Ran::kYes);
    EXPECT_EQ(weft::worker_of(status), "w");
    EXPECT_EQ(weft::trail_of(status), "w/verbs_test::throwing");
    return status;
  };
  EXPECT_EQ(thrown(0).code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(thrown(0).message()), HasSubstr("int"));
  EXPECT_THAT(std::string(thrown(1).message()), HasSubstr("sizes differ"));
  EXPECT_THAT(std::string(thrown(1).message()), Not(HasSubstr("frame #")));
  EXPECT_EQ(thrown(1).code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(std::string(thrown(2).message()), HasSubstr("std::bad_alloc"));
  EXPECT_THAT(std::string(thrown(3).message()), HasSubstr("std::runtime_error: went wrong"));
  EXPECT_EQ(thrown(4).code(), absl::StatusCode::kNotFound);
}

TEST_F(VerbsTest, ACodecThatThrowsFailsTheCallOnly) {
  EXPECT_EQ(weft::rpc_sync("w", cheer_up, Moody{5}).value, 5);
  // An argument was not sent, or not decoded. A function ran, but its result was not sent, or not
  // read.
  EXPECT_EQ(weft::ran_of(error_of([] { return weft::rpc_sync("w", cheer_up, Moody{-1}); })),
            Ran::kNo);
  const absl::Status undecoded = error_of([] { return weft::rpc_sync("w", cheer_up, Moody{13}); });
  EXPECT_EQ(undecoded.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(weft::ran_of(undecoded), Ran::kNo);
  EXPECT_EQ(weft::ran_of(error_of([] { return weft::rpc_sync("w", cheer_up, Moody{1}); })),
            Ran::kYes);
  EXPECT_EQ(error_of([] { return weft::rpc_sync("w", cheer_up, Moody{2}); }).code(),
            absl::StatusCode::kInternal);
}

TEST_F(VerbsTest, AnUnregisteredFunctionIsRefusedBeforeAnythingIsSent) {
  const absl::Status status = error_of([] { return weft::rpc_sync("w", unregistered, 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("WEFT_REGISTER_FUNCTION"));
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  EXPECT_EQ(runtime->calls, 0u);
}

TEST_F(VerbsTest, AWrongFunctionOrSignatureIsNamedWithBothSides) {
  const absl::Status unknown = error_of([] { return weft::rpc_sync("w", elsewhere, at::ones(1)); });
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("worker 'w' has no function 'serving::infer'"));
  const absl::Status other =
      error_of([] { return weft::rpc_sync("w", add_misspelt, at::ones(1)); });
  EXPECT_EQ(other.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(other.message(),
            "'verbs_test::add' on worker 'w' is (tensor, tensor) -> tensor; this program calls "
            "'verbs_test::add' as (tensor) -> tensor");
  EXPECT_EQ(weft::ran_of(other), Ran::kNo);
}

TEST_F(VerbsTest, AWrongWorkerOrNoWorkerIsAnErrorOfTheFuture) {
  EXPECT_EQ(weft::rpc_async("nobody", nothing).result().status().code(),
            absl::StatusCode::kNotFound);
  scope.reset();
  const absl::Status none = weft::rpc_async("w", nothing).result().status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(weft::ran_of(none), Ran::kNo);
  EXPECT_EQ(runtime->calls, 0u);
  weft::rpc_sync(weft::Destination(runtime, "w"), nothing);
  weft::rpc_sync(weft::Destination(runtime, weft::WorkerId{0, 1}), nothing);
  EXPECT_EQ(runtime->calls, 2u);
}

TEST_F(VerbsTest, OptionsRideOnTheDestination) {
  weft::rpc_sync({"w", {.timeout = std::chrono::seconds(5), .snapshot = true}}, nothing);
  EXPECT_EQ(runtime->last_options.timeout.limit(), std::chrono::seconds(5));
  EXPECT_TRUE(runtime->last_options.snapshot);
}

TEST_F(VerbsTest, BadArgumentsNameFunctionAndArgument) {
  runtime->change_arguments = [](std::string& body) { body.resize(body.size() - 1); };
  const int before = counted;
  absl::Status status = error_of([] { return weft::rpc_sync("w", describe, {{}, {}, "n"}, 2.0); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("argument 2 of 'verbs_test::describe'"));
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  status = error_of([&] { return weft::rpc_sync("w", *count, 1); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("argument 1 of 'count'"));
  runtime->change_arguments = [](std::string& body) { body += 'x'; };
  status = error_of([&] { return weft::rpc_sync("w", *count, 1); });
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("arguments of 'count': the message holds more"));
  EXPECT_EQ(counted, before);
}

TEST_F(VerbsTest, ABadResultIsAnErrorOfTheCallThatRan) {
  runtime->change_result = [](std::string& body) { body.clear(); };
  const absl::Status status = error_of([&] { return weft::rpc_sync("w", *count, 1); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(weft::ran_of(status), Ran::kYes);
  EXPECT_EQ(counted, 1);
}

TEST_F(VerbsTest, CancellingTellsTheRuntimeAndDropsTheResult) {
  runtime->deferred = true;
  weft::Future<int> future = weft::rpc_async("w", *count, 1);
  future.cancel();
  ASSERT_EQ(runtime->cancelled.size(), 1u);
  EXPECT_EQ(runtime->cancelled[0].number, 1u);
  EXPECT_EQ(runtime->manual_executor().run_all(), 1u);
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(VerbsTest, AFutureDoesNotKeepItsWorkerAlive) {
  runtime->deferred = true;
  weft::Future<int> future = weft::rpc_async("w", *count, 1);
  scope.reset();
  const std::weak_ptr<weft::RpcRuntime> worker = runtime;
  runtime.reset();
  EXPECT_TRUE(worker.expired());
  future.cancel();
  EXPECT_EQ(future.result().status().code(), absl::StatusCode::kCancelled);
}

}  // namespace verbs_test
