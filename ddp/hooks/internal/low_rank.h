// The linear algebra of PowerSGD, and the random numbers of its first guesses.
//
// All ranks must get the same bits from the same input: nothing here depends on the rank.
//
// Thread safety: free functions; a SeedSequence belongs to one thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include <ATen/core/Tensor.h>

namespace weft::ddp_internal {

// Makes the columns of each matrix of a batch [batch, rows, columns <= rows] orthonormal, in place:
// by Gram-Schmidt up to two columns and for half precision, else by a QR factorisation. A column
// that lies in the span of those before it becomes zero (with QR: any direction). `epsilon` is
// added to the norms.
void orthogonalize(const at::Tensor& matrices, double epsilon);

// Seeds for at::Generator: the numbers that numpy.random.RandomState(seed).randint(10**9) gives,
// as Python's hook draws them, so that both begin with the same Q.
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
