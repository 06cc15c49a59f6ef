// One rank of the process tests.
//
// It joins as its environment says, does what its first argument says, and prints the results:
//
//   `ring`          calls every other rank, nests calls both ways, shuts down.
//   `victim RANK`   that rank kills itself with SIGKILL as soon as one of the others tells it to.
//   `pending RANK`  the same, once a call of every other rank runs there, and never returns.
//   `stopped RANK`  that rank is stopped; it goes on once the others have declared it dead.
//   `restarts RANK` that rank kills itself; the others go on with the restarted worker.
//   `busy`          shuts down at once, while nested calls and continuations of every rank run.
//   `stuck RANK`    shuts down while a handler of that rank never returns.
//   `inline RANK`   the same with a handler that runs on the thread that reads messages.
//   `fail RANK`     that rank fails after it has joined, the others serve.
//   `threadless`    the system gives no more threads: calls that need one are refused.
//   `join`          joins and shuts down; WEFT_TEST_NAME and WEFT_TEST_WORLD replace name and size.
//   `absent`        rank 1 never joins.
//   `again N`       joins, calls every other rank and shuts down, N times with the same options.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace {

using namespace std::chrono_literals;

// Far below the timeouts that would otherwise end these waits, and above the delays that a loaded
// machine causes.
constexpr auto kAtOnce = 10s;

void say(const std::string& text) { std::cout << absl::StrCat(text, "\n") << std::flush; }

int64_t plus_one(int64_t value) { return value + 1; }
WEFT_REGISTER_FUNCTION(plus_one);

// Goes back and forth between two workers. Every call waits for the next one.
int64_t bounce(const std::string& here, const std::string& there, int64_t depth);
WEFT_REGISTER_FUNCTION(bounce);
int64_t bounce(const std::string& here, const std::string& there, int64_t depth) {
  return depth == 0 ? 0 : 1 + weft::rpc_sync(there, bounce, there, here, depth - 1);
}

void die() { kill(getpid(), SIGKILL); }
WEFT_REGISTER_FUNCTION(die);

std::atomic<int64_t> arrived{0};  // calls that never return

void block_for_ever() {
  arrived.notify_all();
  weft::Mutex mutex;
  weft::CondVar never;
  weft::MutexLock lock(mutex);
  while (true) never.wait(mutex);
}

void never_return(bool really) {
  if (!really) return;
  ++arrived;
  block_for_ever();
}
WEFT_REGISTER_FUNCTION(never_return);

void die_as_the_last_of(int64_t calls) {
  if (++arrived == calls) die();
  block_for_ever();
}
WEFT_REGISTER_FUNCTION(die_as_the_last_of);

std::atomic<int64_t> finished{0};
// Starts a nested call and then, in a continuation, another one. Nobody waits for them.
void leave_work_behind(const std::string& here, const std::string& next) {
  (void)weft::rpc_async(next, bounce, next, here, 8)
      .then([next](const weft::Future<int64_t>& depth) {
        if (weft::rpc_sync(next, plus_one, depth.wait()) == 9) ++finished;
      });
}
WEFT_REGISTER_FUNCTION(leave_work_behind);

int ring(weft::Worker& worker) {
  for (const weft::WorkerInfo& peer : worker.workers()) {
    if (weft::rpc_sync(peer.id, plus_one, 41) != 42) return 2;
    if (weft::rpc_sync(peer.id, bounce, peer.name, worker.name(), 16) != 16) return 3;
  }
  worker.shutdown();
  say(absl::StrCat(worker.name(), " called ", worker.workers().size()));
  return 0;
}

// In every second round, the worker of the last round still exists when the next one joins.
int again(const weft::WorkerOptions& options, int rounds) {
  std::optional<weft::Worker> last;
  for (int round = 1; round <= rounds; ++round) {
    weft::Worker worker = weft::Worker::join(options);
    if (worker.id().incarnation != static_cast<uint32_t>(round)) return 2;  // on another store
    for (const weft::WorkerInfo& peer : worker.workers()) {
      if (weft::rpc_sync(peer.id, plus_one, round) != round + 1) return 3;
    }
    worker.shutdown();
    last.reset();
    if (round % 2 == 0) last.emplace(std::move(worker));
  }
  say(absl::StrCat(options.effective_name(), " was there ", rounds, " times"));
  return 0;
}

