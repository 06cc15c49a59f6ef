// What a launcher tells a process about its place in the group, read from the environment.
//
// The variables are torchrun's, so one binary runs under weft_launch, under
// `torchrun --no-python` and by hand. docs/launch.md lists them.
// Thread safety: plain values; the process environment must not be changed meanwhile.
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
  // WEFT_GROUP_EPOCH: counts restarts of the whole group. torchrun restarts all ranks together and
  // does not set it: there it is the restart count. weft_launch restarts one rank and keeps it.
  uint32_t group_epoch = 0;

  // The process that must host the store itself.
  bool hosts_store() const { return rank == 0 && !agent_hosts_store; }
};

// nullopt: the variable is not set.
using EnvironmentReader = std::function<std::optional<std::string>(const char* name)>;

// getenv of this process.
std::optional<std::string> read_process_environment(const char* name);

// Errors: InvalidArgument naming every variable that is missing or bad, with its value.
absl::StatusOr<LaunchEnvironment> read_launch_environment(
    const EnvironmentReader& read = read_process_environment);

}  // namespace weft
