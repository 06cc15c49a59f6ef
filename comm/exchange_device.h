// Where a small tensor must lie for a group's backend to carry it.
//
// Thread safety: a free function.
#pragma once

#include <c10/core/Device.h>

#include "weft/comm/process_group.h"

namespace weft::comm_internal {

// NCCL carries what lies on a GPU, all others what lies in host memory. `device`: of the data that
// the small tensor is about.
inline at::Device exchange_device(const ProcessGroup& group, at::Device device) {
  return group.backend()->getBackendName() == "nccl" ? device : at::Device(at::kCPU);
}

}  // namespace weft::comm_internal
