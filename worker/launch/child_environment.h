// Builds the environment of each started process: the launcher's own, with torchrun's variables and
// WEFT_STORE set.
//
// Thread safety: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

#include "weft/worker/launch/launch_options.h"
#include "weft/worker/launch/node_place.h"

namespace weft::launch {

// The part that is the same for every process of one launch.
struct GroupPlace {
  LaunchOptions options;  // run_id is set
  NodePlace nodes;
  std::string store;         // address of the job's store
  uint16_t master_port = 0;  // of a store of c10d, which the launcher or rank 0 hosts
  pid_t c10d_store = 0;      // the launcher's process that hosts it; 0: none
  // By local rank: variables that name its certificate, as NAME=VALUE. Empty: there are none. With
  // them, the processes do not learn where the job's secret is.
  std::vector<std::vector<std::string>> certificates = {};
  size_t terminal_columns = 0;  // room for a line of a process; 0: it does not reach a terminal
};

// `inherited` and the result are NAME=VALUE. `error_file` becomes TORCHELASTIC_ERROR_FILE.
// `local_rank` counts on this machine.
std::vector<std::string> child_environment(const std::vector<std::string>& inherited,
                                           const GroupPlace& place, uint32_t local_rank,
                                           uint32_t restart_count, const std::string& error_file);

// The message in an error file of torchrun's format: {"message": {"message": TEXT, ...}} or
// {"message": TEXT}. If it is neither: "".
std::string error_file_message(const std::string& json);

}  // namespace weft::launch