// The call must fail with the victim's name.
int expect_lost(weft::Worker& worker, const std::string& victim, weft::Future<void> call) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = call.result().status();
  if (std::chrono::steady_clock::now() - start > kAtOnce) return 6;
  if (status.code() != absl::StatusCode::kUnavailable) return 7;
  if (weft::worker_of(status) != victim) return 8;
  say(absl::StrCat(worker.name(), " heard: ", status.ToString()));
  worker.shutdown();
  say(absl::StrCat(worker.name(), " ended"));
  return 0;
}

int lose(weft::Worker& worker, const std::string& victim, bool wait_for_all) {
  if (worker.name() == victim) {
    worker.serve();  // until it is killed
    return 4;
  }
  const auto others = static_cast<int64_t>(worker.workers().size()) - 1;
  return expect_lost(worker, victim,
                     wait_for_all ? weft::rpc_async(victim, die_as_the_last_of, others)
                                  : weft::rpc_async(victim, die));
}

int64_t process() { return getpid(); }
WEFT_REGISTER_FUNCTION(process);
void stop_as_the_last_of(int64_t calls) {
  if (++arrived == calls) kill(getpid(), SIGSTOP);
  block_for_ever();
}
WEFT_REGISTER_FUNCTION(stop_as_the_last_of);

// The others declare the victim dead while it is stopped. When it goes on, it learns that.
int stopped(weft::Worker& worker, const std::string& victim) {
  if (worker.name() == victim) {
    while (true) {
      const absl::Status status = weft::rpc_async("worker0", plus_one, 1).result().status();
      if (status.ok()) continue;
      say(absl::StrCat(worker.name(), " learned: ", status.ToString()));
      worker.shutdown({.graceful = false});  // its handlers never return
      return 0;
    }
  }
  const auto pid = static_cast<pid_t>(weft::rpc_sync(victim, process));
  const auto others = static_cast<int64_t>(worker.workers().size()) - 1;
  weft::Future<void> call = weft::rpc_async(victim, stop_as_the_last_of, others);
  const absl::Status status = call.result().status();
  if (status.code() != absl::StatusCode::kUnavailable || weft::worker_of(status) != victim)
    return 7;
  say(absl::StrCat(worker.name(), " heard: ", status.ToString()));
  if (worker.id().index == 0) kill(pid, SIGCONT);
  worker.shutdown();
  say(absl::StrCat(worker.name(), " ended"));
  return 0;
}

int restarts(weft::Worker& worker, const std::string& victim) {
  if (worker.name() == victim) {
    if (worker.id().incarnation == 1) worker.serve();  // until it is killed
    worker.shutdown();
    return 0;
  }
  const weft::WorkerId first = worker.wait_for(victim, kAtOnce).id;
  if (worker.id().index == 0) (void)weft::rpc_async(victim, die).result();
  weft::WorkerId now = first;
  const auto start = std::chrono::steady_clock::now();
  while (now == first && std::chrono::steady_clock::now() - start < kAtOnce) {
    now = worker.wait_for(victim, kAtOnce).id;
  }
  if (weft::rpc_sync(victim, plus_one, 41) != 42) return 2;
  say(absl::StrCat(worker.name(), " went on with ", now.to_string()));
  worker.shutdown();
  return 0;
}

int busy(weft::Worker& worker) {
  const std::vector<weft::WorkerInfo> all = worker.workers();
  const std::string next = all[(worker.id().index + 1) % all.size()].name;
  leave_work_behind(worker.name(), next);
  (void)weft::rpc_async(next, leave_work_behind, next, worker.name());
  worker.shutdown();
  say(absl::StrCat(worker.name(), " finished ", finished.load()));
  return 0;
}

