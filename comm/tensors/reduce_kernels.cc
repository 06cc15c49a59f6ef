#include "weft/comm/tensors/reduce_kernels.h"

#include <algorithm>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include "absl/strings/str_cat.h"

namespace weft::comm_internal {
namespace {

// The type in which elements of type T are reduced.
template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<c10::Half> {
  using type = float;
};
template <>
struct Wide<c10::BFloat16> {
  using type = float;
};

template <class T>
struct RealOf {
  using type = T;
};
template <class T>
struct RealOf<c10::complex<T>> {
  using type = T;
};
template <class T>
using Real = typename RealOf<T>::type;

// Reads a boolean as a byte, because another process may have written any value there.
template <class W, class T>
W wide(const T* source, size_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return reinterpret_cast<const uint8_t*>(source)[i] != 0;
  } else {
    return static_cast<W>(source[i]);
  }
}

// Converts an integer to its unsigned type, because signed overflow is undefined.
template <class T>
auto round_about(T value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, bool>) return a || b;
    return static_cast<T>(round_about(a) + round_about(b));
  }
};
struct Average : Sum {};
struct Product {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, bool>) {
      return a && b;
    } else if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(int)) {
      return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    } else {
      return static_cast<T>(round_about(a) * round_about(b));
    }
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct BitAnd {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

// Lets the compiler vectorize: no iteration reads what another one writes. A target is one of the
// sources, or overlaps none of them.
#if defined(__clang__)
#define WEFT_EACH_FOR_ITSELF _Pragma("clang loop vectorize(assume_safety)")
#else
#define WEFT_EACH_FOR_ITSELF _Pragma("GCC ivdep")
#endif

template <class T>
const T* elements(const std::byte* from, size_t begin) {
  return reinterpret_cast<const T*>(from) + begin;
}
template <class T>
T* elements(std::byte* from, size_t begin) {
  return reinterpret_cast<T*>(from) + begin;
}

template <class T, class Op>
[[gnu::always_inline]] inline void reduce_two(const std::byte* one, const std::byte* other,
                                              std::byte* target, std::byte* second_target,
                                              size_t count) {
  using W = typename Wide<T>::type;
  const Op op;
  const T *a = elements<T>(one, 0), *b = elements<T>(other, 0);
  T *to = elements<T>(target, 0), *also_to = elements<T>(second_target, 0);
  WEFT_EACH_FOR_ITSELF
  for (size_t i = 0; i < count; ++i) {
    W value = op(wide<W>(a, i), wide<W>(b, i));
    if constexpr (std::is_same_v<Op, Average>) value = value / static_cast<Real<W>>(2);
    to[i] = also_to[i] = static_cast<T>(value);
  }
}

// Reduces block by block, so that a block is still in the L1 cache when it is written. A block is
// complete before it is written, so a target may be a source. Several targets need no more reads.
template <class T, class Op>
[[gnu::always_inline]] inline void reduce_many(std::span<const std::byte* const> sources,
                                               std::span<std::byte* const> targets, size_t count) {
  using W = typename Wide<T>::type;
  constexpr size_t kBlock = 4096 / sizeof(W);
  alignas(64) W block[kBlock];
  const Op op;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    const T* first = elements<T>(sources[0], begin);
    if (sources.size() == 1) {
      for (size_t i = 0; i < size; ++i) block[i] = wide<W>(first, i);
    } else {
      const T* second = elements<T>(sources[1], begin);
      for (size_t i = 0; i < size; ++i) block[i] = op(wide<W>(first, i), wide<W>(second, i));
    }
    for (size_t s = 2; s < sources.size(); ++s) {
      const T* source = elements<T>(sources[s], begin);
      for (size_t i = 0; i < size; ++i) block[i] = op(block[i], wide<W>(source, i));
    }
    if constexpr (std::is_same_v<Op, Average>) {
      const auto all = static_cast<Real<W>>(sources.size());
      for (size_t i = 0; i < size; ++i) block[i] = block[i] / all;
    }
    for (std::byte* one : targets) {
      T* target = elements<T>(one, begin);
      for (size_t i = 0; i < size; ++i) target[i] = static_cast<T>(block[i]);
    }
  }
}

