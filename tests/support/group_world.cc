#include "weft/tests/support/group_world.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace weft::testing {

ProcessGroupOptions group_options(int rank, int size, c10::intrusive_ptr<c10d::Store> store) {
  ProcessGroupOptions options;
  options.rank = rank;
  options.world_size = size;
  options.store = std::move(store);
  options.timeout = std::chrono::seconds(60);
  return options;
}

void run_ranks(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& program,
               const std::function<void(ProcessGroupOptions&)>& change) {
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
