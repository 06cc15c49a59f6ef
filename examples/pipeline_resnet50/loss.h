// The losses of the example, registered for the worker that has the last stage.
//
// Thread safety: pure functions.
// Errors: those of LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

namespace weft::examples {

// `scores` are [n, classes], `labels` int64 [n]. The result is a mean over the n pictures.

// The loss of the tutorial: the squared distance to 1 at the label and to 0 elsewhere.
at::Tensor squared_error(const at::Tensor& scores, const at::Tensor& labels);
at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& labels);

}  // namespace weft::examples
