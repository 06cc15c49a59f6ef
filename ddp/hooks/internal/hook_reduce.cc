#include "weft/ddp/hooks/internal/hook_reduce.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::ddp_internal {

HookFuture tensor_future(const at::Device& device) {
  std::vector<at::Device> devices;
  if (!device.is_cpu()) devices.push_back(device);
  return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), std::move(devices));
}

HookFuture failed_future(std::exception_ptr error) {
  HookFuture future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  future->setError(std::move(error));
  return future;
}

void complete_after(const HookFuture& from, const HookFuture& to,
                    std::function<at::Tensor(c10::ivalue::Future&)> finish) {
  from->addCallback([to, finish = std::move(finish)](c10::ivalue::Future& done) {
    if (done.hasError()) return to->setError(done.exception_ptr());
    at::Tensor value;
    try {
      const at::NoGradGuard no_grad;
      value = finish(done);
    } catch (...) {
      return to->setError(std::current_exception());
    }
    to->markCompleted(std::move(value));
  });
}

HookFuture sum_then(ProcessGroup& group, const at::Tensor& sent,
                    std::function<at::Tensor()> finish) {
  try {
    const ProcessGroup::Work work = group.all_reduce_async(sent);
    HookFuture result = tensor_future(sent.device());
    if (sent.is_cpu()) {
      complete_after(work->getFuture(), result,
                     [finish = std::move(finish)](c10::ivalue::Future&) { return finish(); });
    } else {
      work->wait();
      result->markCompleted(finish());
    }
    return result;
  } catch (...) {
    return failed_future(std::current_exception());
  }
}

HookFuture average_in_place(ProcessGroup& group, const at::Tensor& buffer, at::ScalarType type) {
  try {
    const at::NoGradGuard no_grad;
    const at::Tensor sent = buffer.to(type).div_(group.size());
    return sum_then(group, sent,
                    [buffer, sent] { return sent.is_same(buffer) ? buffer : buffer.copy_(sent); });
  } catch (...) {
    return failed_future(std::current_exception());
  }
}

QueuedWork::QueuedWork(const at::Device& device) : device_(device) {
  if (device.is_cpu()) return;
  event_.emplace(device.type());
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

QueuedWork::Follow::Follow(const QueuedWork& work) {
  if (!work.event_) return;
  const c10::impl::VirtualGuardImpl device(work.device_.type());
  const c10::Stream stream = device.getStreamFromGlobalPool(work.device_);
  work.event_->block(stream);
  stream_.reset_stream(stream);
}

}  // namespace weft::ddp_internal
