// Runs the ranks of a same-host backend as threads of one process.
//
// Thread safety: free functions.
// Blocking: with_backends() and with_ranks() return when all ranks have returned.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "weft/comm/internal/same_host_operations.h"
#include "weft/comm/same_host_backend.h"
#include "weft/tests/comm/failure_of.h"

namespace weft::testing {

using Tensors = std::vector<at::Tensor>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

inline SameHostOptions backend_options() {
  SameHostOptions options;
  options.timeout = std::chrono::seconds(60);
  return options;
}

// Runs a program for each rank of a new group, all at the same time. If a rank throws, the test
// fails.
inline void with_backends(int size,
                          const std::function<void(int rank, BackendPtr backend)>& program,
                          const SameHostOptions& options = backend_options()) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        program(rank, create_same_host_backend(store, rank, size, options));
      } catch (const std::exception& failed) {
        ADD_FAILURE() << "rank " << rank << ": " << failed.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline void with_ranks(int size,
                       const std::function<void(int rank, c10d::Backend& backend)>& program,
                       const SameHostOptions& options = backend_options()) {
  with_backends(
      size, [&](int rank, const BackendPtr& backend) { program(rank, *backend); }, options);
}

// Counts of the work that the backend's engine has done so far. The backend must be a same-host
// one.
inline comm_internal::CollectiveGroup::Counts counts_of(c10d::Backend& backend) {
  return dynamic_cast<comm_internal::SameHostBackend&>(backend).counts();
}

// A tensor that differs from rank to rank, with small whole numbers.
inline at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  const at::Tensor base = at::arange(c10::multiply_integers(shape), at::kLong).reshape(shape);
  if (type == at::kBool) return (base * 7 + rank * 3) % 5 < 3;
  return ((base * 7 + rank * 3) % 5 + 1).to(type);
}

}  // namespace weft::testing
