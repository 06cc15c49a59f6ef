// RRef<T> over whole workers: what a user sees, and that everything is let go at the end.
#include "weft/rref/rref.h"

#include <atomic>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/test_world.h"

namespace rref_test {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using weft::Future;
using weft::Ran;
using weft::RpcError;
using weft::RRef;
using weft::testing::error_of;
using weft::testing::eventually;
using weft::testing::TestWorld;
using weft::testing::TransportKind;

// ---- What the workers know ----

int add(int a, int b) { return a + b; }
WEFT_REGISTER_FUNCTION(add);

int failing(int) { throw std::runtime_error("it went wrong"); }
WEFT_REGISTER_FUNCTION(failing);

// Completed by the test.
weft::Promise<int>& later_promise() {
  static weft::Promise<int> promise(nullptr);
  return promise;
}
Future<int> later() { return later_promise().future(); }
WEFT_REGISTER_FUNCTION(later);

weft::Promise<RRef<int>>& later_rref_promise() {
  static weft::Promise<RRef<int>> promise(nullptr);
  return promise;
}
Future<RRef<int>> later_rref() { return later_rref_promise().future(); }
WEFT_REGISTER_FUNCTION(later_rref);

int read(RRef<int> value) { return value.to_here(); }
WEFT_REGISTER_FUNCTION(read);
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

// Each worker hands its reference to the next and keeps none; the last one reads.
Future<int> pass_on(RRef<int> value, std::vector<std::string> route);
WEFT_REGISTER_FUNCTION(pass_on);
Future<int> pass_on(RRef<int> value, std::vector<std::string> route) {
  if (route.empty()) return value.to_here_async();
  const std::string next = route.back();
  route.pop_back();
  return weft::rpc_async(next, pass_on, std::move(value), std::move(route));
}

std::map<std::string, RRef<int>> kept;
weft::Mutex kept_mutex;
void keep(std::string name, RRef<int> value) {
  weft::MutexLock lock(kept_mutex);
  kept[name] = std::move(value);
}
WEFT_REGISTER_FUNCTION(keep);
RRef<int> take_kept(const std::string& name) {
  weft::MutexLock lock(kept_mutex);
  RRef<int> value = std::move(kept[name]);
  kept.erase(name);
  return value;
}

// Counts its objects, and where they died.
struct Tracked {
  explicit Tracked(int v) : value(v) { ++alive; }
  Tracked(const Tracked&) = delete;
  ~Tracked() {
    --alive;
    if (weft::Executor::current() == nullptr) ++died_elsewhere;
  }
  int get() const { return value; }
  void set(int v) { value = v; }
  std::unique_ptr<Tracked> clone() const { return std::make_unique<Tracked>(value); }
  int value;
  static inline std::atomic<int> alive{0};
  static inline std::atomic<int> died_elsewhere{0};
};
int twice(const Tracked& tracked) { return 2 * tracked.value; }
void increase(Tracked& tracked, int by) { tracked.value += by; }
WEFT_REGISTER_CLASS(Tracked, weft::constructor<int>(), &Tracked::get, &Tracked::set,
                    &Tracked::clone, twice, increase);

std::unique_ptr<Tracked> make_tracked(int value) { return std::make_unique<Tracked>(value); }
WEFT_REGISTER_FUNCTION(make_tracked);

// Its methods would lose counts, and say so, if two ran at once.
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

// Hands a token on to a new one, without waiting for it.
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
// Branches of one handler, two of them a level deeper. Returns the last number.
int pass_four_times_at_once(RRef<Turnstile> turnstile) {
  const Future<int> passes[] = {
      turnstile.rpc_async(&Turnstile::pass), weft::rpc_async("w0", pass_for, turnstile),
      turnstile.rpc_async(&Turnstile::pass), weft::rpc_async("w1", pass_for, turnstile)};
  int last = 0;
  for (const Future<int>& pass : passes) last = std::max(last, pass.wait());
  return last;
}
WEFT_REGISTER_FUNCTION(pass_four_times_at_once);

// ---- Fixture ----

class RRefTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  // Worker 0 is this thread's.
  TestWorld& start(size_t workers) {
    later_promise() = weft::Promise<int>(nullptr);
    later_rref_promise() = weft::Promise<RRef<int>>(nullptr);
    Tracked::alive = 0;
    Tracked::died_elsewhere = 0;
    world_ = std::make_unique<TestWorld>(GetParam(), workers);
    scope_ = std::make_unique<weft::CallScopeGuard>(world_->scope(0));
    return *world_;
  }
  void stop() {
    scope_.reset();
    if (world_ != nullptr) world_->end();
    later_promise() = weft::Promise<int>(nullptr);
    later_rref_promise() = weft::Promise<RRef<int>>(nullptr);
    world_.reset();
  }
  void TearDown() override { stop(); }

 private:
  std::unique_ptr<TestWorld> world_;
  std::unique_ptr<weft::CallScopeGuard> scope_;
};
INSTANTIATE_TEST_SUITE_P(Transports, RRefTest,
                         ::testing::Values(TransportKind::kInproc, TransportKind::kGrpc),
                         [](const auto& info) { return weft::testing::to_string(info.param); });

// ---- The seven cases ----

// Case 1: the creator.
TEST_P(RRefTest, KeepsTheResultOfARemoteCallUntilItsLastHandleDies) {
  TestWorld& world = start(2);
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
  TestWorld& world = start(2);
  const RRef<int> mine = weft::make_rref(4);
  EXPECT_TRUE(mine.is_owner());
  EXPECT_EQ(weft::rpc_sync("w1", read, mine), 4);
  const RRef<int> theirs = weft::rpc_sync("w1", make, 8);
  EXPECT_EQ(theirs.owner(), world.id(1));
  EXPECT_TRUE(theirs.confirmed_by_owner()) << "what comes from the owner is confirmed";
  EXPECT_EQ(theirs.to_here(), 8);
}

