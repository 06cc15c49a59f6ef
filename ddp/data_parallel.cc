#include "weft/ddp/data_parallel.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"
#include "weft/base/thread.h"

namespace weft::ddp_internal {
namespace {

using c10::Device;
using torch::nn::Module;
using Tensors = std::vector<at::Tensor>;
using Replicas = std::vector<std::shared_ptr<Module>>;  // of all parts except the first

void check(const at::Tensor& input, const std::vector<Device>& devices, int64_t dim) {
  if (devices.empty()) C10_THROW_ERROR(ValueError, "data_parallel: no devices");
  for (const Device& device : devices) {
    if (device.type() != devices[0].type()) {
      C10_THROW_ERROR(ValueError, absl::StrCat("data_parallel: devices of several types: ",
                                               devices[0].str(), " and ", device.str()));
    }
  }
  if (!input.defined() || dim < -input.dim() || dim >= input.dim()) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("data_parallel: cannot cut ",
                                 input.defined() ? c10::str("an input of shape ", input.sizes())
                                                 : "an undefined input",
                                 " along dimension ", dim));
  }
}

// "cuda" without an index means the current CUDA device.
std::vector<Device> numbered(std::vector<Device> devices) {
  for (Device& device : devices) {
    if (device.is_cpu()) {
      device = Device(at::kCPU);
    } else if (!device.has_index()) {
      device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
    }
  }
  return devices;
}

void check_place(const std::string& name, const at::Tensor& tensor, const Device& device) {
  if (tensor.device() != device) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("data_parallel: the module lies on the first device, ",
                                 device.str(), ", but '", name, "' is on ", tensor.device().str()));
  }
}

void check_place(const Module& module, const Device& device) {
  for (const auto& item : module.named_parameters()) check_place(item.key(), item.value(), device);
  for (const auto& item : module.named_buffers()) check_place(item.key(), item.value(), device);
}

// Passes the gradient of a replica's parameter on to the original.
class ToOriginal : public torch::autograd::Node {
 public:
  explicit ToOriginal(const at::Tensor& original) : device_(original.device()) {
    set_next_edges(torch::autograd::collect_next_edges(original));
  }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (gradients[0].defined()) gradients[0] = gradients[0].to(device_);
    return std::move(gradients);
  }

 private:
  const Device device_;
};

// clone() first makes a new module, which draws initial weights.
class KeepsRandomNumbers {
 public:
  KeepsRandomNumbers() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepsRandomNumbers() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

std::shared_ptr<Module> replicate(const Module& module, const Device& device) {
  std::shared_ptr<Module> replica = module.clone(device);
  const auto copies = replica->named_parameters();
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& original = item.value();
    const at::Tensor& copy = copies[item.key()];  // a handle to the replica's own tensor
    copy.set_requires_grad(false);
    if (!at::GradMode::is_enabled() || !original.requires_grad()) continue;
    torch::autograd::set_history(copy, std::make_shared<ToOriginal>(original));
  }
  return replica;
}

at::Tensor forward_part(const PartForward& forward, Module& module, const at::Tensor& part,
                        const c10::Stream& stream) {
  const c10::StreamGuard guard(stream);
  return forward(module, part);
}

// The caller's current streams: the parts were copied on these.
std::vector<c10::Stream> current_streams(const std::vector<Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const Device& device : devices) {
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

Tensors forward_all(const PartForward& forward, Module& module, const Replicas& replicas,
                    const Tensors& parts, const std::vector<Device>& devices) {
  const std::vector<c10::Stream> streams = current_streams(devices);
  Tensors outputs(parts.size());
  std::vector<std::exception_ptr> errors(parts.size());
  const at::ThreadLocalState caller;
  const auto run = [&](size_t index) {
    try {
      const at::ThreadLocalStateGuard state(caller);
      Module& mine = index == 0 ? module : *replicas[index - 1];
      outputs[index] = forward_part(forward, mine, parts[index], streams[index]);
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  std::vector<size_t> here = {0};
  for (size_t index = 1; index < parts.size(); ++index) {
    absl::StatusOr<std::thread> thread = start_thread("a part", [&run, index] { run(index); });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      here.push_back(index);  // takes longer, but needs no thread
    }
  }
  for (const size_t index : here) run(index);
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return outputs;
}

at::Tensor join(const Tensors& outputs, const Device& device, int64_t dim) {
  Tensors there;
  for (const at::Tensor& output : outputs) {
    const at::Tensor moved = output.to(device);
    there.push_back(moved.dim() == 0 ? moved.unsqueeze(0) : moved);
  }
  return at::cat(there, outputs[0].dim() == 0 ? 0 : dim);
}

// One part for each device, or fewer.
Tensors cut(const at::Tensor& input, size_t devices, int64_t dim) {
  const int64_t rows = std::max<int64_t>(input.size(dim), 1);
  const int64_t parts = std::min<int64_t>(rows, static_cast<int64_t>(devices));
  return parts == 1 ? Tensors{input} : input.chunk(parts, dim);
}

}  // namespace

at::Tensor data_parallel(Module& module, const PartForward& forward, const at::Tensor& input,
                         const std::vector<Device>& devices, std::optional<Device> output_device,
                         int64_t dim) {
  check(input, devices, dim);
  std::vector<Device> used = numbered(devices);
  check_place(module, used[0]);
  const Device target = output_device.value_or(used[0]);
  Tensors parts = cut(input, used.size(), dim);
  used.resize(parts.size(), target);
  Replicas replicas;
  if (used.size() > 1) {
    const KeepsRandomNumbers keep;
    for (size_t index = 1; index < used.size(); ++index) {
      replicas.push_back(replicate(module, used[index]));
    }
  }
  for (size_t index = 0; index < used.size(); ++index) parts[index] = parts[index].to(used[index]);
  const Tensors outputs = forward_all(forward, module, replicas, parts, used);
  return outputs.size() == 1 ? outputs[0].to(target) : join(outputs, target, dim);
}

}  // namespace weft::ddp_internal
