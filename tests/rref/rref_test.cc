// RRef<T> on whole workers: what a user sees while nothing fails, and that everything is dropped at
// the end.
//
// Failures, deaths and stopping workers are in rref_failures_test.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/tests/rref/rref_fixture.h"
#include "weft/tests/support/error_of.h"

namespace rref_test {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using weft::testing::error_of;
using weft::testing::eventually;

// ---- Functions and classes that the workers know ----

int read_locally(RRef<int> value) { return value.local_value(); }
WEFT_REGISTER_FUNCTION(read_locally);
bool is_confirmed(RRef<int> value) { return value.confirmed_by_owner(); }
WEFT_REGISTER_FUNCTION(is_confirmed);
RRef<int> make(int value) { return weft::make_rref(value); }
WEFT_REGISTER_FUNCTION(make);
RRef<int> give_back(RRef<int> value) { return value; }
WEFT_REGISTER_FUNCTION(give_back);

struct Pair {
  RRef<int> first;
  std::vector<RRef<int>> rest;
};
auto weft_fields(Pair& p) { return std::tie(p.first, p.rest); }
int total(std::map<std::string, Pair> pairs) {
  int sum = 0;
  for (const auto& [name, pair] : pairs) {
    sum += pair.first.to_here();
    for (const RRef<int>& value : pair.rest) sum += value.to_here();
  }
  return sum;
}
WEFT_REGISTER_FUNCTION(total);

// Each worker hands its reference to the next one and keeps none. The last one reads the value.
Future<int> pass_on(RRef<int> value, std::vector<std::string> route);
WEFT_REGISTER_FUNCTION(pass_on);
Future<int> pass_on(RRef<int> value, std::vector<std::string> route) {
  if (route.empty()) return value.to_here_async();
  const std::string next = route.back();
  route.pop_back();
  return weft::rpc_async(next, pass_on, std::move(value), std::move(route));
}

std::unique_ptr<Tracked> make_tracked(int value) { return std::make_unique<Tracked>(value); }
WEFT_REGISTER_FUNCTION(make_tracked);

// If two of its methods ran at once, it would lose counts, and its collisions would say so.
class Turnstile {
 public:
  int pass() {
    if (inside_.fetch_add(1) != 0) ++collisions_;
    std::this_thread::yield();
    const int number = ++passed_;
    inside_.fetch_sub(1);
    return number;
  }
  int collisions() const { return collisions_.load(); }
  int again(RRef<Turnstile> self) { return self.rpc_sync(&Turnstile::pass); }

