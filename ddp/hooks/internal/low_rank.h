// Computes the linear algebra of PowerSGD, and the random seeds of its first Q.
//
// All ranks must get the same bits from the same input, so nothing here depends on the rank.
//
// Thread safety: free functions. A SeedSequence belongs to one thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include <ATen/core/Tensor.h>

namespace weft::ddp_internal {

// Makes the columns of each matrix of a batch [batch, rows, columns <= rows] orthonormal, in place.
// It uses Gram-Schmidt for up to two columns and for half precision, and a QR factorisation
// otherwise. A column in the span of the earlier ones becomes zero (with QR: any direction).
// Gram-Schmidt adds `epsilon` to the norms.
void orthogonalize(const at::Tensor& matrices, double epsilon);

// Seeds for at::Generator. They are the numbers of numpy.random.RandomState(seed).randint(10**9),
// as Python's hook draws them. So both begin with the same Q.
class SeedSequence {
 public:
  explicit SeedSequence(uint32_t seed) : engine_(seed) {}
  uint64_t next();

  std::string state() const;
  void set_state(const std::string& state);

 private:
  std::mt19937 engine_;
};

}  // namespace weft::ddp_internal
