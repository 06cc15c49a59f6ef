// LibTorch's NCCL as a backend, for CUDA tensors of ranks that have a GPU each. Only in builds with
// -DWEFT_WITH_CUDA=ON.
//
// An operation is done when it is on the device's stream: Work::wait makes the current stream wait
// for it, not this thread (but for barrier). A rank's tensors are all on one device: say which with
// c10::cuda::set_device before the group is made. Bitwise reductions, recvAnysource and
// monitoredBarrier do not exist here.
//
// Thread safety: all methods may be called from any thread; the order of calls must be the same on
// all ranks. Lifetime: the end waits for work that has begun. Blocking: the first operation, until
// all ranks have come to it; barrier; the end.
// Errors: c10::ValueError where there is no GPU, or no such rank; c10::DistBackendError from NCCL.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

c10::intrusive_ptr<c10d::Backend> create_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout);

}  // namespace weft
