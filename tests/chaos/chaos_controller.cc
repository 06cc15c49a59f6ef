// Runs a group of workers under faults drawn from a seed, and reports whether all promises were
// kept.
//
//   tools/chaos.sh --minutes 10 --seed 7
//
// It prints the injected and effective faults by kind and the number of calls. It prints how many
// calls hung, ran twice or were reported wrongly (0 each), what was left behind (0), and how soon
// deaths were noticed. The last line is "chaos: passed" (exit code 0) or "chaos: failed" (1). Exit
// code 2 means wrong options, or a machine on which it cannot run. docs/testing/chaos.md explains
// each figure.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "weft/base/faults/fail_point.h"
#include "weft/security/security_mode.h"
#include "weft/store/rendezvous.h"
#include "weft/tests/chaos/arena.h"
#include "weft/tests/chaos/network/network.h"
#include "weft/tests/chaos/oracle/oracle.h"
#include "weft/tests/chaos/plan.h"
#include "weft/tests/chaos/processes/process_threads.h"
#include "weft/tests/chaos/summary.h"

namespace weft::chaos {
namespace {

std::atomic<bool> interrupted{false};

struct Options {
  std::string program;
  uint64_t seed = 1;
  double seconds = 60;
  size_t workers = 5;
  std::string keep;  // folder for the run's files if it fails; empty: none
  bool loopback = false;
  bool flips = true;
  std::vector<std::string> only;  // kinds of faults, by name; none: all
  double apart = 0;               // seconds between a fault's end and the next; 0: overlap
  unsigned busy = 0;              // threads per processor that only compute
};

// Bits are flipped in a run of their own, which takes this fraction of the time. The data of large
// tensors has no checksum, so only crashes and hangs count as failures then.
constexpr double kFlipShare = 0.1;

std::vector<FaultKind> kinds_for(const Network& network) {
  std::vector<FaultKind> kinds = {FaultKind::kKill,        FaultKind::kStop,
                                  FaultKind::kProxyDelay,  FaultKind::kProxyTruncate,
                                  FaultKind::kProxyHang,   FaultKind::kFileLimit,
                                  FaultKind::kMemoryLimit, FaultKind::kLeave};
  if (network.isolated()) {
    kinds.insert(kinds.end(),
                 {FaultKind::kPartition, FaultKind::kOneWay, FaultKind::kIsolate,
                  FaultKind::kStoreCut, FaultKind::kLoss, FaultKind::kReset, FaultKind::kFullDisk});
  }
  if (can_limit_threads().ok()) kinds.push_back(FaultKind::kThreadLimit);
  return kinds;
}

// Throws std::invalid_argument for a kind that this machine does not allow.
std::vector<FaultKind> chosen_kinds(const Options& options, const Network& network) {
  const std::vector<FaultKind> possible = kinds_for(network);
  if (options.only.empty()) return possible;
  std::vector<FaultKind> kinds;
  for (const std::string& name : options.only) {
    const FaultKind kind = *named_fault(name);  // CLI11 has let no other name through
    if (std::find(possible.begin(), possible.end(), kind) == possible.end()) {
      throw std::invalid_argument(
          kind == FaultKind::kThreadLimit
              ? absl::StrCat("--only ", name, ": ", std::string(can_limit_threads().message()))
              : absl::StrCat("--only ", name, " needs namespaces: ", network.reason()));
    }
    kinds.push_back(kind);
  }
  return kinds;
}

// Every other slot is reached through a proxy, except the last.
std::vector<size_t> proxied_slots(size_t workers) {
  std::vector<size_t> slots;
  for (size_t slot = 0; slot + 1 < workers; slot += 2) slots.push_back(slot);
  return slots;
}

uint64_t children_of_this_process() {
  uint64_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    if (!std::getline(file, text)) continue;
    // "pid (name) state parent ...": a name may hold anything.
    const std::vector<std::string> fields =
        absl::StrSplit(text.substr(text.rfind(')') + 1), ' ', absl::SkipEmpty());
    if (fields.size() > 1 && fields[1] == absl::StrCat(::getpid()) && fields[0] != "Z") ++count;
  }
  return count;
}

// Counts files in the run's folder that are neither a ledger, a log, a port file, nor on the disk.
uint64_t unknown_files(const Network& network) {
  uint64_t count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(network.folder(), error)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "ledger.") || absl::StartsWith(name, "log.")) continue;
    if (absl::StartsWith(name, "port.") || entry.path() == network.disk()) continue;
    std::cerr << "chaos: nobody knows of the file " << entry.path() << "\n";
    ++count;
  }
  return count;
}

