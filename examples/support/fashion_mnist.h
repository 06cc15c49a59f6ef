// Fashion-MNIST: 60,000 training and 10,000 test pictures of clothes, 28 x 28, in ten classes.
//
// The data come from Debian's package `dataset-fashion-mnist`. Another folder with the same four
// files works too, also with fewer pictures.
//
// Thread safety: plain functions and values.
// Errors: NotFound (names the file and the package), DataLoss (names the damaged file).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"

namespace weft::examples {

inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";
inline constexpr const char* kFashionMnistPackage = "dataset-fashion-mnist";
inline constexpr int64_t kFashionMnistSide = 28;
inline constexpr int64_t kFashionMnistClasses = 10;

struct LabelledImages {
  at::Tensor images;  // uint8 [n, 28, 28]
  at::Tensor labels;  // int64 [n], each below 10
  int64_t size() const { return labels.size(0); }
};

struct FashionMnist {
  LabelledImages train;
  LabelledImages test;
};

// Loads the first `limit` pictures of each half; 0: all.
absl::StatusOr<FashionMnist> load_fashion_mnist(const std::string& folder = kFashionMnistFolder,
                                                int64_t limit = 0);
// Loads one half alone: a server needs no training pictures, and a trainer that does not evaluate
// needs no test pictures.
absl::StatusOr<LabelledImages> load_fashion_mnist_part(const std::string& folder, bool train,
                                                       int64_t limit = 0);

struct Batch {
  at::Tensor images;  // float [n, 1, 28, 28], mean 0 and deviation 1 over the training pictures
  at::Tensor labels;  // int64 [n]
};

Batch make_batch(const LabelledImages& data, const std::vector<size_t>& indices);
// Rows begin .. end-1 in their order, for evaluation.
Batch make_batch(const LabelledImages& data, int64_t begin, int64_t end);

}  // namespace weft::examples
