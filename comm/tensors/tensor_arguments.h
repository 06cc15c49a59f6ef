// Checks the arguments of collectives, and gives tensors a form that a group can read and write.
//
// Thread safety: free functions. A DenseTensors belongs to one thread.
// Errors: c10::ValueError names the operation and the fault.
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

// Throws c10::ValueError if `holds` is false. The text is made only then.
#define WEFT_CHECK_ARGUMENT(holds, ...)                     \
  do {                                                      \
    if (!(holds)) weft::comm_internal::refuse(__VA_ARGS__); \
  } while (false)

// Holds the tensors of one call in dense form: without gaps or overlaps, in any order of
// dimensions. A dense tensor is used as it is. Any other tensor, and a lazy conj or neg view, gets
// a dense copy. The function that copy_back() returns copies the results back into the original
// tensors.
class DenseTensors {
 public:
  explicit DenseTensors(const char* operation) : operation_(operation) {}

  at::Tensor input(const at::Tensor& tensor);
  at::Tensor inout(const at::Tensor& tensor);
  at::Tensor output(const at::Tensor& tensor);
  // The same with the layout of `like`, which must be dense. `tensor` must have its shape and type.
  at::Tensor input_like(const at::Tensor& tensor, const at::Tensor& like);
  at::Tensor output_like(const at::Tensor& tensor, const at::Tensor& like);
  // The same with a contiguous layout.
  at::Tensor contiguous_input(const at::Tensor& tensor);
  at::Tensor contiguous_output(const at::Tensor& tensor);

  // Keeps all these tensors alive.
  std::shared_ptr<const void> memory() const { return std::make_shared<const Tensors>(all_); }
  // Returns the function to call when the work is done; null if there is nothing to copy.
  std::function<void()> copy_back() const;

 private:
  const at::Tensor& keep(const at::Tensor& tensor);
  void check(const at::Tensor& tensor) const;
  void check_same(const at::Tensor& tensor, const at::Tensor& like) const;
  // Uses `dense` in place of `tensor`, which copy_back() will write.
  at::Tensor stand_in(const at::Tensor& tensor, at::Tensor dense);

  const char* const operation_;
  Tensors all_;
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;  // from, to
};

const at::Tensor& single(const char* operation, const Tensors& tensors);

// Checks that input and output share no memory. An input that begins at `own`, where a rank's own
// part may lie, is accepted.
void check_apart(const char* operation, const at::Tensor& input, const at::Tensor& output,
                 const std::byte* own = nullptr);

// The deadline after `timeout` from now. Never (TimePoint::max) if it is 0 or beyond the clock's
// range.
std::chrono::steady_clock::time_point end_of(std::chrono::milliseconds timeout);

inline std::byte* data_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}
inline Operation::Part part_of(const at::Tensor& tensor) {
  return {data_of(tensor), tensor.nbytes()};
}
// Copies the bytes. Both tensors must have the same layout.
void copy_bytes(const at::Tensor& from, const at::Tensor& to);

// A hash of the types, shapes and layouts, which must be equal on all ranks; never 0.
uint64_t fingerprint_of(const Tensors& tensors);

Reduction reduction_of(const char* operation, const c10d::ReduceOp& op);
ReduceKernel kernel_for(const char* operation, Reduction reduction, const at::Tensor& tensor);

// "all_reduce(sum, Float)", with the strides if the tensor is not contiguous.
std::string label_of(const char* operation, const at::Tensor& tensor,
                     std::optional<Reduction> reduction = std::nullopt);

}  // namespace weft::comm_internal
