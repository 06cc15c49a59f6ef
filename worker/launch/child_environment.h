// The environment of each started process: the launcher's own, with torchrun's variables put in.
//
// Thread safety: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/worker/launch/launch_options.h"

namespace weft::launch {

// What is the same for every process of one launch.
struct GroupPlace {
  LaunchOptions options;        // run_id and master_port settled
  size_t terminal_columns = 0;  // left for a line of a process; 0: no terminal at the far end
};

// `inherited` and the result are NAME=VALUE. `error_file` is TORCHELASTIC_ERROR_FILE.
std::vector<std::string> child_environment(const std::vector<std::string>& inherited,
                                           const GroupPlace& place, uint32_t rank,
                                           uint32_t restart_count, const std::string& error_file);

// The text of an error file as torchrun's processes write it:
// {"message": {"message": TEXT, ...}} or {"message": TEXT}; "" if it is neither.
std::string error_file_message(const std::string& json);

}  // namespace weft::launch
