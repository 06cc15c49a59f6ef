// Compares the copies of a module before ranks train them together.
//
// Thread safety: a free function. Blocking: until all ranks have come, no longer than the group's
// timeout. Errors: c10::ValueError on every rank, c10::DistBackendError.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

struct CopyDescription {
  struct Part {
    std::string name;
    at::Tensor tensor;
    bool sparse = false;
  };
  std::vector<std::pair<std::string, int64_t>> options;  // as many on each rank
  std::vector<Part> parameters;                          // that require gradients
  std::vector<Part> others;  // buffers, and parameters that do not, as far as ranks exchange them
  // Why this rank cannot take part; then all the rest does not matter. Others learn it here.
  std::string refusal = {};
};

// Collective. Compares options, and number, types, shapes and strides of the parts: the error names
// the first that differs, the rank, and what both have. A rank with a refusal gets no error: it has
// one of its own.
void verify_copies(ProcessGroup& group, const CopyDescription& mine, at::Device device);

}  // namespace weft::ddp_internal
