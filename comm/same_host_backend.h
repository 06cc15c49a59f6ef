// A c10d backend for CPU tensors of ranks on one host, through shared memory.
//
//   auto store = c10::make_intrusive<c10d::TCPStore>(...);
//   auto backend = weft::create_same_host_backend(store, rank, size);
//   backend->allreduce(tensors)->wait();
//
// What is reduced is reduced in rank order, by the same additions on every rank: all get the same
// bits. fp16 and bf16 are added up in fp32. All ranks must call the same operations in the same
// order with tensors of equal shape and type; where they do not, every rank's work fails with an
// error that names who differs and how. A rank that dies, or does not come within the timeout,
// fails the work of those who wait for it, and the group: make a new one of those who are left.
//
// Tensors are strided CPU tensors in any layout; those with gaps and lazy conj and neg views take a
// copy each way. Where a dense tensor is not contiguous (channels-last), it must be laid out alike
// on all ranks. They must not be read or written until the work is done, which is when wait(),
// isCompleted() or the future says so. all_reduce takes sparse COO tensors as well (sum and
// average, of any number of entries); the result is coalesced, and the same bits on all ranks.
//
// Thread safety: all methods may be called from any thread; the order of calls must be the same on
// all ranks. Lifetime: work and its tensors may outlive the backend. A backend that ends first
// finishes what it has started, as long as that goes on: what has not moved for half a second is
// cancelled, so wait for it first. Work::abort ends the group, as an error does.
// Blocking: creating and split(), until all ranks have come; Work::wait; monitoredBarrier; the end,
// as said. The rest only starts.
// Errors: c10::ValueError for arguments that cannot be; c10::DistBackendError from Work::wait and
// creation, with the texts of comm/internal/collective_group.h and mesh.h.
// Protocol: docs/same_host_collectives.md.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

struct SameHostOptions {
  std::chrono::milliseconds timeout =
      std::chrono::minutes(30);  // of creation, and of each operation
  // How long who waits looks for the others before it sleeps; 0: not at all.
  std::chrono::microseconds spin{100};
};

// `store`: the ranks' own, or behind a c10d::PrefixStore of the group's.
c10::intrusive_ptr<c10d::Backend> create_same_host_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const SameHostOptions& options = {});

}  // namespace weft
