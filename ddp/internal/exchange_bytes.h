// Exchanges texts and archives of different lengths between the ranks of a group.
//
// Thread safety: free functions; collective.
// Blocking: they wait for all ranks.
// Errors: those of the group's collectives.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

// Returns each rank's bytes, by rank. `device` must be one whose tensors the group's backend takes.
std::vector<std::string> all_gather_bytes(ProcessGroup& group, const std::string& bytes,
                                          const c10::Device& device);

// The same on rank `to`. The result is empty on the others.
std::vector<std::string> gather_bytes(ProcessGroup& group, const std::string& bytes, int to,
                                      const c10::Device& device);

}  // namespace weft::ddp_internal
