// Runs one launch: starts the processes, merges their output, passes signals on, and reports
// failures.
//
// One poll loop drives it; SupervisorCore makes the decisions. Output that nobody reads is kept up
// to 1 MiB for each stream. After that the processes block in their own writes.
//
// Thread safety: none; one thread drives it. It reaps every child of its process. When the last
// rank has exited, it kills the children that are left.
// Blocking: run() returns when the last process has exited.
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/worker/launch/child_environment.h"
#include "weft/worker/launch/child_process.h"
#include "weft/worker/launch/node_group.h"
#include "weft/worker/launch/output_merger.h"
#include "weft/worker/launch/supervisor_core.h"

namespace weft::launch {

// Call it before the process has a second thread. It blocks the signals that the supervisor reads
// from a descriptor, in all threads that start later. SIGINT and SIGHUP stay ignored if they are
// ignored now (nohup, background jobs of a script).
absl::StatusOr<FileDescriptor> take_signals();

class Supervisor {
 public:
  // `nodes`: the launchers of the other machines; null if there are none. It must outlive this
  // object.
  Supervisor(GroupPlace place, FileDescriptor signals, NodeGroup* nodes);
  ~Supervisor();

  // Returns the launcher's exit code. With several machines, it returns when those of node 0 may
  // end too. Errors: the program cannot be executed, or there is no folder for error files.
  absl::StatusOr<int> run();

 private:
  struct Child {
    pid_t pid = -1;
    std::array<FileDescriptor, 2> output;  // by Stream
    std::string error_file;
  };

  absl::Status prepare();
  void act(const std::vector<Action>& actions);
  void start_child(const Action& action);
  void wait_for_events();
  void read_signals();
  void read_nodes();
  void tell_nodes(int code, const std::string& text);
  int leave_nodes();
  void reap_children();
  void reap_rank(uint32_t rank);
  void end_strays();
  std::string describe_exit(uint32_t rank, pid_t pid, ExitStatus status) const;
  uint32_t rank_of(uint32_t child) const;  // in the group
  void read_output(uint32_t rank, Stream stream, bool until_empty);
  void write_output(Stream stream);
  void flush_output();
  bool backed_up();

  const GroupPlace place_;
  const FileDescriptor signals_;
  NodeGroup* const nodes_;
  SupervisorCore core_;
  OutputMerger merger_;
  std::array<bool, 2> sink_closed_ = {false, false};
  bool group_failed_ = false;  // on some machine, as this one has read
  std::string folder_;         // of the error files
  std::string program_;        // its path
  std::vector<std::string> inherited_;
  std::vector<Child> children_;
};

}  // namespace weft::launch
