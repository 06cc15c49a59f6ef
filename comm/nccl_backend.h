// Makes a backend of LibTorch's NCCL, for CUDA tensors of ranks that have a GPU each. Only builds
// with -DWEFT_WITH_CUDA=ON have it.
//
// Operations run on the device. Work::wait makes the current stream wait for the operation and does
// not block the thread, except for barrier. All tensors of a rank are on one device. Select this
// device with c10::cuda::set_device before the group is made. Bitwise reductions, recvAnysource and
// monitoredBarrier are not supported.
//
// Thread safety: all methods may be called from any thread. The order of calls must be the same on
// all ranks.
// Lifetime: the destructor waits for work that has begun.
// Blocking: the first operation, until all ranks have called it; barrier; the destructor.
// Errors: c10::ValueError if there is no GPU or no such rank; c10::DistBackendError from NCCL.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

c10::intrusive_ptr<c10d::Backend> create_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int size,
                                                      std::chrono::milliseconds timeout);

}  // namespace weft
