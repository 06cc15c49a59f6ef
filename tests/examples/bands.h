// Pictures that a model learns in a few steps, for tests of the job.
#pragma once

#include <cstdint>

#include <ATen/ops/randint.h>

#include "weft/examples/parameter_server/model.h"
#include "weft/examples/support/fashion_mnist.h"

namespace weft::testing {

// Noise, and a bright band whose height is the label.
inline examples::LabelledImages bands(int64_t count) {
  examples::LabelledImages data{
      at::randint(100, {count, examples::kImageSide, examples::kImageSide}, at::kByte),
      at::randint(examples::kClasses, {count}, at::kLong)};
  for (int64_t i = 0; i < count; ++i) {
    data.images[i].narrow(0, 4 + 2 * data.labels[i].item<int64_t>(), 2).fill_(255);
  }
  return data;
}

}  // namespace weft::testing
