// One incarnation of a worker in a chaos run. It joins a dynamic group under its name, works with
// all live members, and writes everything into its ledger. The controller (arena.h) starts it with
// arguments of the form name=value, and controls it by signals:
//
//   SIGTERM   It begins nothing more and waits for open calls.
//   SIGUSR1   It also drops everything and waits until nothing refers to it.
//   SIGUSR2   It also leaves in good order and exits.
//
// It exits by itself if it is alone: declared dead, or cut off from all others. It also exits if it
// cannot join, or if a wait lasts more than twice its bound. The exit codes are in ledger.h.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/same_host/fallback_transport.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/security/worker_identity.h"
#include "weft/tests/chaos/network/door_transport.h"
#include "weft/tests/chaos/oracle/ledger.h"
#include "weft/tests/chaos/processes/watchdog.h"
#include "weft/tests/chaos/worker/functions.h"
#include "weft/tests/chaos/worker/tracker.h"
#include "weft/tests/chaos/worker/workload.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace weft::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLook{50};     // between two looks at signals and at the group
constexpr milliseconds kAlone{1000};  // after which a worker without peers leaves
constexpr milliseconds kGaugeEvery{1000};
constexpr seconds kJoinTimeout{30};
constexpr seconds kShutdownTimeout{15};
constexpr seconds kRestBound{20};
// If a connection cannot write, as under isolation, a thread of gRPC watches it for 10 s at a time.
// The exit may have to wait for that twice: until its streams close, and until its threads stop.
constexpr seconds kThreadsEnd{25};

class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string text = argv[i];
      const size_t equals = text.find('=');
      if (equals != text.npos) values_[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  const std::string& text(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw std::invalid_argument("missing argument " + name + "=");
    return found->second;
  }
  uint64_t number(const std::string& name) const {
    uint64_t value = 0;
    if (absl::SimpleAtoi(text(name), &value)) return value;
    throw std::invalid_argument(name + "=" + text(name) + " is no number");
  }
  bool has(const std::string& name) const { return values_.contains(name); }

 private:
  std::map<std::string, std::string> values_;
};

WorkerOptions worker_options(const Arguments& arguments, const Tracker& tracker) {
  WorkerOptions options;
  options.dynamic = true;
  options.name = arguments.text("name");
  const std::string& store = arguments.text("store");
  const size_t colon = store.rfind(':');
  options.place.master_addr = store.substr(0, colon);
  options.place.master_port = static_cast<uint16_t>(std::stoul(store.substr(colon + 1)));
  options.place.run_id = arguments.text("run");
  options.place.rank = 1;  // not the one that hosts the store
  options.place.world_size = 2;
  // A later process of this name replaces an earlier one whose death no member has noticed yet.
  options.place.restart_count = static_cast<uint32_t>(arguments.number("spawn"));
  options.on_member_change = [&tracker](const WorkerInfo& worker, MemberChange change,
                                        const absl::Status& why) {
    if (change == MemberChange::kJoined) return;
    tracker.note(RecordKind::kDeath, worker.id.bits(), change == MemberChange::kDied ? 1 : 0,
                 static_cast<uint16_t>(why.code()));
  };
  options.listen_host = arguments.text("host");
  options.default_timeout = seconds(10);
  options.join_timeout = kJoinTimeout;
  options.shutdown_timeout = kShutdownTimeout;
  const absl::StatusOr<SecurityMode> security = find_security_mode();
  if (!security.ok()) throw std::runtime_error(std::string(security.status().message()));
  options.security = *security;
  if (arguments.has("door")) {
    GrpcTransportOptions grpc;
    if (options.security != SecurityMode::kNone) {
      auto identity = find_worker_identity(options.place.run_id, options.effective_role(),
                                           {options.name, options.place.rank});
      if (!identity.ok()) throw std::runtime_error(std::string(identity.status().message()));
      grpc.tls = *std::move(identity);
    }
    options.transport = [door = arguments.text("door"), port_file = arguments.text("port_file"),
                         grpc](Clock& clock) {
      // The other workers' addresses have a part for shared memory.
      return std::make_unique<FallbackTransport>(
          clock, nullptr, std::make_unique<DoorTransport>(clock, door, port_file, grpc));
    };
  }
  return options;
}

