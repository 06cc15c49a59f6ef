// What the communication hooks share: sums whose end is a future, and streams for device tensors.
//
// CPU tensors are chained on the future of the collective, so nobody waits. Tensors of a device
// are waited for: with NCCL that is the stream's wait, not the thread's; with Gloo the thread's.
//
// Thread safety: free functions. Errors: always in the future, never thrown.
#pragma once

#include <exception>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

using HookFuture = c10::intrusive_ptr<c10::ivalue::Future>;

// For a tensor on `device`.
HookFuture tensor_future(const at::Device& device);
HookFuture failed_future(std::exception_ptr error);

// Completes `to` as `from` ends; `finish` makes the value, on the thread that completes `from`.
void complete_after(const HookFuture& from, const HookFuture& to,
                    std::function<at::Tensor(c10::ivalue::Future&)> finish);

// Sums `sent` in place over the group; the future's value is what `finish` then returns.
HookFuture sum_then(ProcessGroup& group, const at::Tensor& sent,
                    std::function<at::Tensor()> finish);

// The mean of `buffer` over the group, in place: divided first, then summed, so that half
// precision does not overflow. Summed as `type`.
HookFuture average_in_place(ProcessGroup& group, const at::Tensor& buffer, at::ScalarType type);

// Everything that this thread had put on the device's current stream when it was made. Nothing on
// the CPU.
class QueuedWork {
 public:
  explicit QueuedWork(const at::Device& device);

  // While it lives, its thread works on a stream of its own that comes after the queued work.
  class Follow {
   public:
    explicit Follow(const QueuedWork& work);

   private:
    c10::OptionalStreamGuard stream_;
  };

 private:
  const at::Device device_;
  std::optional<c10::Event> event_;
};

}  // namespace weft::ddp_internal
