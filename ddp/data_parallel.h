// Runs one module on several devices of this process at the same time: each takes a part of the
// batch.
//
//   weft::DataParallel net(model, {torch::Device("cuda:0"), torch::Device("cuda:1")});
//   torch::Tensor output = net.forward(batch);  // of the whole batch, on cuda:0
//
// A forward pass cuts the input along `dim`. It copies the module to all devices except the first,
// which runs the module itself, and joins the outputs on the output device. In the backward pass
// the gradients of the copies add up on the module's own parameters. Changes that forward makes to
// buffers (running statistics) stay for the first part and are lost for the others. Processes with
// one device each (DistributedDataParallel) are faster.
//
// The module must be on the first device. For more than one device it must have a clone()
// (torch::nn::Cloneable). The copying leaves the CPU's random numbers as they were. A batch with
// fewer rows than devices uses fewer of them.
//
// Thread safety: one forward pass at a time. The parts run forward on threads of their own, with
// the caller's grad mode, autocast and CUDA streams. So everything that they share must allow this.
// Blocking: forward waits until all parts have been computed (on a GPU: enqueued).
// Errors: c10::ValueError for no devices, devices of several types, a `dim` that the input does not
// have, and a module that is not on the first device. If forward throws for several parts, the
// error of the first of these is thrown.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace weft {

namespace ddp_internal {
using PartForward = std::function<at::Tensor(torch::nn::Module& module, const at::Tensor& part)>;

at::Tensor data_parallel(torch::nn::Module& module, const PartForward& forward,
                         const at::Tensor& input, const std::vector<c10::Device>& devices,
                         std::optional<c10::Device> output_device, int64_t dim);
}  // namespace ddp_internal

// `output_device` is the first device by default. Outputs are joined along `dim`. Scalars become a
// vector.
template <class Impl>
at::Tensor data_parallel(const std::shared_ptr<Impl>& module, const at::Tensor& input,
                         const std::vector<c10::Device>& devices,
                         std::optional<c10::Device> output_device = std::nullopt, int64_t dim = 0) {
  const auto forward = [](torch::nn::Module& replica, const at::Tensor& part) -> at::Tensor {
    return dynamic_cast<Impl&>(replica).forward(part);
  };
  return ddp_internal::data_parallel(*module, forward, input, devices, output_device, dim);
}

template <class Impl>
at::Tensor data_parallel(const torch::nn::ModuleHolder<Impl>& module, const at::Tensor& input,
                         const std::vector<c10::Device>& devices,
                         std::optional<c10::Device> output_device = std::nullopt, int64_t dim = 0) {
  return data_parallel(module.ptr(), input, devices, output_device, dim);
}

// The same as a module, with the original as its child "module". `Impl` is the type inside a module
// holder, for example LinearImpl.
template <class Impl>
class DataParallel : public torch::nn::Module {
 public:
  DataParallel(std::shared_ptr<Impl> module, std::vector<c10::Device> devices,
               std::optional<c10::Device> output_device = std::nullopt, int64_t dim = 0)
      : module_(register_module("module", std::move(module))),
        devices_(std::move(devices)),
        output_device_(output_device),
        dim_(dim) {}
  DataParallel(const torch::nn::ModuleHolder<Impl>& module, std::vector<c10::Device> devices,
               std::optional<c10::Device> output_device = std::nullopt, int64_t dim = 0)
      : DataParallel(module.ptr(), std::move(devices), output_device, dim) {}

  at::Tensor forward(const at::Tensor& input) {
    return data_parallel(module_, input, devices_, output_device_, dim_);
  }
  const std::shared_ptr<Impl>& module() const { return module_; }

 private:
  const std::shared_ptr<Impl> module_;  // shared with the caller; also this module's child
  const std::vector<c10::Device> devices_;
  const std::optional<c10::Device> output_device_;
  const int64_t dim_;
};

}  // namespace weft
