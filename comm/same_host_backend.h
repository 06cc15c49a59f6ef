// Makes a c10d backend for CPU tensors of ranks on one host. It runs over shared memory.
//
//   auto store = c10::make_intrusive<c10d::TCPStore>(...);
//   auto backend = weft::create_same_host_backend(store, rank, size);
//   backend->allreduce(tensors)->wait();
//
// All ranks must call the same operations in the same order with tensors of equal shape and type.
// If they do not, every rank's work fails with an error that names the rank and the difference.
// Reductions run in rank order, with the same additions on every rank. So all ranks get the same
// bits. fp16 and bf16 are added up in fp32.
//
// If a rank dies or does not come within the timeout, the work of the ranks that wait for it fails,
// and so does the group. Make a new group of the ranks that are left.
//
// Tensors are strided CPU tensors in any layout. Tensors with gaps, and lazy conj and neg views,
// are copied in each direction. If a dense tensor is not contiguous (channels-last), it must have
// the same layout on all ranks. Do not read or write a tensor before wait(), isCompleted() or the
// future says that the work is done. Sparse COO tensors are possible in all_reduce (sum and
// average, any number of entries). Their result is coalesced, with the same bits on all ranks.
//
// Thread safety: all methods may be called from any thread. The order of calls must be the same on
// all ranks.
// Lifetime: work and its tensors may outlive the backend. The destructor first finishes the work
// that was started, as long as it makes progress. If nothing moves for half a second, it cancels
// this work, so wait for the work first. Work::abort fails the whole group, as an error does.
// Blocking: creation and split(), until all ranks have come; Work::wait; monitoredBarrier;
// allocateTensor, if it makes an arena; the destructor. All other calls only start an operation.
// Errors: c10::ValueError for invalid arguments; c10::DistBackendError from Work::wait and
// creation, with the texts of comm/same_host/collective_group.h and mesh.h.
// Protocol: docs/same_host_collectives.md.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

struct SameHostOptions {
  std::chrono::milliseconds timeout =
      std::chrono::minutes(30);  // for creation, and for each operation
  // How long a waiting thread looks for the other ranks before it sleeps; 0: it sleeps at once.
  std::chrono::microseconds spin{100};
};

// `store` is used by these ranks only, or is a c10d::PrefixStore with a prefix of this group.
c10::intrusive_ptr<c10d::Backend> create_same_host_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const SameHostOptions& options = {});

}  // namespace weft