uint64_t entries(const char* folder) {
  std::error_code error;
  uint64_t count = 0;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return count;
}
uint64_t threads_of_this_process() { return entries("/proc/self/task"); }
// Does not count the descriptor that lists them.
uint64_t descriptors_of_this_process() { return entries("/proc/self/fd") - 1; }

// Starts what gRPC and LibTorch make once per process, so that it is in the first count.
void warm_up() {
  SystemClock clock;
  GrpcTransport transport(clock);
  (void)transport.listen();
  transport.stop();
}

// Measures how long this worker has had no peer, after it had one.
class Solitude {
 public:
  Nanoseconds look(const Worker& worker) {
    const auto now = std::chrono::steady_clock::now();
    const bool alone = live_members(worker).size() <= 1;
    had_peers_ |= !alone;
    if (!alone || !had_peers_) since_ = now;
    return now - since_;
  }

 private:
  bool had_peers_ = false;
  TimePoint since_ = std::chrono::steady_clock::now();
};

// Records what the worker holds. Returns true if that is nothing.
bool enter_gauges(const Worker& worker, Tracker& tracker) {
  const DebugInfo info = worker.debug_info();
  const std::pair<Gauge, uint64_t> gauges[] = {{Gauge::kReferences, info.references},
                                               {Gauge::kPendingReferences, info.pending_references},
                                               {Gauge::kOwnedValues, info.owned_values},
                                               {Gauge::kForks, info.forks},
                                               {Gauge::kContexts, info.contexts},
                                               {Gauge::kPasses, info.passes},
                                               {Gauge::kRecordedSends, info.recorded_sends},
                                               {Gauge::kPendingCalls, info.agent.pending_calls},
                                               {Gauge::kRunningCalls, info.agent.running_calls},
                                               {Gauge::kCells, Cell::alive()}};
  uint64_t total = 0;
  for (const auto& [gauge, value] : gauges) {
    tracker.gauge(gauge, value);
    total += value;
  }
  return total == 0;
}

class Incarnation {
 public:
  Incarnation(const Arguments& arguments, LedgerWriter& ledger, Watchdog& watchdog)
      : arguments_(arguments),
        spawn_(static_cast<uint32_t>(arguments.number("spawn"))),
        tracker_(ledger, watchdog, spawn_) {
    set_tracker(&tracker_);
  }

  int run() {
    const uint64_t threads = threads_of_this_process();
    tracker_.gauge(Gauge::kThreadsBefore, threads);
    tracker_.gauge(Gauge::kDescriptorsBefore, descriptors_of_this_process());
    if (!join()) return kExitNotJoined;
    const int code = work();
    workload_.reset();
    {
      const Watchdog::Scope bound(tracker_.watchdog(), "destroying the worker", seconds(10));
      worker_.reset();
    }
    enter_what_is_left(threads);
    return code;
  }

 private:
  bool join() {
    const Watchdog::Scope bound(tracker_.watchdog(), "joining", 2 * kJoinTimeout);
    try {
      worker_.emplace(Worker::join(worker_options(arguments_, tracker_)));
    } catch (const RpcError& refused) {
      std::cerr << "chaos_worker: cannot join: " << refused.what() << std::endl;
      return false;
    }
    tracker_.note(RecordKind::kJoined, worker_->id().bits(), spawn_, 0);
    return true;
  }

