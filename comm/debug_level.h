// How much ranks check each other and tell about themselves.
//
// kOff: what is checked anyway. kInfo: DistributedDataParallel logs its buckets and times. kDetail:
// also, groups on Gloo and NCCL compare every collective before it starts (those in shared memory
// always do), and DistributedDataParallel compares its copies before every step. Costs a collective
// for each.
//
// Thread safety: free functions; the environment must not change meanwhile.
// Errors: c10::ValueError for another text, naming it.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

enum class DebugLevel : uint8_t { kOff, kInfo, kDetail };

// OFF, INFO or DETAIL, in capitals or not.
DebugLevel parse_debug_level(const std::string& text);
// TORCH_DISTRIBUTED_DEBUG, as in PyTorch; kOff where it is not set.
DebugLevel debug_level_of_environment();

}  // namespace weft
