// The reductions of collectives, for each data type.
//
// Sources are reduced in their order, each element for itself: whoever reduces an element gets the
// same bits. Integers go round, as in LibTorch. fp16 and bf16 are reduced in fp32 and rounded once.
// Of booleans a sum is `or` and a product is `and`. Minimum and maximum of a NaN and anything is
// NaN.
//
// Thread safety: pure functions.
// Errors: InvalidArgument (no such reduction of that type), naming both.
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
  kMin,  // not of complex types, as all that follow
  kMax,
  kBitAnd,  // integers and booleans, as the next two
  kBitOr,
  kBitXor,
};
std::string_view to_string(Reduction reduction);

absl::StatusOr<ReduceKernel> reduce_kernel(Reduction reduction, c10::ScalarType type);

}  // namespace weft::comm_internal
