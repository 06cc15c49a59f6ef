#include "weft/ddp/reducer/used_parameters.h"

#include <utility>

#include <ATen/ops/tensor.h>

namespace weft::ddp_internal {

void UsedParameters::share(ProcessGroup& group, const std::vector<int32_t>& here,
                           at::Device device) {
  counts_ = at::tensor(here, at::kInt);
  if (!device.is_cpu()) counts_ = counts_.to(device);
  work_ = group.all_reduce_async(counts_);
}

void UsedParameters::wait() {
  if (work_ == nullptr) return;
  std::exchange(work_, nullptr)->wait();
  counts_ = counts_.to(at::kCPU);
  known_ = true;
}

void UsedParameters::forget() {
  work_.reset();
  known_ = false;
}

bool UsedParameters::nowhere(size_t parameter) const {
  return counts_.data_ptr<int32_t>()[parameter] == 0;
}

}  // namespace weft::ddp_internal
