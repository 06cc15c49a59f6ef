// Chooses the device of a small tensor so that a group's backend can carry the tensor.
//
// Thread safety: a free function.
#pragma once

#include <c10/core/Device.h>

#include "weft/comm/process_group.h"

namespace weft::comm_internal {

// NCCL carries tensors on a GPU. All other backends carry tensors in host memory. `device` is the
// device of the data that the small tensor describes.
inline at::Device exchange_device(const ProcessGroup& group, at::Device device) {
  return group.backend()->getBackendName() == "nccl" ? device : at::Device(at::kCPU);
}

}  // namespace weft::comm_internal
