// Runs the ranks of a process group as threads of one process.
//
// Thread safety: free functions.
// Blocking: run_ranks() returns when all ranks have returned.
#pragma once

#include <functional>
#include <memory>

#include "weft/comm/process_group.h"

namespace weft::testing {

// The options of a rank in a group of `size`, with a timeout of 60 s.
ProcessGroupOptions group_options(int rank, int size, c10::intrusive_ptr<c10d::Store> store);

// Runs a program for each rank of a new group, all at the same time. If a rank throws, the test
// fails. `change` may edit the options of each rank; it is called on the rank's thread.
void run_ranks(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& program,
               const std::function<void(ProcessGroupOptions&)>& change = {});

}  // namespace weft::testing
