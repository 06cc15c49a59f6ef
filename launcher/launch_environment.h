// Finds the rank of this process and its group in the environment that a launcher set.
//
// One binary runs alone, by hand, under weft_launch, torchrun, mpirun and srun, and in the pods of
// a Kubernetes Job. The table of the variables is in docs/launch.md, "Launchers".
//
// Thread safety: plain values. No thread may change the process environment during a read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "weft/base/environment.h"

namespace weft {

enum class Launcher {
  kTorch,  // weft_launch, torchrun, or variables set by hand
  kOpenMpi,
  kSlurm,
  kMpich,  // also Intel MPI
  kKubernetes,
  kSingle,  // none: the process is alone
};

// The name that WEFT_LAUNCHER has for it, for example "slurm".
const char* to_text(Launcher launcher);

struct LaunchEnvironment {
  Launcher launcher = Launcher::kTorch;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  uint32_t local_rank = 0;        // among the processes of this host
  uint32_t local_world_size = 1;  // number of processes on this host
  std::string master_addr;        // host of the rendezvous store, unless `store` names another
  uint16_t master_port = 0;       // of the store; 0: any free port, if there is one process
  std::string store;            // WEFT_STORE: where the launcher serves the store; "": it does not
  std::string run_id = "weft";  // name of the job on the store
  uint32_t restart_count = 0;   // how often the launcher has restarted this process
  // Kubernetes: a new pod may take the place of a dead one, and nothing counts that.
  bool replaces_the_dead = false;
  std::string role_name;  // ROLE_NAME, "" if unset
  // TORCHELASTIC_USE_AGENT_STORE: at master_addr and master_port, the launcher serves a store of
  // c10d.
  bool agent_hosts_store = false;
  // WEFT_GROUP_EPOCH: the number of restarts of the whole group. If it is not set, the restart
  // count is the epoch, because torchrun and SLURM restart all ranks together. weft_launch restarts
  // one rank and keeps the epoch.
  uint32_t group_epoch = 0;

  // Whether the launcher has restarted this process, but not the whole group. If it restarts the
  // whole group, restart count and epoch are the same.
  bool restarted() const { return restart_count > group_epoch; }
  // Whether this process must host the store.
  bool hosts_store() const { return rank == 0 && store.empty(); }
};

// Which launcher started this process: the first whose variables are there, or the one that
// WEFT_LAUNCHER names.
// Errors: InvalidArgument (WEFT_LAUNCHER names none).
absl::StatusOr<Launcher> find_launcher(const EnvironmentReader& read = read_process_environment);

// Reads the variables of find_launcher().
// Errors: InvalidArgument, which names the launcher, each missing variable, and each bad one with
// its value.
absl::StatusOr<LaunchEnvironment> read_launch_environment(
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
