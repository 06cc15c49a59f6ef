// The processes of a chaos run: starts them, does to them what the plan says, starts them again,
// and at last brings all of them to rest and to their end.
//
// Each slot is one name of the group; whoever dies or leaves there is followed by a new
// incarnation. The arena keeps what every life wrote into its ledger, and what was done to whom.
//
// Thread safety: belongs to the thread that starts it. Lifetime: the network outlives it; the
// destructor kills what still runs.
// Blocking: start, run and finish.
// Errors: std::system_error and std::runtime_error of what the machine refuses. What a worker does
// wrong is a failure, in words, not an exception.
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

struct ArenaOptions {
  uint64_t seed = 1;
  size_t workers = 5;
  std::string program;          // chaos_worker's path
  std::string store;            // host:port of the rendezvous
  std::string run_id;           // of the group
  std::vector<size_t> proxied;  // slots
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

  // Until all have joined.
  void start();
  // For so long, or until `interrupted`.
  void run(const std::vector<Fault>& plan, std::chrono::milliseconds length,
           const std::atomic<bool>& interrupted);
  // Heals everything, waits until every slot is a member again, then ends all in good order.
  void finish();

  const std::vector<Incarnation>& incarnations() const { return incarnations_; }
  const std::vector<Injection>& injections() const { return injections_; }
  // Crashes, hangs, waits that did not end, each with what the worker printed at last.
  const std::vector<std::string>& failures() const { return failures_; }
  uint64_t limit_deaths() const { return limit_deaths_; }  // workers that a limit ended
  uint32_t next_spawn() const { return next_spawn_; }

 private:
  using Task = std::function<void()>;

  struct Running {
    pid_t pid = -1;
    int handle = -1;         // pidfd
    size_t incarnation = 0;  // in incarnations_
    LedgerTail tail;
    std::string fail_point = {};  // its variable, or empty
    bool killed = false;          // by a fault
    bool stopped = false;         // by a fault
    bool leaving = false;
    bool ceased = false, quiet = false;
    uint64_t limited_until = 0;  // a limit may be the reason of its end
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
  bool ending_ = false;   // who ends now is not followed by a new incarnation
  bool healing_ = false;  // no fault goes on
};

}  // namespace weft::chaos
