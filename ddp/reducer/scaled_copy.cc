#include "weft/ddp/reducer/scaled_copy.h"

#include <cstddef>
#include <cstdint>

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::ddp_internal {
namespace {

#if defined(__x86_64__)
// Bytes. Smaller gradients are still in the caches when they are added up.
constexpr size_t kLarge = 256 << 10;

struct Floats {
  using T = float;
  static constexpr size_t kWidth = 8;
  [[gnu::target("avx2")]] static void move(T* to, const T* from, T factor) {
    _mm256_stream_ps(to, _mm256_mul_ps(_mm256_loadu_ps(from), _mm256_set1_ps(factor)));
  }
};
struct Doubles {
  using T = double;
  static constexpr size_t kWidth = 4;
  [[gnu::target("avx2")]] static void move(T* to, const T* from, T factor) {
    _mm256_stream_pd(to, _mm256_mul_pd(_mm256_loadu_pd(from), _mm256_set1_pd(factor)));
  }
};

template <class Vector>
[[gnu::target("avx2")]] void stream(void* target, const void* source, size_t count, double scale) {
  using T = typename Vector::T;
  constexpr size_t kAlignment = Vector::kWidth * sizeof(T);
  T* to = static_cast<T*>(target);
  const T* from = static_cast<const T*>(source);
  const T* const end = from + count;
  const auto factor = static_cast<T>(scale);
  while (from != end && reinterpret_cast<uintptr_t>(to) % kAlignment != 0) *to++ = *from++ * factor;
  for (; static_cast<size_t>(end - from) >= Vector::kWidth;
       to += Vector::kWidth, from += Vector::kWidth) {
    Vector::move(to, from, factor);
  }
  while (from != end) *to++ = *from++ * factor;
  _mm_sfence();  // before another rank is told that the data is there
}

bool streamed(const at::Tensor& to, const at::Tensor& from, double factor) {
  if (to.nbytes() < kLarge || !to.is_cpu() || !from.is_cpu() || from.is_neg() ||
      from.strides() != to.strides() || !to.is_non_overlapping_and_dense() ||
      !__builtin_cpu_supports("avx2")) {
    return false;
  }
  const auto count = static_cast<size_t>(to.numel());
  if (to.scalar_type() == at::kFloat && from.scalar_type() == at::kFloat) {
    stream<Floats>(to.mutable_data_ptr(), from.const_data_ptr(), count, factor);
  } else if (to.scalar_type() == at::kDouble && from.scalar_type() == at::kDouble) {
    stream<Doubles>(to.mutable_data_ptr(), from.const_data_ptr(), count, factor);
  } else {
    return false;
  }
  return true;
}
#else
bool streamed(const at::Tensor&, const at::Tensor&, double) { return false; }
#endif

}  // namespace

void scaled_copy(const at::Tensor& to, const at::Tensor& from, double factor) {
  if (streamed(to, from, factor)) return;
  if (factor == 1) {
    to.copy_(from);
  } else {
    at::Tensor target = to;
    at::mul_out(target, from, at::native::wrapped_scalar_tensor(factor));
  }
}

}  // namespace weft::ddp_internal
