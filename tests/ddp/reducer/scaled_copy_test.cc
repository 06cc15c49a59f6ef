#include "weft/ddp/reducer/scaled_copy.h"

#include <limits>

#include <gtest/gtest.h>

namespace weft::ddp_internal {
namespace {

constexpr int64_t kMany = 300'001;  // large, and no multiple of a register

TEST(ScaledCopyTest, HasTheBitsOfAMultiplicationWhereverItBegins) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t begin : {0, 1, 3, 7}) {
      for (const int64_t count : {int64_t{0}, int64_t{5}, kMany}) {
        for (const double factor : {1.0, 0.5, 1.0 / 3}) {
          const at::Tensor memory = at::zeros({begin + count + 1}, type);
          const at::Tensor from = at::randn({count + begin}, type).narrow(0, begin, count);
          scaled_copy(memory.narrow(0, begin, count), from, factor);
          EXPECT_TRUE(at::equal(memory.narrow(0, begin, count), from * factor))
              << type << " from " << begin << ", " << count << " times " << factor;
          EXPECT_EQ(memory[begin + count].item<double>(), 0);
          EXPECT_FALSE(memory.narrow(0, 0, begin).any().item<bool>());
        }
      }
    }
  }
}

TEST(ScaledCopyTest, KeepsWhatIsNotFinite) {
  at::Tensor from = at::ones({kMany});
  from[7] = std::numeric_limits<float>::quiet_NaN();
  from[kMany - 1] = std::numeric_limits<float>::infinity();
  const at::Tensor to = at::empty({kMany});
  scaled_copy(to, from, 0.5);
  EXPECT_TRUE(to[7].isnan().item<bool>());
  EXPECT_TRUE(to[kMany - 1].isinf().item<bool>());
}

TEST(ScaledCopyTest, TakesOtherLayoutsAndTypes) {
  const at::Tensor from = at::randn({40, 50, 60, 3}, at::kDouble);
  const at::Tensor to = at::empty({40, 50, 60, 3}, at::kFloat).permute({0, 3, 1, 2});
  scaled_copy(to, from.permute({0, 3, 1, 2}), 0.25);
  EXPECT_TRUE(at::equal(to, (from.permute({0, 3, 1, 2}) * 0.25).to(at::kFloat)));
  const at::Tensor last = at::randn({40, 50, 60, 3}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor same = at::empty_like(last);
  scaled_copy(same, last, 0.25);
  EXPECT_TRUE(at::equal(same, last * 0.25));
  const at::Tensor negative = at::_neg_view(at::ones({kMany}));
  const at::Tensor plain = at::empty({kMany});
  scaled_copy(plain, negative, 2);
  EXPECT_TRUE(at::equal(plain, at::full({kMany}, -2.0)));
}

}  // namespace
}  // namespace weft::ddp_internal
