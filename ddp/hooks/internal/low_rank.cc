#include "weft/ddp/hooks/internal/low_rank.h"

#include <sstream>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

namespace weft::ddp_internal {
namespace {

constexpr int64_t kMaxGramSchmidt = 2;  // columns
constexpr uint32_t kSeeds = 1'000'000'000;
constexpr uint32_t kSeedMask = (1u << 30) - 1;

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  for (int64_t i = 0; i < matrices.size(2); ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    // Twice: if a column is nearly in the span of the others, the first pass leaves only rounding
    // noise, which need not be orthogonal to them.
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t j = 0; j < i; ++j) {
        const at::Tensor other = matrices.narrow(2, j, 1);
        column.sub_((other * column).sum(1, /*keepdim=*/true) * other);
      }
    }
    const at::Tensor norm = at::linalg_vector_norm(column, 2, 1, /*keepdim=*/true);
    column.copy_(at::where(norm == 0, column, column / (norm + epsilon)));
  }
}

}  // namespace

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  const bool half = matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16;
  if (half || matrices.size(2) <= kMaxGramSchmidt) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

uint64_t SeedSequence::next() {
  for (;;) {
    const uint32_t drawn = engine_() & kSeedMask;
    if (drawn < kSeeds) return drawn;
  }
}

std::string SeedSequence::state() const {
  std::ostringstream text;
  text << engine_;
  return text.str();
}

void SeedSequence::set_state(const std::string& state) {
  std::istringstream text(state);
  text >> engine_;
}

}  // namespace weft::ddp_internal
