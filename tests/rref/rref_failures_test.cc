// RRef<T> on whole workers when something goes wrong.
//
// Functions fail, calls are refused or late, owners and users die. The tests also check what is
// left of a reference when its worker stops.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/rref/rref_fixture.h"
#include "weft/tests/support/error_of.h"

namespace rref_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using weft::Ran;
using weft::testing::error_of;
using weft::testing::eventually;

// ---- Failures ----

TEST_P(RRefTest, GivesTheErrorOfTheCreatingFunctionToEveryUse) {
  start(3);
  const RRef<int> broken = weft::remote("w1", failing, 1);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = error_of([&] { broken.to_here(); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown) << status;
    EXPECT_THAT(status.message(), HasSubstr("it went wrong"));
    EXPECT_EQ(weft::worker_of(status), "w1");
  }
  EXPECT_THAT(error_of([&] { weft::rpc_sync("w2", read, broken); }).message(),
              HasSubstr("it went wrong"));
}

TEST_P(RRefTest, FailsIfTheFunctionIsNotKnownThere) {
  start(2);
  const RRef<int> never = weft::remote("w1", weft::Function<int(int)>("no::such"), 1);
  EXPECT_EQ(never.creation().result().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(error_of([&] { never.to_here(); }).code(), absl::StatusCode::kUnimplemented);
}

// The use may reach the owner before the owner refuses to make the value, at the same time, or
// after.
TEST_P(RRefTest, GivesTheReasonWhyItWasNotMadeToUsesUnderWay) {
  start(3);
  for (int i = 0; i < 100; ++i) {
    const RRef<int> never = weft::remote("w1", weft::Function<int(int)>("no::such"), 1);
    const Future<int> here = never.to_here_async();
    const Future<int> elsewhere = weft::rpc_async("w2", read, never);
    for (const Future<int>* use : {&here, &elsewhere}) {
      const absl::Status status = use->result().status();
      ASSERT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_THAT(status.message(), HasSubstr("no::such"));
      EXPECT_EQ(weft::ran_of(status), Ran::kNo);
      EXPECT_EQ(weft::worker_of(status), "w1");
      EXPECT_FALSE(weft::is_rref_lost(status));
    }
  }
}

// A lost owner is not asked any more, but the function that made the value has run there.
TEST_P(RRefTest, MayHaveBeenMadeIfItsOwnerIsLost) {
  RuntimeWorld& world = start(2);
  const RRef<int> value = weft::remote("w1", add, 1, 2);
  EXPECT_EQ(value.to_here(), 3);
  world.kill(1);
  const absl::Status used = error_of([&] { value.to_here(); });
  EXPECT_TRUE(weft::is_rref_lost(used)) << used;
  EXPECT_EQ(weft::ran_of(used), weft::Ran::kNo);
  const absl::Status made = value.creation().result().status();
  EXPECT_TRUE(weft::is_rref_lost(made)) << made;
  EXPECT_EQ(weft::ran_of(made), weft::Ran::kMaybe);
}

// BX2, BN6: both sides agree, whichever message came first.
TEST_P(RRefTest, IsConfirmedOrAbsentAfterACreationThatTimedOut) {
  start(2);
  for (int i = 0; i < 50; ++i) {
    const auto timeout = std::chrono::microseconds(1 + i * 10);
    const RRef<int> value = weft::remote({"w1", {.timeout = timeout}}, add, i, 0);
    const absl::Status created = value.creation().result().status();
    if (created.ok()) {
      EXPECT_EQ(value.to_here(), i);
    } else {
      EXPECT_EQ(created.code(), absl::StatusCode::kDeadlineExceeded) << created;
      EXPECT_EQ(error_of([&] { value.to_here(); }), created);
    }
  }
}

TEST_P(RRefTest, StopsWaitingForAnObjectWhenTheCallerDoes) {
  RuntimeWorld& world = start(2);
  const RRef<int> value = weft::remote("w1", later);
  const RRef<int> mine = weft::remote("w0", later);
  EXPECT_EQ(error_of([&] { value.to_here(20ms); }).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(error_of([&] { mine.with({.timeout = 20ms}).local_value(); }).code(),
            absl::StatusCode::kDeadlineExceeded);
  const Future<int> cancelled = value.to_here_async();
  EXPECT_TRUE(eventually([&] { return world.gauges(1).parked_fetches >= 1; }));
  cancelled.cancel();
  EXPECT_TRUE(eventually([&] { return world.gauges(1).parked_fetches == 0; }));
  EXPECT_TRUE(eventually([&] { return world.gauges(0).parked_fetches == 0; }));
  later_promise().set(1);
  EXPECT_EQ(value.to_here(), 1);
  EXPECT_EQ(mine.local_value(), 1);
}

TEST_P(RRefTest, IsReleasedWhenTheCallThatCarriesItIsRefused) {
  start(3);
  const RRef<int> value = weft::remote("w1", add, 1, 2);
  const RRef<int> mine = weft::make_rref(1);
  const weft::Function<int(RRef<int>, RRef<int>)> unknown("no::such");
  EXPECT_EQ(error_of([&] { weft::rpc_sync("w2", unknown, value, mine); }).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(error_of([&] { weft::rpc_sync("w1", unknown, value, mine); }).code(),
            absl::StatusCode::kUnimplemented);
}

TEST_P(RRefTest, IsReleasedWhenTheReplyThatCarriesItComesTooLate) {
  RuntimeWorld& world = start(2);
  EXPECT_EQ(error_of([&] {
              weft::rpc_sync({"w1", {.timeout = 20ms}}, later_rref);
            }).code(),
            absl::StatusCode::kDeadlineExceeded);
  {
    weft::CallScopeGuard scope(world.scope(1));
    later_rref_promise().set(weft::make_rref(5));
    later_rref_promise() = weft::Promise<RRef<int>>(nullptr);
  }
  EXPECT_TRUE(eventually([&] { return world.gauges(1).owners == 0; }));
}

TEST_P(RRefTest, BelongsToOneWorkerOfTheProcess) {
  RuntimeWorld& world = start(2);
  const RRef<int> mine = weft::make_rref(1);
  weft::CallScopeGuard scope(world.scope(1));
  const absl::Status status = error_of([&] { weft::rpc_sync("w0", read, mine); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  // The good reference beside the bad one is taken back, since the call never left.
  const weft::Function<int(RRef<int>, RRef<int>)> two("no::such");
  EXPECT_EQ(error_of([&] { weft::rpc_sync("w0", two, weft::make_rref(2), mine); }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { weft::rpc_sync("w0", read, RRef<int>()); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

// What a call on the value carries.
template <class T>
weft::rref_internal::Target target_of(const RRef<T>& value) {
  weft::Writer writer;
  weft::Codec<RRef<T>>::encode(writer, value);
  return dynamic_cast<const weft::rref_internal::RRefHandle&>(*writer.references().front())
      .target();
}

// The answer to worker `from`, which asks worker 1 for the value behind `target`.
absl::Status ask_for(RuntimeWorld& world, size_t from, const weft::rref_internal::Target& target) {
  weft::RpcRuntime::CallRequest request;
  request.to = world.id(1);
  const weft::FunctionEntry* entry =
      world.runtime(1)->registry().find(weft::hash64("weft.to_here"));
  if (entry == nullptr) return absl::InternalError("no such function");
  request.function = entry->key();
  request.target = weft::rref_internal::encode(target);
  auto promise = std::make_shared<weft::Promise<int>>();
  const Future<int> answered = promise->future();
  world.runtime(from)->call(std::move(request), [promise](absl::StatusOr<weft::Reader> reply) {
    promise->set(reply.ok() ? absl::StatusOr<int>(0) : reply.status());
  });
  return answered.result().status();
}

TEST_P(RRefTest, IsOnlyUsedAsTheTypeThatItIs) {
  RuntimeWorld& world = start(2);
  const RRef<int> value = weft::remote("w1", add, 1, 2);
  ASSERT_EQ(value.to_here(), 3);
  weft::rref_internal::Target target = target_of(value);
  EXPECT_EQ(ask_for(world, 0, target), absl::OkStatus());
  const weft::TypeInfo& wrong = weft::type_info_of<double>();
  target.type = {wrong.hash, wrong.name};
  const absl::Status status = ask_for(world, 0, target);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

RRef<int> make_and_give() { return weft::make_rref(8); }
WEFT_REGISTER_FUNCTION(make_and_give);

// Worker 2 guesses the numbers of RRefs that it was never given.
TEST_P(RRefTest, IsOnlyUsedByThoseThatItWasGivenTo) {
  RuntimeWorld& world = start(3);
  const RRef<int> remote = weft::remote("w1", add, 1, 2);
  ASSERT_EQ(remote.to_here(), 3);
  const RRef<int> owned = weft::rpc_sync("w1", make_and_give);
  for (const RRef<int>* value : {&remote, &owned}) {
    const weft::rref_internal::Target given = target_of(*value);
    EXPECT_EQ(ask_for(world, 0, given), absl::OkStatus());
    for (const uint64_t guess : {uint64_t{0}, given.key + 1, given.key ^ uint64_t{1} << 63}) {
      weft::rref_internal::Target target = given;
      target.key = guess;
      const absl::Status status = ask_for(world, 2, target);
      EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
      EXPECT_EQ(weft::ran_of(status), Ran::kNo);
      EXPECT_THAT(status.message(), HasSubstr(value->id().to_string()));
    }
  }
  EXPECT_NE(target_of(remote).key, target_of(owned).key);
}

// ---- Deaths ----

// BN1.
TEST_P(RRefTest, IsLostWhenItsOwnerDies) {
  RuntimeWorld& world = start(3);
  const RRef<int> value = weft::remote("w1", later);
  value.creation().wait();
  const Future<int> waiting = value.to_here_async();
  world.kill(1);
  EXPECT_EQ(waiting.result().status().code(), absl::StatusCode::kUnavailable);
  const absl::Status status = error_of([&] { value.to_here(); });
  EXPECT_TRUE(weft::is_rref_lost(status)) << status;
  EXPECT_EQ(weft::ran_of(status), Ran::kNo);
  EXPECT_EQ(weft::worker_of(status), "w1");
  EXPECT_THAT(status.message(), HasSubstr("worker 'w1'"));
  EXPECT_TRUE(weft::is_rref_lost(error_of([&] { weft::rpc_sync("w2", read, value); })));
  EXPECT_EQ(value.owner(), world.id(1));
  EXPECT_EQ(value.owner_name(), "w1");
  // Nothing is sent, but continuations run all the same.
  weft::Promise<bool> told(nullptr), told_of_creation(nullptr);
  (void)value.to_here_async().then(
      [&](const Future<int>& lost) { told.set(weft::is_rref_lost(lost.result().status())); });
  (void)value.creation().then([&](const Future<void>& lost) {
    told_of_creation.set(weft::is_rref_lost(lost.result().status()));
  });
  for (const auto* one : {&told, &told_of_creation}) {
    ASSERT_TRUE(one->future().wait_for(20s));
    EXPECT_TRUE(one->future().wait());
  }
  const absl::Status too_late = error_of([&] { weft::remote("w1", later); });
  EXPECT_EQ(weft::worker_of(too_late), "w1") << too_late;
}

// BN2.
TEST_P(RRefTest, IsLetGoWhenItsUserDies) {
  RuntimeWorld& world = start(3);
  {
    const RRef<int> mine = weft::make_rref(5);
    weft::rpc_sync("w1", keep, "of w1", mine);
    weft::rpc_sync("w2", keep, "of w2", mine);
    EXPECT_EQ(world.gauges(0).forks, 2u);
    world.kill(1);
    EXPECT_TRUE(eventually([&] { return world.gauges(0).forks == 1; }));
  }
  EXPECT_EQ(world.gauges(0).owners, 1u) << "w2 still holds it";
  EXPECT_EQ(take_kept("of w2").to_here(), 5);
  EXPECT_TRUE(eventually([&] { return world.gauges(0).owners == 0; }));
  take_kept("of w1");
}

// ---- A worker stops ----

TEST_P(RRefTest, ReportsWhoStillHoldsWhatAtShutdown) {
  RuntimeWorld& world = start(2);
  const RRef<int> mine = weft::make_rref(5);
  weft::rpc_sync("w1", keep, "leaked", mine);
  world.references(0).begin_shutdown();
  EXPECT_FALSE(world.references(0).drained());
  const auto leaks = world.references(0).leaks();
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0].rref, mine.id());
  EXPECT_EQ(leaks[0].worker, world.id(1));
  EXPECT_THAT(leaks[0].to_string(), HasSubstr("i32"));
  weft::Promise<void> drained;
  world.references(0).when_drained([&] { drained.set_value(); });
  EXPECT_EQ(take_kept("leaked").to_here(), 5) << "what others hold stays readable";
  drained.future().wait();
}

TEST_P(RRefTest, RefersToNothingAfterItsWorkersEnd) {
  RuntimeWorld& world = start(2);
  const RRef<int> theirs = weft::remote("w1", add, 1, 2);
  const RRef<int> mine = weft::make_rref(1);
  const RRef<int> pending = weft::remote("w1", later);
  ASSERT_EQ(theirs.to_here(), 3);
  later_promise().set(1);
  for (size_t i = 0; i < 2; ++i) world.references(i).begin_shutdown();
  for (const auto& rref : {theirs, mine, pending}) {
    EXPECT_EQ(error_of([&] { rref.to_here(); }).code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_EQ(error_of([&] { mine.local_value(); }).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(error_of([] { weft::make_rref(1); }).code(), absl::StatusCode::kFailedPrecondition);
  const RRef<int> orphan = theirs;
  stop();
  EXPECT_EQ(error_of([&] { orphan.to_here(); }).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(orphan.owner_name(), orphan.owner().to_string());
  EXPECT_EQ(error_of([&] { orphan.creation().wait(); }).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(orphan.str(), HasSubstr("RRef<i32>"));
}

TEST_P(RRefTest, FreesAllValuesWhenItsWorkerEndsWithoutADrain) {
  RuntimeWorld& world = start(2);
  world.allow_leftovers();
  const RRef<Tracked> theirs = weft::remote<Tracked>("w1", 1);
  const RRef<Tracked> mine = weft::make_rref(std::make_unique<Tracked>(2));
  theirs.creation().wait();
  EXPECT_EQ(theirs.rpc_sync(&Tracked::get), 1);
  const RRef<int> never = weft::remote("w1", later);
  const Future<int> waiting = never.to_here_async();
  stop();
  EXPECT_EQ(Tracked::alive, 0);
  EXPECT_FALSE(waiting.result().ok());
}

}  // namespace rref_test
