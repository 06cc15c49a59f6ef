// One rank of the process tests of references.
//
// Rank 0 does what the first argument says, and the others serve it. The program prints the
// results. If a check fails, it prints the check's text and exits with 1.
//
// With "case N", rank 0 runs case N from 1 to 7 (docs/rref_protocol.md). With "kill user", worker1
// kills itself while it holds references. With "kill owner", worker1 kills itself while others hold
// references to its values.
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace {

using weft::Future;
using weft::RRef;

// The time within which a dead worker must be noticed.
constexpr auto kPromptly = std::chrono::seconds(3);

// Set when join() has returned. A peer that joined earlier may call before that.
std::promise<weft::Worker*> joined;
const std::shared_future<weft::Worker*> this_worker = joined.get_future().share();
std::map<std::string, RRef<int64_t>> kept;
weft::Mutex kept_mutex;

int64_t plus(int64_t a, int64_t b) { return a + b; }
WEFT_REGISTER_FUNCTION(plus);
int64_t read(RRef<int64_t> value) { return value.to_here(); }
WEFT_REGISTER_FUNCTION(read);
int64_t read_here(RRef<int64_t> value) { return value.local_value(); }
WEFT_REGISTER_FUNCTION(read_here);
bool is_confirmed(RRef<int64_t> value) { return value.confirmed_by_owner(); }
WEFT_REGISTER_FUNCTION(is_confirmed);
RRef<int64_t> make(int64_t value) { return weft::make_rref(value); }
WEFT_REGISTER_FUNCTION(make);
// Nobody completes it.
Future<int64_t> never() {
  static weft::Promise<int64_t> promise(nullptr);
  return promise.future();
}
WEFT_REGISTER_FUNCTION(never);

void keep(std::string name, RRef<int64_t> value) {
  weft::MutexLock lock(kept_mutex);
  kept[name] = std::move(value);
}
WEFT_REGISTER_FUNCTION(keep);
void drop(std::string name) {
  RRef<int64_t> value;  // destroyed outside the lock
  weft::MutexLock lock(kept_mutex);
  std::swap(value, kept[name]);
  kept.erase(name);
}
WEFT_REGISTER_FUNCTION(drop);
// Uses the kept reference, and returns its value or how the use failed.
std::string use(std::string name) {
  RRef<int64_t> value;
  {
    weft::MutexLock lock(kept_mutex);
    value = kept.at(name);
  }
  try {
    return absl::StrCat(value.to_here());
  } catch (const weft::RpcError& error) {
    return absl::StrCat(weft::is_rref_lost(error.status()) ? "lost at " : "failed at ",
                        error.worker(), ": ", error.what());
  }
}
WEFT_REGISTER_FUNCTION(use);

// Each worker hands its reference to the next one and keeps none. The last one reads the value.
Future<int64_t> pass_on(RRef<int64_t> value, std::vector<std::string> route);
WEFT_REGISTER_FUNCTION(pass_on);
Future<int64_t> pass_on(RRef<int64_t> value, std::vector<std::string> route) {
  if (route.empty()) return value.to_here_async();
  const std::string next = route.back();
  route.pop_back();
  return weft::rpc_async(next, pass_on, std::move(value), std::move(route));
}

// Counts of owned values, forks of them, references, and unconfirmed references.
std::vector<uint64_t> gauges() {
  const weft::DebugInfo info = this_worker.get()->debug_info();
  return {info.owned_values, info.forks, info.references, info.pending_references};
}
WEFT_REGISTER_FUNCTION(gauges);

void die() { kill(getpid(), SIGKILL); }
WEFT_REGISTER_FUNCTION(die);

void check(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error("not so: " + what);
}

// Waits until the condition holds; returns false if it does not in time.
bool comes_true(const std::function<bool()>& condition, std::chrono::nanoseconds time = kPromptly) {
  const weft::Promise<void> nothing;
  const auto end = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    (void)nothing.future().wait_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string gauges_of(const std::string& worker) {
  return absl::StrJoin(weft::rpc_sync(worker, gauges), " ");
}
void expect_gauges(const std::string& worker, const std::string& expected) {
  const bool so = comes_true([&] { return gauges_of(worker) == expected; });
  check(so, absl::StrCat(worker, " has the gauges ", expected, ", it has ", gauges_of(worker)));
}

// ---- The seven cases, seen from worker0 ----

// The creator.
void case_1() {
  const RRef<int64_t> sum = weft::remote("worker1", plus, 40, 2);
  sum.creation().wait();
  check(sum.confirmed_by_owner(), "a creation that was accepted is confirmed");
  check(sum.owner_name() == "worker1" && !sum.is_owner(), "worker1 is the owner");
  check(sum.to_here() == 42, "the value is 42");
  expect_gauges("worker1", "1 1 0 0");
  expect_gauges("worker0", "0 0 1 0");
}
// A user sends it to its owner.
void case_2() {
  const RRef<int64_t> sum = weft::remote("worker1", plus, 40, 2);
  check(weft::rpc_sync("worker1", read_here, sum) == 42, "the owner has the value itself");
  weft::rpc_sync("worker1", keep, "own", sum);
  expect_gauges("worker1", "1 1 0 0");  // no fork for the owner's own handle
  weft::rpc_sync("worker1", drop, "own");
}
// The owner sends it to a user, as an argument and as a result.
void case_3() {
  const RRef<int64_t> mine = weft::make_rref(int64_t{4});
  weft::rpc_sync("worker1", keep, "lent", mine);
  expect_gauges("worker0", "1 1 0 0");
  check(weft::rpc_sync("worker1", use, "lent") == "4", "a user reads what it was lent");
  const RRef<int64_t> theirs = weft::rpc_sync("worker2", make, 8);
  check(theirs.confirmed_by_owner(), "what comes from the owner is confirmed");
  check(theirs.to_here() == 8, "the value is 8");
  weft::rpc_sync("worker1", drop, "lent");
}
// A user sends it to another user, whose function starts when it is confirmed (B5).
void case_4() {
  const RRef<int64_t> sum = weft::remote("worker1", plus, 40, 2);
  for (int i = 0; i < 20; ++i) {
    check(weft::rpc_sync("worker2", is_confirmed, sum), "a function sees confirmed references");
  }
  weft::rpc_sync("worker2", keep, "shared", sum);
  expect_gauges("worker1", "1 2 0 0");
  expect_gauges("worker2", "0 0 1 0");
  weft::rpc_sync("worker2", drop, "shared");
}
// remote() to oneself.
void case_5() {
  const RRef<int64_t> sum = weft::remote("worker0", plus, 40, 2);
  check(sum.is_owner() && sum.local_value() == 42, "the value is here");
  expect_gauges("worker0", "1 0 0 0");
}
// The owner sends it to itself.
void case_6() {
  const RRef<int64_t> mine = weft::make_rref(int64_t{6});
  check(weft::rpc_sync("worker0", read_here, mine) == 6, "it comes back as the value itself");
  expect_gauges("worker0", "1 0 0 0");
}
// Inside values and replies, and along a chain whose members keep nothing.
void case_7() {
  {
    const RRef<RRef<int64_t>> outer = weft::remote("worker1", make, 3);
    const RRef<int64_t> inner = outer.to_here();
    check(weft::rpc_sync("worker2", read, inner) == 3, "a value may be a reference");
  }
  Future<int64_t> end;
  {
    const RRef<int64_t> value = weft::remote("worker2", plus, 40, 2);
    end = weft::rpc_async(
        "worker1", pass_on, value,
        {"worker1", "worker0", "worker2", "worker0", "worker2", "worker1", "worker2", "worker0"});
  }
  check(end.wait() == 42, "the value outlives eight hops");
}

// ---- Deaths ----

// Kills worker1; returns once this worker has noticed.
void kill_worker1() {
  try {
    weft::rpc_sync("worker1", die);
  } catch (const weft::RpcError& error) {
    check(error.worker() == "worker1", "the death is reported with the worker's name");
  }
}

// BN2.
void kill_user() {
  {
    const RRef<int64_t> mine = weft::make_rref(int64_t{5});
    const RRef<int64_t> theirs = weft::remote("worker2", plus, 1, 2);
    for (const char* worker : {"worker1", "worker2"}) {
      weft::rpc_sync(worker, keep, "mine", mine);
      weft::rpc_sync(worker, keep, "theirs", theirs);
    }
    expect_gauges("worker0", "1 2 1 0");
    expect_gauges("worker2", "1 2 1 0");
    kill_worker1();
    expect_gauges("worker0", "1 1 1 0");
    expect_gauges("worker2", "1 1 1 0");
    std::cout << "forks of worker1 are released" << std::endl;
  }
  expect_gauges("worker0", "1 1 0 0");  // worker2 still holds it
  check(weft::rpc_sync("worker2", use, "mine") == "5", "worker2 still reads it");
  weft::rpc_sync("worker2", drop, "mine");
  weft::rpc_sync("worker2", drop, "theirs");
}

// BN1.
void kill_owner() {
  const RRef<int64_t> value = weft::remote("worker1", plus, 1, 2);
  const RRef<int64_t> unfinished = weft::remote("worker1", never);
  const Future<int64_t> fetch = unfinished.to_here_async();
  weft::rpc_sync("worker2", keep, "value", value);
  check(value.to_here() == 3, "the value is 3");
  kill_worker1();
  const auto noticed = std::chrono::steady_clock::now();
  const absl::Status parked = fetch.result().status();
  check(absl::IsUnavailable(parked) && weft::worker_of(parked) == "worker1",
        absl::StrCat("a fetch that waits fails and names the owner: ", parked.ToString()));
  keep("value", value);
  keep("unfinished", unfinished);
  for (const char* name : {"value", "unfinished"}) {
    check(comes_true([&] { return use(name).starts_with("lost at worker1"); }), use(name));
    std::cout << "worker0: " << use(name) << std::endl;
  }
  const auto there = [] { return weft::rpc_sync("worker2", use, "value"); };
  check(comes_true([&] { return there().starts_with("lost at worker1"); }), there());
  std::cout << "worker2: " << there() << std::endl;
  check(std::chrono::steady_clock::now() - noticed < kPromptly, "they know within 3 s");
  try {
    weft::rpc_sync("worker2", read, value);
    check(false, "a lost reference cannot be sent");
  } catch (const weft::RpcError& error) {
    check(weft::is_rref_lost(error.status()), error.what());
  }
  try {
    weft::remote("worker1", plus, 1, 2);
    check(false, "a dead worker creates nothing");
  } catch (const weft::RpcError& error) {
    check(error.worker() == "worker1", error.what());
  }
  drop("value");
  drop("unfinished");
  weft::rpc_sync("worker2", drop, "value");
}

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", which = argc > 2 ? argv[2] : "";
  weft::WorkerOptions options = weft::WorkerOptions::from_env();
  options.shutdown_timeout = std::chrono::seconds(30);
  weft::Worker worker = weft::Worker::join(std::move(options));
  joined.set_value(&worker);
  if (worker.name() == "worker0") {
    const std::map<std::string, void (*)()> tasks = {
        {"case 1", case_1}, {"case 2", case_2},       {"case 3", case_3},
        {"case 4", case_4}, {"case 5", case_5},       {"case 6", case_6},
        {"case 7", case_7}, {"kill user", kill_user}, {"kill owner", kill_owner}};
    tasks.at(what + " " + which)();
    for (const weft::WorkerInfo& each : worker.workers()) {
      if (what == "kill" && each.name == "worker1") continue;
      expect_gauges(each.name, "0 0 0 0");
      std::cout << each.name << " holds nothing" << std::endl;
    }
  }
  worker.shutdown();
  std::cout << worker.name() << " ended" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return weft::run_main(argc, argv, run); }
