// Decides what happens to a group of processes when one of them exits or the user sends a signal.
//
// A pure core: events and the time go in, actions come out. It touches no process, clock or file.
// Thread safety: none; one thread drives it.
// Protocol: docs/launch.md, "weft_launch".
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::launch {

using TimePoint = std::chrono::steady_clock::time_point;

enum class FailurePolicy {
  kEnd,       // the first failure stops the group
  kContinue,  // the other processes go on
  kRestart,   // the failed process is started again, at most max_restarts times; then as kEnd
};

struct SupervisorOptions {
  uint32_t processes = 1;
  FailurePolicy on_failure = FailurePolicy::kEnd;
  uint32_t max_restarts = 3;                                  // of each process
  std::chrono::nanoseconds grace = std::chrono::seconds(10);  // from the first signal to SIGKILL
};

// How a process exited: by a signal, or else with an exit code.
struct ExitStatus {
  int code = 0;
  int signal = 0;

  bool ok() const { return code == 0 && signal == 0; }
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

struct Action {
  enum class Kind { kStart, kSignal };
  Kind kind = Kind::kStart;
  uint32_t rank = 0;
  uint32_t restart_count = 0;  // of a start
  int signal = 0;              // for the process group of the rank

  friend bool operator==(const Action&, const Action&) = default;
};

class SupervisorCore {
 public:
  explicit SupervisorCore(const SupervisorOptions& options);

  std::vector<Action> start();
  std::vector<Action> on_exit(uint32_t rank, ExitStatus status, TimePoint now);
  // The program of `rank` could not be executed. A restart would not help.
  std::vector<Action> on_start_failed(uint32_t rank, int code, TimePoint now);
  // The launcher got SIGINT, SIGTERM or SIGHUP. Passes it on to all processes; a second SIGINT
  // kills them.
  std::vector<Action> on_signal(int signal, TimePoint now);
  // The group ends because of another machine.
  std::vector<Action> on_group_failure(int code, TimePoint now);
  std::vector<Action> on_time(TimePoint now);

  // When on_time is due.
  std::optional<TimePoint> deadline() const { return deadline_; }
  // Whether this exit was expected: a success, or by a signal that the launcher sent to stop the
  // group, or with the exit code for it (128 + signal). Expected exits are not reported.
  bool asked_for(ExitStatus status) const;
  bool is_stopping() const { return stopping_; }
  bool interrupted() const { return interrupted_; }  // SIGINT has come
  bool is_running(uint32_t rank) const { return processes_[rank].running; }
  uint32_t restarts_of(uint32_t rank) const { return processes_[rank].restarts; }
  bool done() const { return running_ == 0; }
  // 0, or the code of the first failure: 128 + signal if a signal ended the process.
  int exit_code() const { return exit_code_; }

 private:
  struct Process {
    bool running = false;
    uint32_t restarts = 0;
  };

  std::vector<Action> stop_all(int signal, TimePoint now);
  void signal_all(int signal, std::vector<Action>& actions);

  const SupervisorOptions options_;
  std::vector<Process> processes_;
  uint32_t running_ = 0;
  bool stopping_ = false;
  bool interrupted_ = false;  // the first SIGINT has come
  std::vector<int> sent_;     // signals that the group was sent
  std::optional<TimePoint> deadline_;
  int exit_code_ = 0;
};

}  // namespace weft::launch
