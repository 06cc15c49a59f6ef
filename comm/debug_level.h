// Sets how much the ranks of a process group check each other, and how much they log.
//
//   kOff: Only the checks that always run. Groups in shared memory always compare collectives.
//   kInfo: DistributedDataParallel also logs its buckets and times.
//   kDetail: Groups on Gloo and NCCL also compare every collective before it starts.
//     DistributedDataParallel compares its replicas before each step that is reduced. Each
//     comparison costs a collective.
//
// Thread safety: free functions. The environment must not change during a call.
// Errors: c10::ValueError for another text, which the error names.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

enum class DebugLevel : uint8_t { kOff, kInfo, kDetail };

// `text` is OFF, INFO or DETAIL, in upper or lower case.
DebugLevel parse_debug_level(const std::string& text);
// The level in TORCH_DISTRIBUTED_DEBUG, as in PyTorch; kOff if it is not set or empty.
DebugLevel debug_level_of_environment();

}  // namespace weft
