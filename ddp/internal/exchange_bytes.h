// Texts and archives of different lengths between the ranks of a group.
//
// Thread safety: free functions; collective. Blocking: until all ranks have come.
// Errors: those of the group's collectives.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

// Each rank's bytes, by rank. `device`: one that the group's backend can move tensors of.
std::vector<std::string> all_gather_bytes(ProcessGroup& group, const std::string& bytes,
                                          const c10::Device& device);

// As above on rank `to`; empty on the others.
std::vector<std::string> gather_bytes(ProcessGroup& group, const std::string& bytes, int to,
                                      const c10::Device& device);

}  // namespace weft::ddp_internal