 private:
  std::atomic<int> inside_{0};
  std::atomic<int> collisions_{0};
  int passed_ = 0;
};
WEFT_REGISTER_CLASS(Turnstile, weft::constructor<>(), &Turnstile::pass, &Turnstile::collisions,
                    &Turnstile::again, weft::serial);

// Hands a token on to a new object, without waiting for it.
class Stop {
 public:
  void hand_on(int left);
  static inline weft::Promise<int64_t>* end = nullptr;
};
WEFT_REGISTER_CLASS(Stop, weft::constructor<>(), &Stop::hand_on, weft::serial);
void Stop::hand_on(int left) {
  if (left == 0) {
    end->set(static_cast<int64_t>(weft::CallScope::current().held->size()));
  } else {
    (void)weft::remote<Stop>(left % 2 == 0 ? "w0" : "w1").rpc_async(&Stop::hand_on, left - 1);
  }
}

int pass_for(RRef<Turnstile> turnstile) { return turnstile.rpc_sync(&Turnstile::pass); }
WEFT_REGISTER_FUNCTION(pass_for);
// Four branches of one handler, two of them a level deeper. Returns the greatest number.
int pass_four_times_at_once(RRef<Turnstile> turnstile) {
  const Future<int> passes[] = {
      turnstile.rpc_async(&Turnstile::pass), weft::rpc_async("w0", pass_for, turnstile),
      turnstile.rpc_async(&Turnstile::pass), weft::rpc_async("w1", pass_for, turnstile)};
  int last = 0;
  for (const Future<int>& pass : passes) last = std::max(last, pass.wait());
  return last;
}
WEFT_REGISTER_FUNCTION(pass_four_times_at_once);

// Once for both files of RRefTest.
INSTANTIATE_TEST_SUITE_P(Transports, RRefTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

// ---- The seven cases ----

// Case 1: the creator.
TEST_P(RRefTest, KeepsTheResultOfARemoteCallUntilItsLastHandleDies) {
  RuntimeWorld& world = start(2);
  {
    const RRef<Tracked> object = weft::remote("w1", make_tracked, 5);
    object.creation().wait();
    EXPECT_TRUE(object.confirmed_by_owner());
    EXPECT_EQ(object.owner(), world.id(1));
    EXPECT_EQ(object.owner_name(), "w1");
    EXPECT_FALSE(object.is_owner());
    EXPECT_EQ(object.rpc_sync(&Tracked::get), 5);
    const RRef<Tracked> copy = object;
    EXPECT_EQ(world.gauges(0).users, 1u) << "copies share one fork";
    EXPECT_EQ(Tracked::alive, 1);
  }
  EXPECT_TRUE(eventually([] { return Tracked::alive == 0; }));
  EXPECT_EQ(Tracked::died_elsewhere, 0) << "a value died outside the executor";
}

// Case 2: a user sends it to its owner.
TEST_P(RRefTest, IsTheValueItselfAtItsOwner) {
  start(2);
  const RRef<int> sum = weft::remote("w1", add, 1, 2);
  EXPECT_EQ(weft::rpc_sync("w1", read_locally, sum), 3);
}

TEST_P(RRefTest, IsMadeOfACopyWhereTheTypeIsNamed) {
  start(1);
  int64_t number = 5;
  const std::string text = "kept";
  const auto object = std::make_shared<Tracked>(7);
  EXPECT_EQ(weft::make_rref<int64_t>(number).local_value(), 5);
  EXPECT_EQ(weft::make_rref<int64_t>(number + 1).local_value(), 6);
  EXPECT_EQ(weft::make_rref<std::string>(text).local_value(), "kept");
  EXPECT_EQ(weft::make_rref(text).local_value(), "kept");
  EXPECT_EQ(weft::make_rref<std::shared_ptr<Tracked>>(object).local_value().get(), 7);
}

TEST_P(RRefTest, LocalValueElsewhereNamesWhoAsksAndWhoOwns) {
  start(2);
  const RRef<int> value = weft::remote("w1", add, 1, 2);
  const absl::Status status = error_of([&] { value.local_value(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), HasSubstr("on worker 'w0', which is not its owner, 'w1'"));
}

// Case 3: the owner sends it to a user, as an argument and as a result.
TEST_P(RRefTest, CanBeLentByItsOwner) {
  RuntimeWorld& world = start(2);
  const RRef<int> mine = weft::make_rref(4);
  EXPECT_TRUE(mine.is_owner());
  EXPECT_EQ(weft::rpc_sync("w1", read, mine), 4);
  const RRef<int> theirs = weft::rpc_sync("w1", make, 8);
  EXPECT_EQ(theirs.owner(), world.id(1));
  EXPECT_TRUE(theirs.confirmed_by_owner()) << "what comes from the owner is confirmed";
  EXPECT_EQ(theirs.to_here(), 8);
}

// Case 4: a user sends it to another user. B5: the function starts when it is confirmed.
TEST_P(RRefTest, StartsAFunctionOnlyWhenItsReferencesAreConfirmed) {
  start(3);
  const RRef<int> sum = weft::remote("w1", add, 1, 2);
  std::vector<Future<bool>> confirmed;
  for (int i = 0; i < 20; ++i) confirmed.push_back(weft::rpc_async("w2", is_confirmed, sum));
  for (const auto& each : confirmed) EXPECT_TRUE(each.wait());
  EXPECT_EQ(weft::rpc_sync("w2", read, sum), 3);
}

// Case 5: remote() to this worker.
TEST_P(RRefTest, MayLiveOnTheWorkerThatAskedForIt) {
  RuntimeWorld& world = start(1);
  {
    const RRef<Tracked> object = weft::remote<Tracked>("w0", 7);
    EXPECT_TRUE(object.is_owner());
    EXPECT_EQ(object.local_value().get(), 7);
    object.rpc_sync(&Tracked::set, 9);
    EXPECT_EQ(object.local_value().value, 9);
    const RRef<int> broken = weft::remote("w0", failing, 1);
    EXPECT_THAT(error_of([&] { broken.local_value(); }).message(), HasSubstr("it went wrong"));
  }
  EXPECT_TRUE(eventually([] { return Tracked::alive == 0; }));
  EXPECT_EQ(Tracked::died_elsewhere, 0) << "a value died on the thread that let it go";
  // The task that ran `failing` lets its handle go after the error was told.
  EXPECT_TRUE(eventually([&] { return world.gauges(0).owners == 0; }));
}

// Case 6: the owner sends it to itself.
TEST_P(RRefTest, MayBeSentFromItsOwnerToItself) {
  start(1);
  EXPECT_EQ(weft::rpc_sync("w0", read_locally, weft::make_rref(6)), 6);
  EXPECT_EQ(weft::rpc_sync("w0", give_back, weft::make_rref(7)).to_here(), 7);
}

// Case 7: everything at once, over several workers. A worker that passes it on keeps nothing.
TEST_P(RRefTest, LivesThroughAChainOfWorkersThatKeepNothing) {
  start(4);
  Future<int> end;
  {
    const RRef<int> value = weft::remote("w3", add, 40, 2);
    end = weft::rpc_async("w1", pass_on, value, {"w0", "w1", "w2", "w0", "w2", "w3", "w1", "w2"});
  }
  EXPECT_EQ(end.wait(), 42);
}

// ---- References in values ----

TEST_P(RRefTest, MayBeInsideStructsListsAndMaps) {
  start(3);
  std::map<std::string, Pair> pairs;
  pairs["a"] = {weft::remote("w1", add, 1, 0), {weft::remote("w2", add, 2, 0), weft::make_rref(4)}};
  pairs["b"] = {weft::remote("w2", add, 8, 0), {}};
  EXPECT_EQ(weft::rpc_sync("w1", total, pairs), 15);
}

TEST_P(RRefTest, CanItselfBeTheValueOfAnRRef) {
  start(3);
  const RRef<RRef<int>> outer = weft::remote("w1", make, 3);
  const RRef<int> inner = outer.to_here();
  EXPECT_EQ(weft::rpc_sync("w2", read, inner), 3);
}

TEST_P(RRefTest, ComesBackToItsSenderAsTheSameReference) {
  start(2);
  const RRef<int> mine = weft::make_rref(3);
  const RRef<int> back = weft::rpc_sync("w1", give_back, mine);
  EXPECT_EQ(back, mine);
  EXPECT_TRUE(back.is_owner());
}

TEST_P(RRefTest, ProtectsTheValueWhileItIsOnItsWay) {
  start(3);
  for (int i = 0; i < 50; ++i) {
    // The only handle is destroyed as soon as the call is made.
    EXPECT_EQ(weft::rpc_async("w2", read, weft::remote("w1", add, i, 1)).wait(), i + 1);
  }
}

// ---- Objects ----

TEST_P(RRefTest, HasTheVerbsForMethodsAndFreeFunctions) {
  start(2);
  const RRef<Tracked> object = weft::remote<Tracked>("w1", 5);
  EXPECT_EQ(object.rpc_sync(&Tracked::get), 5);
  object.rpc_async(&Tracked::set, 6).wait();
  object.rpc_sync(increase, 4);
  EXPECT_EQ(object.with({.timeout = 5s}).rpc_sync(twice), 20);
  const RRef<Tracked> clone = object.remote(&Tracked::clone);
  const RRef<int> value = clone.with({.timeout = 5s}).remote(&Tracked::get);
  EXPECT_EQ(value.to_here(), 10);
  EXPECT_EQ(weft::make_rref(std::make_unique<Tracked>(3)).rpc_sync(&Tracked::get), 3);
}

TEST_P(RRefTest, LivesAsLongAsACallOnItUnderWayIfNobodyHoldsIt) {
  RuntimeWorld& world = start(2);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(
        weft::remote<Tracked>("w1", i).remote(&Tracked::clone).remote(&Tracked::get).to_here(), i);
  }
  const Future<int> here = weft::remote("w1", later).to_here_async();
  // When these calls are answered, a message that the dropped handle might have sent has arrived
  // too.
  for (int i = 0; i < 3; ++i) weft::rpc_sync("w1", add, 1, 2);
  EXPECT_FALSE(here.done());
  EXPECT_EQ(world.gauges(0).users, 1u);
  later_promise().set(11);
  EXPECT_EQ(here.wait(), 11);
  EXPECT_TRUE(eventually([&] { return world.gauges(0).users == 0; }));
}

TEST_P(RRefTest, RunsTheMethodsOfASerialObjectOneAtATime) {
  start(3);
  const RRef<Turnstile> turnstile = weft::remote<Turnstile>("w1");
  std::vector<Future<int>> passes;
  for (int i = 0; i < 100; ++i) passes.push_back(turnstile.rpc_async(&Turnstile::pass));
  int last = 0;
  for (const auto& pass : passes) last = std::max(last, pass.wait());
  EXPECT_EQ(last, 100);
  EXPECT_EQ(turnstile.rpc_sync(&Turnstile::collisions), 0);
  const absl::Status nested = error_of([&] { turnstile.rpc_sync(&Turnstile::again, turnstile); });
  EXPECT_EQ(nested.code(), absl::StatusCode::kFailedPrecondition) << nested;
}

TEST_P(RRefTest, ALongRowOfCallsToSerialObjectsCarriesNoMoreThanItsNewest) {
  start(2);
  weft::Promise<int64_t> end;
  Stop::end = &end;
  weft::remote<Stop>("w1").rpc_sync(&Stop::hand_on, 200);
  EXPECT_EQ(end.future().wait(), static_cast<int64_t>(weft::CallScope::kMostHeld));
}

TEST_P(RRefTest, CallsOfOneHandlerThatAreNotNestedWaitForEachOtherAtASerialObject) {
  start(3);
  const RRef<Turnstile> turnstile = weft::remote<Turnstile>("w1");
  for (int i = 1; i <= 20; ++i) {
    EXPECT_EQ(weft::rpc_sync("w2", pass_four_times_at_once, turnstile), 4 * i);
  }
  EXPECT_EQ(turnstile.rpc_sync(&Turnstile::collisions), 0);
}

TEST_P(RRefTest, WaitsWhereItIsUsedForAnObjectThatIsNotThere) {
  start(2);
  const RRef<int> value = weft::remote("w1", later);
  value.creation().wait();
  const Future<int> here = value.to_here_async();
  EXPECT_FALSE(here.done());
  later_promise().set(11);
  EXPECT_EQ(here.wait(), 11);
}

TEST_P(RRefTest, GivesAFutureThatCanBeContinuedOnItsOwnerToo) {
  start(2);
  for (const RRef<int>& value : {weft::make_rref(3), weft::remote("w1", add, 1, 2)}) {
    const Future<int> more =
        value.to_here_async().then([](const Future<int>& here) { return here.wait() + 1; });
    EXPECT_EQ(more.wait(), 4);
  }
}

TEST_P(RRefTest, OfVoidIsTheEndOfAFunction) {
  start(2);
  {
    const RRef<void> done = weft::remote("w1", keep, "void", weft::make_rref(1));
    done.to_here();
  }
  EXPECT_EQ(take_kept("void").id().creator.index, 0u);
}

TEST(RRefText, NamesTypeIdAndOwner) {
  EXPECT_EQ(RRef<int>().str(), "RRef(empty)");
  RuntimeWorld world(TransportKind::kInproc, 1);
  weft::CallScopeGuard scope(world.scope(0));
  const RRef<int> mine = weft::make_rref(1);
  std::ostringstream text;
  text << mine;
  EXPECT_EQ(text.str(), "RRef<i32>(rref(w0.1,1) of w0.1, owned here)");
}

}  // namespace rref_test