template <class T, class Op>
[[gnu::always_inline]] inline void reduce_here(std::span<const std::byte* const> sources,
                                               std::span<std::byte* const> targets, size_t count) {
  if (sources.size() == 2 && (targets.size() == 1 || targets.size() == 2)) {
    reduce_two<T, Op>(sources[0], sources[1], targets.front(), targets.back(), count);
  } else {
    reduce_many<T, Op>(sources, targets, count);
  }
}

template <class T, class Op>
void reduce_plain(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                  size_t count) {
  reduce_here<T, Op>(sources, targets, count);
}

#if defined(__x86_64__)
// The same with wider registers, which is twice as fast if the data is in the caches. (Stores that
// bypass the caches are slower here, because the cache lines were read just before.)
template <class T, class Op>
[[gnu::target("avx2")]] void reduce_wide(std::span<const std::byte* const> sources,
                                         std::span<std::byte* const> targets, size_t count) {
  reduce_here<T, Op>(sources, targets, count);
}

template <class T, class Op>
ReduceKernel reduce() {
  return __builtin_cpu_supports("avx2") ? reduce_wide<T, Op> : reduce_plain<T, Op>;
}
#else
template <class T, class Op>
ReduceKernel reduce() {
  return reduce_plain<T, Op>;
}
#endif

template <class T>
ReduceKernel kernel_of(Reduction reduction) {
  constexpr bool kComplex = c10::is_complex<T>::value;
  constexpr bool kWhole = std::is_integral_v<T>;  // also true for bool
  switch (reduction) {
    case Reduction::kSum:
      return reduce<T, Sum>();
    case Reduction::kProduct:
      return reduce<T, Product>();
    case Reduction::kAverage:
      if constexpr (!kWhole) return reduce<T, Average>();
      return nullptr;
    case Reduction::kMin:
      if constexpr (!kComplex) return reduce<T, Min>();
      return nullptr;
    case Reduction::kMax:
      if constexpr (!kComplex) return reduce<T, Max>();
      return nullptr;
    case Reduction::kBitAnd:
      if constexpr (kWhole) return reduce<T, BitAnd>();
      return nullptr;
    case Reduction::kBitOr:
      if constexpr (kWhole) return reduce<T, BitOr>();
      return nullptr;
    case Reduction::kBitXor:
      if constexpr (kWhole) return reduce<T, BitXor>();
      return nullptr;
  }
  return nullptr;
}

ReduceKernel kernel_of(Reduction reduction, c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte:
      return kernel_of<uint8_t>(reduction);
    case c10::ScalarType::Char:
      return kernel_of<int8_t>(reduction);
    case c10::ScalarType::Short:
      return kernel_of<int16_t>(reduction);
    case c10::ScalarType::Int:
      return kernel_of<int32_t>(reduction);
    case c10::ScalarType::Long:
      return kernel_of<int64_t>(reduction);
    case c10::ScalarType::Bool:
      return kernel_of<bool>(reduction);
    case c10::ScalarType::Half:
      return kernel_of<c10::Half>(reduction);
    case c10::ScalarType::BFloat16:
      return kernel_of<c10::BFloat16>(reduction);
    case c10::ScalarType::Float:
      return kernel_of<float>(reduction);
    case c10::ScalarType::Double:
      return kernel_of<double>(reduction);
    case c10::ScalarType::ComplexFloat:
      return kernel_of<c10::complex<float>>(reduction);
    case c10::ScalarType::ComplexDouble:
      return kernel_of<c10::complex<double>>(reduction);
    default:
      return nullptr;
  }
}

}  // namespace

std::string_view to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kAverage:
      return "average";
    case Reduction::kProduct:
      return "product";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kBitAnd:
      return "bitwise and";
    case Reduction::kBitOr:
      return "bitwise or";
    case Reduction::kBitXor:
      return "bitwise xor";
  }
  return "unknown";
}

absl::StatusOr<ReduceKernel> reduce_kernel(Reduction reduction, c10::ScalarType type) {
  const ReduceKernel kernel = kernel_of(reduction, type);
  if (kernel != nullptr) return kernel;
  return absl::InvalidArgumentError(absl::StrCat("there is no ", std::string(to_string(reduction)),
                                                 " of ", c10::toString(type), " tensors"));
}

}  // namespace weft::comm_internal
