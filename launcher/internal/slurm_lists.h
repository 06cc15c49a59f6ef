// Expands the short forms in which SLURM gives lists: of hosts, and of counts per host.
//
// Source: srun(1) of SLURM 22.05, SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE, and what
// `scontrol show hostnames` prints.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::launcher_internal {

// A list may not stand for more entries than this. SLURM has at most 65,533 nodes.
inline constexpr size_t kMostEntries = 65536;

// "n[01-03,7],login" is n01, n02, n03, n7 and login. A name may have several brackets: the last one
// counts fastest.
// Errors: InvalidArgument: what is wrong, without the list.
absl::StatusOr<std::vector<std::string>> expand_node_list(const std::string& list);

// "4(x2),3" is 4, 4 and 3.
// Errors: as above.
absl::StatusOr<std::vector<uint32_t>> expand_counts(const std::string& list);

}  // namespace weft::launcher_internal
