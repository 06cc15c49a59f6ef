#include "weft/shm/large_copy.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(LargeCopyTest, CopiesEachByteAndNoOther) {
  constexpr size_t kMiB = size_t{1} << 20;
  constexpr size_t kMargin = 128;
  constexpr std::byte kUntouched{0xee};
  std::mt19937_64 random(1);
  std::vector<std::byte> from(kPastCaches + 2 * kMiB + 2 * kMargin);
  for (size_t i = 0; i + 8 <= from.size(); i += 8) {
    const uint64_t number = random();
    std::memcpy(&from[i], &number, sizeof(number));
  }
  for (const size_t size : {size_t{0}, size_t{1}, kMiB - 1, kMiB, kMiB + 1, kPastCaches - 1,
                            kPastCaches, kPastCaches + 1, kPastCaches + kMiB + 63}) {
    for (const size_t shift : {0, 1, 16, 63}) {
      std::vector<std::byte> to(size + 2 * kMargin, kUntouched);
      const std::byte* source = from.data() + (shift * 7) % kMargin;
      large_copy(to.data() + kMargin + shift, source, size);
      ASSERT_EQ(std::memcmp(to.data() + kMargin + shift, source, size), 0) << size << " " << shift;
      for (size_t i = 0; i < kMargin + shift; ++i) ASSERT_EQ(to[i], kUntouched);
      for (size_t i = kMargin + shift + size; i < to.size(); ++i) ASSERT_EQ(to[i], kUntouched);
    }
  }
}

}  // namespace
}  // namespace weft