// Threads that keep the processors busy during the lifetime of this object.
class Load {
 public:
  explicit Load(unsigned per_processor) {
    for (unsigned i = per_processor * std::thread::hardware_concurrency(); i > 0; --i) {
      threads_.emplace_back([this] {
        while (!over_.load(std::memory_order_relaxed)) {
        }
      });
    }
  }
  ~Load() {
    over_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

class Controller {
 public:
  Controller(Options options, Network& network) : options_(std::move(options)), network_(network) {}

  bool run() {
    const absl::StatusOr<SecurityMode> security = find_security_mode();
    if (!security.ok()) throw std::runtime_error(security.status().ToString());
    absl::StatusOr<HostedStore> store =
        host_rendezvous_store({.host = network_.store_host(), .port = 0, .security = *security});
    if (!store.ok()) throw std::runtime_error(store.status().ToString());
    store_ = absl::StrCat(network_.store_host(), ":", store->port);
    const bool all = options_.only.empty();
    const double flipping = all && options_.flips ? options_.seconds * kFlipShare : 0;
    bool good =
        run_one("exact", options_.seconds - flipping, chosen_kinds(options_, network_), true);
    if (flipping > 0 && !interrupted.load()) {
      good &= run_one("flips", flipping, {FaultKind::kProxyFlip}, false);
    }
    if (!good && !options_.keep.empty()) keep_files();
    return good;
  }

 private:
  bool run_one(const std::string& name, double seconds, std::vector<FaultKind> kinds, bool exact) {
    const std::chrono::milliseconds length(static_cast<int64_t>(seconds * 1000));
    ArenaOptions options;
    options.seed = options_.seed;
    options.workers = options_.workers;
    options.program = options_.program;
    options.store = store_;
    options.run_id = absl::StrCat("chaos-", options_.seed, "-", name);
    options.proxied = proxied_slots(options_.workers);
    options.fail_points = exact && options_.only.empty() && base_internal::kHasFailPoints;
    options.first_spawn = next_spawn_;
    options.exact = exact;
    PlanOptions plan;
    plan.seed = options_.seed;
    plan.length = length;
    plan.workers = options_.workers;
    plan.kinds = std::move(kinds);
    plan.proxied = options.proxied;
    if (options_.apart > 0) {
      plan.apart = std::chrono::milliseconds(static_cast<int64_t>(options_.apart * 1000));
    }
    RunReport report;
    report.exact = exact;
    report.apart = plan.apart.has_value();
    {
      Arena arena(network_, options);
      arena.start();
      if (arena.failures().empty()) arena.run(make_plan(plan), length, interrupted);
      arena.finish();
      report.findings = judge(arena.incarnations(), arena.injections(), {.exact = exact});
      report.failures = arena.failures();
      report.limit_deaths = arena.limit_deaths();
      next_spawn_ = arena.next_spawn();
    }
    report.processes_left = children_of_this_process();
    report.files_left = unknown_files(network_);
    std::cout << (exact ? "every promise:\n" : "flipped bits, only crashes and hangs count:\n")
              << describe(report) << std::flush;
    return report.passed();
  }

  void keep_files() const {
    std::error_code error;
    std::filesystem::create_directories(options_.keep, error);
    const auto how = std::filesystem::copy_options::overwrite_existing;
    for (const auto& entry : std::filesystem::directory_iterator(network_.folder(), error)) {
      if (!entry.is_regular_file()) continue;
      std::filesystem::copy_file(
          entry.path(), std::filesystem::path(options_.keep) / entry.path().filename(), how, error);
    }
    std::cout << "  ledgers and logs are in " << options_.keep << "\n";
  }

  const Options options_;
  Network& network_;
  std::string store_;
  uint32_t next_spawn_ = 1;
};

int run(const Options& options) {
  // Processes that a worker leaves behind become children of this process, which counts them.
  (void)::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::unique_ptr<Network> network = Network::enter(options.workers, !options.loopback);
  std::cout << "chaos: seed " << options.seed << ", " << options.seconds << " s, "
            << options.workers << " workers, "
            << (network->isolated()
                    ? "a network namespace each"
                    : absl::StrCat("all on loopback, without partitions and full disks: ",
                                   network->reason()))
            << (base_internal::kHasFailPoints ? ""
                                              : ", without fail points: they are not compiled in")
            << std::endl;
  const Load load(options.busy);
  const bool good = Controller(options, *network).run();
  std::cout << (interrupted.load() ? "chaos: it was interrupted\n" : "")
            << (good ? "chaos: passed" : "chaos: failed") << std::endl;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace weft::chaos

int main(int argc, char** argv) {
  weft::chaos::Options options;
  options.program = std::filesystem::path(argv[0]).parent_path() / "chaos_worker";
  double minutes = 0;
  CLI::App app("Runs a group of workers under faults and checks what Weft promises.",
               "chaos_controller");
  app.add_option("--seed", options.seed, "of the faults and the workload")->capture_default_str();
  app.add_option("--minutes", minutes, "how long faults go on")->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "the same in seconds")
      ->capture_default_str()
      ->check(CLI::Range(5.0, 604800.0));
  app.add_option("--workers", options.workers, "in the group")
      ->capture_default_str()
      ->check(CLI::Range(size_t{3}, size_t{32}));
  app.add_option("--worker", options.program,
                 "path of chaos_worker (default: beside this program)");
  app.add_option("--keep", options.keep, "folder for ledgers and logs of a run that failed");
  app.add_flag("--loopback", options.loopback, "use no namespaces, as where one may not make them");
  app.add_flag("!--no-flips", options.flips, "flip no bits");
  app.add_option("--only", options.only, "these kinds of faults alone, joined by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(weft::chaos::fault_names()));
  app.add_option("--apart", options.apart, "seconds between a fault's end and the next")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--busy", options.busy, "threads per processor that compute all the time")
      ->check(CLI::Range(0u, 64u));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (minutes > 0) options.seconds = minutes * 60;
  const auto interrupt = [](int) { weft::chaos::interrupted.store(true); };
  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  try {
    return weft::chaos::run(options);
  } catch (const std::exception& error) {
    std::cerr << "chaos: " << error.what() << std::endl;
    return 2;
  }
}
