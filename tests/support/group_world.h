// Runs the ranks of a process group as threads of one process.
//
// Thread safety: free functions. Blocking: run_ranks() returns when all ranks have returned.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/process_group.h"

namespace weft::testing {

inline ProcessGroupOptions group_options(int rank, int size,
                                         c10::intrusive_ptr<c10d::Store> store) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = size;
  options.store = std::move(store);
  options.timeout = std::chrono::seconds(60);
  return options;
}

// Runs a program for each rank of a new group, all at the same time. If a rank throws, the test
// fails. `change` may edit the options of each rank; it is called on the rank's thread.
inline void run_ranks(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& program,
                      const std::function<void(ProcessGroupOptions&)>& change = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ProcessGroupOptions options = group_options(rank, size, store);
        if (change) change(options);
        program(init_process_group(options));
      } catch (const c10::Error& failed) {
        ADD_FAILURE() << "rank " << rank << ": " << failed.what_without_backtrace();
      } catch (const std::exception& failed) {
        ADD_FAILURE() << "rank " << rank << ": " << failed.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace weft::testing
