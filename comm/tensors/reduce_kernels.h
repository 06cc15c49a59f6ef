// Provides the functions that reduce the elements of collectives, for each data type.
//
// Sources are reduced in their order, and each element by itself. So any rank that reduces an
// element gets the same bits. Integers wrap around, as in LibTorch. fp16 and bf16 are reduced in
// fp32 and rounded once. For booleans the sum is `or` and the product is `and`. Minimum and maximum
// are NaN if any source is NaN.
//
// Thread safety: pure functions.
// Errors: InvalidArgument (the type has no such reduction); the error names both.
#pragma once

#include <cstdint>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"
#include "weft/comm/same_host/operation.h"

namespace weft::comm_internal {

enum class Reduction : uint8_t {
  kSum,
  kAverage,  // floating point and complex types
  kProduct,
  kMin,  // this and all that follow: not for complex types
  kMax,
  kBitAnd,  // this and the next two: integers and booleans
  kBitOr,
  kBitXor,
};
std::string_view to_string(Reduction reduction);

absl::StatusOr<ReduceKernel> reduce_kernel(Reduction reduction, c10::ScalarType type);

}  // namespace weft::comm_internal