// A function that has been short before runs on the thread that read its call.
int stuck(weft::Worker& worker, const std::string& where, bool runs_inline) {
  weft::Future<void> call;
  if (worker.id().index == 0) {
    for (int i = 0; runs_inline && i < 200; ++i) weft::rpc_sync(where, never_return, false);
    call = weft::rpc_async(where, never_return, true);
  }
  if (worker.name() == where) arrived.wait(0);
  const auto start = std::chrono::steady_clock::now();
  try {
    worker.shutdown(500ms);
  } catch (const weft::RpcError& error) {
    if (std::chrono::steady_clock::now() - start > kAtOnce) return 6;
    say(absl::StrCat(worker.name(), " gave up: ", error.what()));
    return 0;
  }
  return 5;
}

int fail(weft::Worker& worker, const std::string& failing) {
  if (worker.name() == failing) throw std::runtime_error("this rank \"fails\"");
  worker.shutdown();
  return 0;
}

// Returns false if this system still gives the process threads.
bool use_up_threads() {
  constexpr uid_t kNobody = 65534;
  if (getuid() == 0 && setuid(kNobody) != 0) return false;  // root has no such limit
  const rlimit none{1, 1};
  if (setrlimit(RLIMIT_NPROC, &none) != 0) return false;
  try {
    std::thread([] {}).join();
    return false;
  } catch (const std::system_error&) {
    return true;
  }
}

int threadless(weft::Worker& worker) {
  const std::string other = worker.id().index == 0 ? "worker1" : "worker0";
  if (weft::rpc_sync(other, plus_one, 41) != 42) return 2;
  if (!use_up_threads()) {
    say("no limit");
    return 0;
  }
  say(absl::StrCat(worker.name(), " has no threads left"));
  std::string refusal;
  for (int i = 0; i < 20; ++i) {
    try {
      (void)weft::rpc_sync(other, bounce, other, worker.name(), 200);
    } catch (const weft::RpcError& error) {
      if (error.code() == absl::StatusCode::kResourceExhausted) refusal = error.what();
    }
  }
  say(absl::StrCat(worker.name(), " heard: ", refusal));
  worker.shutdown();
  say(absl::StrCat(worker.name(), " ended"));
  return 0;
}

int run(int argc, char** argv) {
  const std::string task = argc > 1 ? argv[1] : "";
  const std::string chosen = argc > 2 ? absl::StrCat("worker", argv[2]) : "";
  weft::WorkerOptions options = weft::WorkerOptions::from_env();
  options.shutdown_timeout = 30s;
  if (const char* name = std::getenv("WEFT_TEST_NAME")) options.name = name;
  const char* size = std::getenv("WEFT_TEST_WORLD");
  if (size != nullptr && options.place.rank == 1) options.place.world_size = std::stoi(size);
  if (task == "absent" && options.place.rank == 1) return 0;
  if (task == "absent") options.join_timeout = absl::Milliseconds(500);
  const auto start = std::chrono::steady_clock::now();
  const auto in_time = [&] { return std::chrono::steady_clock::now() - start < kAtOnce; };
  try {
    if (task == "again") return again(options, argc > 2 ? std::stoi(argv[2]) : 0);
    weft::Worker worker = weft::Worker::join(options);
    if (task == "ring") return ring(worker);
    if (task == "victim") return lose(worker, chosen, false);
    if (task == "pending") return lose(worker, chosen, true);
    if (task == "stopped") return stopped(worker, chosen);
    if (task == "restarts") return restarts(worker, chosen);
    if (task == "busy") return busy(worker);
    if (task == "stuck") return stuck(worker, chosen, false);
    if (task == "inline") return stuck(worker, chosen, true);
    if (task == "threadless") return threadless(worker);
    if (task == "fail") return fail(worker, chosen);
    worker.shutdown();
    return 0;
  } catch (const weft::RpcError&) {
    if (!in_time()) say("too late");
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) { return weft::run_main(argc, argv, run); }