  // Returns the exit code.
  int work() {
    workload_.emplace(*worker_, tracker_, arguments_.number("seed") * 1'000'003 + spawn_,
                      arguments_.text("checkpoints"));
    Solitude solitude;
    workload_->start();
    auto next_gauges = std::chrono::steady_clock::now();
    while (true) {
      switch (next_signal()) {
        case SIGTERM:
          cease();
          break;
        case SIGUSR1:
          come_to_rest();
          break;
        case SIGUSR2:
          return leave();
        default:
          break;
      }
      if (!ceased_ && solitude.look(*worker_) > kAlone) {
        std::cerr << "chaos_worker: is alone, leaves the group" << std::endl;
        cease();
        return kExitFenced;
      }
      if (!ceased_ && std::chrono::steady_clock::now() >= next_gauges) {
        (void)enter_gauges(*worker_, tracker_);
        next_gauges += kGaugeEvery;
      }
    }
  }

  // Returns 0 if no signal came within kLook.
  static int next_signal() {
    sigset_t awaited;
    sigemptyset(&awaited);
    for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&awaited, signal);
    const timespec wait{0, std::chrono::nanoseconds(kLook).count()};
    return std::max(sigtimedwait(&awaited, nullptr, &wait), 0);
  }

  void cease() {
    if (ceased_) return;
    ceased_ = true;
    workload_->cease();
    tracker_.note(RecordKind::kCeased, 0, 0, 0);
  }

  void come_to_rest() {
    cease();
    const Watchdog::Scope bound(tracker_.watchdog(), "coming to rest", 2 * kRestBound);
    {
      const WorkerScope scope(*worker_);
      if (const std::optional<uint64_t> steps = counted_steps()) {
        tracker_.gauge(Gauge::kCounter, *steps);
      }
    }
    let_go();
    const auto end = std::chrono::steady_clock::now() + kRestBound;
    bool quiet = enter_gauges(*worker_, tracker_);
    while (!quiet && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kLook);  // no event says that all others have come to rest
      clear_shelf();                       // references that came late
      quiet = enter_gauges(*worker_, tracker_);
    }
    tracker_.note(RecordKind::kQuiet, 0, quiet ? 1 : 0, 0);
    rested_ = true;
  }

  void let_go() {
    clear_shelf();
    drop_counter();
  }

  int leave() {
    cease();
    let_go();
    // While the run goes on, the disk may be full.
    if (rested_) tracker_.gauge(Gauge::kFilesLeft, workload_->checkpoints().files_left());
    absl::Status ended;
    {
      const Watchdog::Scope bound(tracker_.watchdog(), "leaving", 2 * kShutdownTimeout);
      try {
        worker_->shutdown(kShutdownTimeout);
      } catch (const RpcError& error) {
        ended = error.status();
        std::cerr << "chaos_worker: " << error.what() << std::endl;
      }
    }
    tracker_.note(RecordKind::kLeft, 0, 0, static_cast<uint16_t>(ended.code()));
    return ended.ok() ? 0 : kExitNotQuiet;
  }

  // Threads that have been told to stop may take a moment.
  void enter_what_is_left(uint64_t threads) {
    const auto end = std::chrono::steady_clock::now() + kThreadsEnd;
    while (threads_of_this_process() > threads && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(2));  // /proc sends no event for it
    }
    tracker_.gauge(Gauge::kThreadsAfter, threads_of_this_process());
    tracker_.gauge(Gauge::kDescriptorsAfter, descriptors_of_this_process());
  }

  const Arguments& arguments_;
  const uint32_t spawn_;
  Tracker tracker_;
  std::optional<Worker> worker_;
  std::optional<Workload> workload_;
  bool ceased_ = false;
  bool rested_ = false;
};

int run(int argc, char** argv) {
  const Arguments arguments(argc, argv);
  // Block the signals before there is any other thread. All threads inherit this, and this one
  // fetches the signals.
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&awaited, signal);
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  warm_up();
  // Never destroyed, because handlers that still run may use them.
  auto& ledger = *new LedgerWriter(arguments.text("ledger"));
  auto& watchdog = *new Watchdog();
  return (new Incarnation(arguments, ledger, watchdog))->run();
}

}  // namespace
}  // namespace weft::chaos

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::chaos::run); }
