// Divides a batch into micro-batches.
//
// Thread safety: pure functions.
// Errors: RpcError with InvalidArgument, naming the sizes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::pipeline_internal {

// The size in dimension 0; 0 for a tensor without dimensions.
int64_t batch_size(const at::Tensor& tensor);

// The micro-batches are views of `whole`, whose size in dimension 0 must be `size`. Their sizes
// differ by at most 1, and the first ones are larger. `what` is for the error, such as "inputs".
std::vector<at::Tensor> divided(const at::Tensor& whole, int64_t size, int micro_batches,
                                const char* what);

}  // namespace weft::pipeline_internal
