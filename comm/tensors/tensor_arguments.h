// What the calls of the same-host backend take: checks, and tensors as the group can read and write
// them.
//
// Thread safety: free functions; DenseTensors is a value of one thread.
// Errors: c10::ValueError, naming the operation and what is bad.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "weft/comm/same_host/operation.h"
#include "weft/comm/tensors/reduce_kernels.h"

namespace weft::comm_internal {

using Tensors = std::vector<at::Tensor>;

[[noreturn]] void refuse(const std::string& what);

// The text is made only where it is needed.
#define WEFT_CHECK_ARGUMENT(holds, ...)                     \
  do {                                                      \
    if (!(holds)) weft::comm_internal::refuse(__VA_ARGS__); \
  } while (false)

// The tensors of one call. Dense ones (without gaps or overlaps, in any order of dimensions) stand
// for themselves; others, and lazy conj and neg views, have a dense copy, which goes back to where
// it came from by what copy_back() returns.
class DenseTensors {
 public:
  explicit DenseTensors(const char* operation) : operation_(operation) {}

  at::Tensor input(const at::Tensor& tensor);
  at::Tensor inout(const at::Tensor& tensor);
  at::Tensor output(const at::Tensor& tensor);
  // The same, laid out as `like` is, which is dense; of its shape and type.
  at::Tensor input_like(const at::Tensor& tensor, const at::Tensor& like);
  at::Tensor output_like(const at::Tensor& tensor, const at::Tensor& like);
  // The same, laid out row by row.
  at::Tensor contiguous_input(const at::Tensor& tensor);
  at::Tensor contiguous_output(const at::Tensor& tensor);

  // Keeps them all.
  std::shared_ptr<const void> memory() const { return std::make_shared<const Tensors>(all_); }
  // For when the work is done; null if there is nothing to copy.
  std::function<void()> copy_back() const;

 private:
  const at::Tensor& keep(const at::Tensor& tensor);
  void check(const at::Tensor& tensor) const;
  void check_same(const at::Tensor& tensor, const at::Tensor& like) const;
  // It will be written.
  at::Tensor stand_in(const at::Tensor& tensor, at::Tensor dense);

  const char* const operation_;
  Tensors all_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // from, to
};

const at::Tensor& single(const char* operation, const Tensors& tensors);

// They share no memory, but that the input may begin at `own`, where a rank's own part may lie.
void check_apart(const char* operation, const at::Tensor& input, const at::Tensor& output,
                 const std::byte* own = nullptr);

// 0, and what no clock can count: never.
std::chrono::steady_clock::time_point end_of(std::chrono::milliseconds timeout);

inline std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}
inline Operation::Part part_of(const at::Tensor& tensor) {
  return {data_of(tensor), tensor.nbytes()};
}
// The bytes; both are laid out alike.
void copy_bytes(const at::Tensor& from, const at::Tensor& to);

// What must be equal on all ranks beside the first tensor's shape; never 0.
uint64_t fingerprint_of(const Tensors& tensors);

Reduction reduction_of(const char* operation, const c10d::ReduceOp& op);
ReduceKernel kernel_for(const char* operation, Reduction reduction, const at::Tensor& tensor);

// "all_reduce(sum, Float)", and for what is not contiguous, how it lies.
std::string label_of(const char* operation, const at::Tensor& tensor,
                     std::optional<Reduction> reduction = std::nullopt);

}  // namespace weft::comm_internal
