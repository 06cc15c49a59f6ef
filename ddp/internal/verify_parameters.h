// Compares the copies of a module before ranks train them together.
//
// Thread safety: a free function.
// Blocking: it waits for all ranks, no longer than the group's timeout.
// Errors: c10::ValueError on every rank; c10::DistBackendError.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

inline constexpr char kErrorPrefix[] = "DistributedDataParallel: ";

// Throws a c10::ValueError with the prefix.
[[noreturn]] void throw_ddp_error(const std::string& what);

struct CopyDescription {
  struct Part {
    std::string name;
    at::Tensor tensor;
    bool sparse = false;
  };
  std::vector<std::pair<std::string, int64_t>> options;  // equally many on each rank
  std::vector<Part> parameters;                          // that require gradients
  std::vector<Part> others;  // buffers, and parameters that do not, if the ranks exchange them
  // Why this rank cannot take part. If it is set, the other members do not matter. The other ranks
  // get it.
  std::string refusal = {};
};

// Collective. Compares the options, and the number, types, shapes and strides of the parts. The
// error names the first difference, the rank, and both values. A rank with a refusal gets no error
// here, because it has its own.
void verify_copies(ProcessGroup& group, const CopyDescription& mine, at::Device device);

}  // namespace weft::ddp_internal
