// The sampled elements of a float buffer: the client writes new numbers before each call, and
// checks those that come back.
//
// Thread safety: one thread at a time.
// Errors: a buffer of less than kSampledElements floats is a programming error.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "weft/bench/contestants/contestant.h"

namespace weft::bench {

class Stamps {
 public:
  static size_t stride_of(std::span<const float> buffer) {
    return buffer.size() / kSampledElements;
  }

  // Writes numbers that differ from those of the call before.
  void write(std::span<float> buffer) {
    number_ = std::fmod(number_ + 1, 1 << 20);
    const size_t stride = stride_of(buffer);
    for (size_t i = 0; i < kSampledElements; ++i) buffer[i * stride] = element(i);
  }

  // DataLoss: an element of a copy, or of its samples (then with stride 1), is not the one that
  // was written last.
  absl::Status check(std::span<const float> copy, size_t stride) const {
    for (size_t i = 0; i < kSampledElements; ++i) {
      if (copy[i * stride] != element(i)) return absl::DataLossError("wrong data");
    }
    return absl::OkStatus();
  }

 private:
  float element(size_t i) const { return number_ + static_cast<float>(i); }

  float number_ = 0;
};

// Returns the sampled elements of a tensor that has arrived.
inline void take_samples(std::span<const float> tensor,
                         std::span<float, kSampledElements> samples) {
  const size_t stride = Stamps::stride_of(tensor);
  for (size_t i = 0; i < kSampledElements; ++i) samples[i] = tensor[i * stride];
}

// The small call of all contestants: 1 + 2 in each of four elements.
inline constexpr size_t kAddElements = 4;

struct Summands {
  float left[kAddElements] = {1, 1, 1, 1};
  float right[kAddElements] = {2, 2, 2, 2};
};
struct Sum {
  float elements[kAddElements] = {};
};

inline Sum sum_of(const Summands& summands) {
  Sum sum;
  for (size_t i = 0; i < kAddElements; ++i) {
    sum.elements[i] = summands.left[i] + summands.right[i];
  }
  return sum;
}

inline absl::Status check_sum(const Sum& sum) {
  if (sum.elements[0] == 3 && sum.elements[kAddElements - 1] == 3) return absl::OkStatus();
  return absl::DataLossError("wrong sum");
}

}  // namespace weft::bench
