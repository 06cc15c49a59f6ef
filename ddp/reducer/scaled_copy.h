// Copies a gradient into its bucket, scaled.
//
// A large gradient is stored past the caches, because no rank reads it before the rest of its
// bucket is there. A store through the caches would first read the memory that it overwrites. (In a
// training step of two ranks with 50 MB of gradients, that was a tenth of what averaging costs.)
//
// Thread safety: a pure function.
// Errors: none; `to` and `from` must have the same shape and type.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::ddp_internal {

// to = from * factor, with the same bits as at::mul.
void scaled_copy(const at::Tensor& to, const at::Tensor& from, double factor);

}  // namespace weft::ddp_internal
