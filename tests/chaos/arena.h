// Runs the processes of a chaos run: starts them, injects the faults of the plan, restarts them,
// and finally stops all of them in good order.
//
// Each slot is one name of the group. If a process there dies or leaves, the arena starts a new
// incarnation. The arena keeps what every incarnation wrote into its ledger, and all injected
// faults.
//
// Thread safety: belongs to the thread that starts it.
// Lifetime: the network outlives it; the destructor kills the processes that still run.
// Blocking: start, run and finish.
// Errors: std::system_error and std::runtime_error if the machine refuses something. Misbehaviour
// of a worker is not an exception but a text in failures().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/tests/chaos/network/faulty_proxy.h"
#include "weft/tests/chaos/network/network.h"
#include "weft/tests/chaos/oracle/ledger.h"
#include "weft/tests/chaos/oracle/oracle.h"
#include "weft/tests/chaos/plan.h"

namespace weft::chaos {

// Times in nanoseconds.
inline constexpr uint64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kSecond = 1000 * kMillisecond;

struct ArenaOptions {
  uint64_t seed = 1;
  size_t workers = 5;
  std::string program;          // chaos_worker's path
  std::string store;            // host:port of the rendezvous
  std::string run_id;           // of the group
  std::vector<size_t> proxied;  // slots that are reached through a proxy
  bool fail_points = false;     // some processes are started with one
  uint32_t first_spawn = 1;     // processes are numbered from here
  bool exact = true;            // false: bits are flipped, a worker may leave with something held
};

class Arena {
 public:
  Arena(Network& network, ArenaOptions options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns when all have joined.
  void start();
  // Runs for `length`, or until `interrupted`.
  void run(const std::vector<Fault>& plan, std::chrono::milliseconds length,
           const std::atomic<bool>& interrupted);
  // Repairs all faults, waits until every slot is a member again, then stops all in good order.
  void finish();

  const std::vector<Incarnation>& incarnations() const { return incarnations_; }
  const std::vector<Injection>& injections() const { return injections_; }
  // Crashes, hangs and waits that took too long, each with the last output of the worker.
  const std::vector<std::string>& failures() const { return failures_; }
  uint64_t limit_deaths() const { return limit_deaths_; }  // workers that exited because of a limit
  uint32_t next_spawn() const { return next_spawn_; }

 private:
  using Task = std::function<void()>;

  struct Running {
    pid_t pid = -1;
    int handle = -1;         // pidfd
    size_t incarnation = 0;  // in incarnations_
    LedgerTail tail;
    std::string fail_point = {};  // WEFT_FAIL_POINT=..., or empty
    bool killed = false;          // by a fault
    bool stopped = false;         // by a fault
    bool leaving = false;
    bool ceased = false, quiet = false;
    uint64_t limited_until = 0;  // until then a limit may be the reason for its exit
  };
  struct Slot {
    std::unique_ptr<FaultyProxy> proxy;
    std::optional<Running> running;
    uint64_t start_at = 0;
    int refused = 0;  // joins in a row
  };

  // arena.cc
  void spawn(size_t slot);
  void turn(uint64_t until);
  void collect(Slot& slot);
  void reap(size_t slot);
  void on_stopped(size_t slot);
  void on_ended(size_t slot, int status);
  void fail(std::string what, uint32_t spawn);
  bool is_hopeless() const;
  bool wait_until(const char* what, std::chrono::seconds bound,
                  const std::function<bool(const Slot&)>& of_each);
  void signal_all(int signal);
  void kill_all();

  // arena_faults.cc
  void inject(const Fault& fault);
  bool is_able(const Slot& slot) const;
  void later(uint64_t time, Task task) { agenda_.emplace(time, std::move(task)); }
  size_t note(const Fault& fault, uint64_t end);
  void stop(const Fault& fault, size_t injection);
  void cut(const Fault& fault, size_t injection);
  void reset(const Fault& fault, size_t injection);
  void trouble_proxy(const Fault& fault, size_t injection);
  void fill_disk(size_t injection);
  void limit(const Fault& fault, size_t injection);
  void take_threads(const Fault& fault, size_t injection);
  void resume(size_t slot, size_t incarnation);
  void heal_everything();
  std::string port_file(size_t slot) const;

  Network& network_;
  const ArenaOptions options_;
  std::vector<Slot> slots_;
  std::vector<Incarnation> incarnations_;
  std::vector<Injection> injections_;
  std::vector<std::string> failures_;
  std::multimap<uint64_t, Task> agenda_;
  uint64_t limit_deaths_ = 0;
  uint32_t next_spawn_;
  bool ending_ = false;   // processes that stop now are not replaced
  bool healing_ = false;  // all faults are repaired
};

}  // namespace weft::chaos