// Case 4: a user sends it to another user; B5: whose function starts when it is confirmed.
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
  TestWorld& world = start(1);
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
  EXPECT_EQ(world.gauges(0).owners, 0u);
}

// Case 6: the owner sends it to itself.
TEST_P(RRefTest, MayBeSentFromItsOwnerToItself) {
  start(1);
  EXPECT_EQ(weft::rpc_sync("w0", read_locally, weft::make_rref(6)), 6);
  EXPECT_EQ(weft::rpc_sync("w0", give_back, weft::make_rref(7)).to_here(), 7);
}

// Case 7: everything at once, over several workers, with nothing kept by who passes it on.
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
    // The only handle dies as soon as the call is made.
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
  TestWorld& world = start(2);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(
        weft::remote<Tracked>("w1", i).remote(&Tracked::clone).remote(&Tracked::get).to_here(), i);
  }
  const Future<int> here = weft::remote("w1", later).to_here_async();
  // What the lost handle would have sent is through once these are answered.
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

TEST_P(RRefTest, ALongChainOfCallsToSerialObjectsCarriesNoMoreThanItsNewest) {
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

// The use may reach the owner before, while or after it refuses to make the value.
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

// Nothing is asked of a lost owner any more, but what made the value has run there.
TEST_P(RRefTest, MayHaveBeenMadeIfItsOwnerIsLost) {
  TestWorld& world = start(2);
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

// BX2, BN6: whatever won, both sides agree.
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
  TestWorld& world = start(2);
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
  TestWorld& world = start(2);
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
  TestWorld& world = start(2);
  const RRef<int> mine = weft::make_rref(1);
  weft::CallScopeGuard scope(world.scope(1));
  const absl::Status status = error_of([&] { weft::rpc_sync("w0", read, mine); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  // A good reference beside the bad one is taken back: the call never left.
  const weft::Function<int(RRef<int>, RRef<int>)> two("no::such");
  EXPECT_EQ(error_of([&] { weft::rpc_sync("w0", two, weft::make_rref(2), mine); }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { weft::rpc_sync("w0", read, RRef<int>()); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_P(RRefTest, IsOnlyUsedAsTheTypeThatItIs) {
  TestWorld& world = start(2);
  const RRef<int> value = weft::remote("w1", add, 1, 2);
  ASSERT_EQ(value.to_here(), 3);
  weft::RpcRuntime::CallRequest request;
  request.to = world.id(1);
  request.function = {weft::hash64("weft.wait"), 0, "weft.wait"};
  const weft::FunctionEntry* entry = world.node(1).runtime->registry().find(request.function.id);
  ASSERT_NE(entry, nullptr);
  request.function = entry->key();
  const weft::TypeInfo& wrong = weft::type_info_of<double>();
  request.target =
      weft::internal::encode(weft::internal::Target{value.id(), {wrong.hash, wrong.name}});
  weft::Promise<int> promise;
  const Future<int> answered = promise.future();
  world.node(0).runtime->call(std::move(request), [&promise](absl::StatusOr<weft::Reader> reply) {
    promise.set(reply.status().ok() ? absl::StatusOr<int>(0) : reply.status());
  });
  EXPECT_EQ(answered.result().status().code(), absl::StatusCode::kInvalidArgument)
      << answered.result().status();
}

// ---- Deaths ----

// BN1.
TEST_P(RRefTest, IsLostWhenItsOwnerDies) {
  TestWorld& world = start(3);
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
  // Nothing is sent, and yet whoever asked to be told is told.
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
  TestWorld& world = start(3);
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

// ---- The end of a worker ----

TEST_P(RRefTest, ReportsWhoStillHoldsWhatAtShutdown) {
  TestWorld& world = start(2);
  const RRef<int> mine = weft::make_rref(5);
  weft::rpc_sync("w1", keep, "leaked", mine);
  world.node(0).references->begin_shutdown();
  EXPECT_FALSE(world.node(0).references->drained());
  const auto leaks = world.node(0).references->leaks();
  ASSERT_EQ(leaks.size(), 1u);
  EXPECT_EQ(leaks[0].rref, mine.id());
  EXPECT_EQ(leaks[0].worker, world.id(1));
  EXPECT_THAT(leaks[0].to_string(), HasSubstr("i32"));
  weft::Promise<void> drained;
  world.node(0).references->when_drained([&] { drained.set_value(); });
  EXPECT_EQ(take_kept("leaked").to_here(), 5) << "what others hold stays readable";
  drained.future().wait();
}

TEST_P(RRefTest, RefersToNothingAfterItsWorkersEnd) {
  TestWorld& world = start(2);
  const RRef<int> theirs = weft::remote("w1", add, 1, 2);
  const RRef<int> mine = weft::make_rref(1);
  const RRef<int> pending = weft::remote("w1", later);
  ASSERT_EQ(theirs.to_here(), 3);
  later_promise().set(1);
  for (size_t i = 0; i < 2; ++i) world.node(i).references->begin_shutdown();
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
  TestWorld& world = start(2);
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

TEST(RRefText, NamesTypeIdAndOwner) {
  EXPECT_EQ(RRef<int>().str(), "RRef(empty)");
  TestWorld world(TransportKind::kInproc, 1);
  weft::CallScopeGuard scope(world.scope(0));
  const RRef<int> mine = weft::make_rref(1);
  std::ostringstream text;
  text << mine;
  EXPECT_EQ(text.str(), "RRef<i32>(rref(w0.1,1) of w0.1, owned here)");
}

}  // namespace rref_test
