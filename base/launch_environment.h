// Reads from the environment what a launcher tells a process about its rank and its group.
//
// The variables are those of torchrun, so one binary runs under weft_launch, under
// `torchrun --no-python` and by hand. docs/launch.md lists them.
//
// Thread safety: plain values. No thread may change the process environment during a read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace weft {

struct LaunchEnvironment {
  uint32_t rank = 0;              // RANK
  uint32_t world_size = 1;        // WORLD_SIZE
  uint32_t local_rank = 0;        // LOCAL_RANK; RANK if unset
  uint32_t local_world_size = 1;  // LOCAL_WORLD_SIZE; WORLD_SIZE if unset
  std::string master_addr;        // MASTER_ADDR, host of the rendezvous store
  uint16_t master_port = 0;       // MASTER_PORT
  std::string run_id = "weft";    // TORCHELASTIC_RUN_ID, name of the job on the store
  uint32_t restart_count = 0;     // TORCHELASTIC_RESTART_COUNT
  std::string role_name;          // ROLE_NAME, "" if unset
  // TORCHELASTIC_USE_AGENT_STORE: the launcher hosts the store and no rank may.
  bool agent_hosts_store = false;
  // WEFT_GROUP_EPOCH: the number of restarts of the whole group. If it is not set, the restart
  // count is the epoch, because torchrun restarts all ranks together. weft_launch restarts one rank
  // and keeps the epoch.
  uint32_t group_epoch = 0;

  // Whether this process must host the store.
  bool hosts_store() const { return rank == 0 && !agent_hosts_store; }
};

// nullopt: the variable is not set.
using EnvironmentReader = std::function<std::optional<std::string>(const char* name)>;

// Reads a variable of this process with getenv.
std::optional<std::string> read_process_environment(const char* name);

// Errors: InvalidArgument, which names each missing variable, and each bad one with its value.
absl::StatusOr<LaunchEnvironment> read_launch_environment(
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
