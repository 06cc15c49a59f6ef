// Helps the communication hooks: sums that complete a future, and streams for device tensors.
//
// For CPU tensors the result is chained on the future of the collective, so no thread waits. For
// tensors of another device there is a wait: with NCCL the stream waits, with Gloo the thread.
//
// Thread safety: free functions.
// Errors: always in the future, never thrown.
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

// A future for a tensor on `device`.
HookFuture tensor_future(const at::Device& device);
HookFuture failed_future(std::exception_ptr error);

// Completes `to` when `from` completes. `finish` makes the value, on the thread that completes
// `from`.
void complete_after(const HookFuture& from, const HookFuture& to,
                    std::function<at::Tensor(c10::ivalue::Future&)> finish);

// Sums `sent` in place over the group. The future's value is the result of `finish`, which is
// called after that.
HookFuture sum_then(ProcessGroup& group, const at::Tensor& sent,
                    std::function<at::Tensor()> finish);

// Replaces `buffer` by its mean over the group. It is divided first and then summed, so that half
// precision does not overflow. The sum is computed in `type`.
HookFuture average_in_place(ProcessGroup& group, const at::Tensor& buffer, at::ScalarType type);

// All work that this thread has put on the device's current stream so far. On the CPU there is
// none.
class QueuedWork {
 public:
  explicit QueuedWork(const at::Device& device);

  // While it lives, its thread works on another stream, which comes after the queued work.
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
