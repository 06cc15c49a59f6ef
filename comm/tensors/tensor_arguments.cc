#include "weft/comm/tensors/tensor_arguments.h"

#define XXH_INLINE_ALL

#include <cstring>
#include <xxhash.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "absl/strings/str_cat.h"

namespace weft::comm_internal {
namespace {

using Clock = std::chrono::steady_clock;
// Under this guard a copy records no gradient and changes no version, as the group's own writes do.
using BytesOnly = at::AutoDispatchBelowADInplaceOrView;

bool is_dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

bool laid_out_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.strides() == other.strides() || (one.is_contiguous() && other.is_contiguous());
}

}  // namespace

void refuse(const std::string& what) { C10_THROW_ERROR(ValueError, what); }

// ---- DenseTensors

void DenseTensors::check(const at::Tensor& tensor) const {
  WEFT_CHECK_ARGUMENT(tensor.defined(), absl::StrCat(operation_, ": a tensor is undefined"));
  WEFT_CHECK_ARGUMENT(tensor.layout() == at::kStrided && tensor.device().is_cpu(),
                      absl::StrCat(operation_, ": takes strided CPU tensors, not ",
                                   c10::str(tensor.layout(), " ones on ", tensor.device())));
}

void DenseTensors::check_same(const at::Tensor& tensor, const at::Tensor& like) const {
  check(tensor);
  WEFT_CHECK_ARGUMENT(tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(),
                      absl::StrCat(operation_, ": tensors differ: ",
                                   c10::str(like.scalar_type(), like.sizes(), " and ",
                                            tensor.scalar_type(), tensor.sizes())));
}

const at::Tensor& DenseTensors::keep(const at::Tensor& tensor) {
  all_.push_back(tensor);
  return all_.back();
}

at::Tensor DenseTensors::input(const at::Tensor& tensor) {
  check(tensor);
  if (is_dense(tensor)) return keep(tensor);
  const BytesOnly guard;
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  return keep(plain.is_non_overlapping_and_dense() ? plain : plain.contiguous());
}

at::Tensor DenseTensors::stand_in(const at::Tensor& tensor, at::Tensor dense) {
  WEFT_CHECK_ARGUMENT(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                      absl::StrCat(operation_, ": a tensor of shape ", c10::str(tensor.sizes()),
                                   " that is to be written overlaps itself (strides ",
                                   c10::str(tensor.strides()), ")"));
  back_.emplace_back(dense, tensor);
  return keep(dense);
}

at::Tensor DenseTensors::inout(const at::Tensor& tensor) {
  check(tensor);
  if (is_dense(tensor)) return keep(tensor);
  return stand_in(tensor, input(tensor));
}

at::Tensor DenseTensors::output(const at::Tensor& tensor) {
  check(tensor);
  if (is_dense(tensor)) return keep(tensor);
  const BytesOnly guard;
  return stand_in(tensor, at::empty(tensor.sizes(), tensor.options()));
}

at::Tensor DenseTensors::input_like(const at::Tensor& tensor, const at::Tensor& like) {
  check_same(tensor, like);
  if (is_dense(tensor) && laid_out_alike(tensor, like)) return keep(tensor);
  const BytesOnly guard;
  return keep(at::empty_like(like).copy_(tensor));
}

at::Tensor DenseTensors::output_like(const at::Tensor& tensor, const at::Tensor& like) {
  check_same(tensor, like);
  if (is_dense(tensor) && laid_out_alike(tensor, like)) return keep(tensor);
  const BytesOnly guard;
  return stand_in(tensor, at::empty_like(like));
}

at::Tensor DenseTensors::contiguous_input(const at::Tensor& tensor) {
  const at::Tensor dense = input(tensor);
  if (dense.is_contiguous()) return dense;
  const BytesOnly guard;
  return keep(dense.contiguous());
}

at::Tensor DenseTensors::contiguous_output(const at::Tensor& tensor) {
  check(tensor);
  if (is_dense(tensor) && tensor.is_contiguous()) return keep(tensor);
  const BytesOnly guard;
  return stand_in(tensor, at::empty(tensor.sizes(), tensor.options()));
}

std::function<void()> DenseTensors::copy_back() const {
  if (back_.empty()) return nullptr;
  return [back = back_] {
    const BytesOnly guard;
    for (const auto& [from, to] : back) to.copy_(from);
  };
}

// ---- the rest

const at::Tensor& single(const char* operation, const Tensors& tensors) {
  WEFT_CHECK_ARGUMENT(tensors.size() == 1,
                      absl::StrCat(operation, ": takes one tensor, not ", tensors.size()));
  return tensors[0];
}

void check_apart(const char* operation, const at::Tensor& input, const at::Tensor& output,
                 const std::byte* own) {
  const std::byte *in = data_of(input), *out = data_of(output);
  if (input.nbytes() == 0 || output.nbytes() == 0 || (own != nullptr && in == own)) return;
  const std::less<const std::byte*> before;
  WEFT_CHECK_ARGUMENT(!before(in, out + output.nbytes()) || !before(out, in + input.nbytes()),
                      absl::StrCat(operation, ": input and output overlap"));
}

Clock::time_point end_of(std::chrono::milliseconds timeout) {
  const auto now = Clock::now();
  if (timeout == kNoTimeout ||
      timeout >= std::chrono::floor<std::chrono::milliseconds>(Clock::time_point::max() - now)) {
    return Clock::time_point::max();
  }
  return now + timeout;
}

void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  if (from.nbytes() > 0 && data_of(from) != data_of(to)) {
    std::memcpy(data_of(to), data_of(from), from.nbytes());
  }
}

uint64_t fingerprint_of(const Tensors& tensors) {
  std::vector<int64_t> all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(static_cast<int64_t>(tensor.scalar_type()));
    all.push_back(tensor.dim());
    all.insert(all.end(), tensor.sizes().begin(), tensor.sizes().end());
    if (tensor.is_contiguous()) continue;
    all.insert(all.end(), tensor.strides().begin(), tensor.strides().end());
  }
  return XXH3_64bits(all.data(), all.size() * sizeof(int64_t)) | 1;
}

Reduction reduction_of(const char* operation, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return Reduction::kSum;
    case c10d::ReduceOp::AVG:
      return Reduction::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case c10d::ReduceOp::MIN:
      return Reduction::kMin;
    case c10d::ReduceOp::MAX:
      return Reduction::kMax;
    case c10d::ReduceOp::BAND:
      return Reduction::kBitAnd;
    case c10d::ReduceOp::BOR:
      return Reduction::kBitOr;
    case c10d::ReduceOp::BXOR:
      return Reduction::kBitXor;
    default:
      refuse(absl::StrCat(operation, ": this reduction is not supported"));
  }
}

ReduceKernel kernel_for(const char* operation, Reduction reduction, const at::Tensor& tensor) {
  const auto kernel = reduce_kernel(reduction, tensor.scalar_type());
  if (!kernel.ok()) refuse(absl::StrCat(operation, ": ", std::string(kernel.status().message())));
  return *kernel;
}

std::string label_of(const char* operation, const at::Tensor& tensor,
                     std::optional<Reduction> reduction) {
  std::string label = absl::StrCat(
      operation, "(", reduction.has_value() ? std::string(to_string(*reduction)) + ", " : "",
      c10::toString(tensor.scalar_type()), ")");
  if (!tensor.is_contiguous()) absl::StrAppend(&label, c10::str(" strides ", tensor.strides()));
  return label;
}

}  // namespace weft::comm_internal
