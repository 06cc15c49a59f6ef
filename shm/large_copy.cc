#include "weft/shm/large_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weft {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

#if defined(__SSE2__)
constexpr size_t kLine = 64;

void copy_past_caches(std::byte* to, const std::byte* from, size_t size) {
  // Streaming stores need aligned addresses, and write whole lines.
  const size_t before = std::min(size, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, before);
  size_t done = before;
  for (; size - done >= kLine; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + done, from + done, size - done);
  _mm_sfence();  // a release store does not order streaming stores
}
#else
void copy_past_caches(std::byte* to, const std::byte* from, size_t size) {
  std::memcpy(to, from, size);
}
#endif

}  // namespace

void large_copy(std::byte* to, const std::byte* from, size_t size) {
  const auto copy = size >= kPastCaches
                        ? copy_past_caches
                        : [](std::byte* a, const std::byte* b, size_t n) { std::memcpy(a, b, n); };
  while (size > kPiece) {
    copy(to, from, kPiece);
    to += kPiece;
    from += kPiece;
    size -= kPiece;
    std::this_thread::yield();
  }
  copy(to, from, size);
}

}  // namespace weft
