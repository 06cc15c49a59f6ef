#include "weft/comm/tensors/sparse_sum.h"

#include <cstring>
#include <new>
#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "weft/comm/same_host/control_block.h"
#include "weft/comm/tensors/tensor_arguments.h"

namespace weft::comm_internal {
namespace {

constexpr const char* kName = "all_reduce";

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

}  // namespace

SparseSum::SparseSum(const at::Tensor& tensor, Reduction reduction, int rank, int size)
    : tensor_(tensor), reduction_(reduction), rank_(rank), brought_(size) {
  WEFT_CHECK_ARGUMENT(
      tensor.defined() && tensor.layout() == at::kSparse && tensor.device().is_cpu(),
      absl::StrCat(kName, ": takes sparse COO tensors on the CPU here"));
  WEFT_CHECK_ARGUMENT(reduction == Reduction::kSum || reduction == Reduction::kAverage,
                      absl::StrCat(kName, ": of sparse tensors there are sum and average, no ",
                                   std::string(to_string(reduction))));
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor whole = tensor.coalesce();
  own_ = {whole._indices().contiguous(), whole._values().resolve_conj().resolve_neg().contiguous()};
  own_count_ = whole._nnz();
  kernel_for(kName, reduction, own_.values);  // refuses the mean of integers
}

Operation SparseSum::operation() {
  Operation operation;
  operation.label = absl::StrCat(label_of(kName, own_.values, reduction_), " sparse in ",
                                 tensor_.sparse_dim(), " dims");
  operation.shape = tensor_.sizes().vec();
  if (operation.shape.size() > kMostDims) operation.shape = {tensor_.numel()};
  operation.parts = {{reinterpret_cast<std::byte*>(&own_count_), sizeof(own_count_)},
                     part_of(own_.indices),
                     part_of(own_.values)};
  operation.plan = [this](std::span<const uint64_t> bytes, std::vector<Operation::Pull>& pulls) {
    return plan(bytes, pulls);
  };
  return operation;
}

absl::Status SparseSum::plan(std::span<const uint64_t> bytes, std::vector<Operation::Pull>& pulls) {
  for (size_t other = 0; other < bytes.size(); ++other) {
    if (static_cast<int>(other) == rank_) continue;
    Brought& brought = brought_[other];
    brought.size = bytes[other];
    brought.data.reset(new (std::nothrow) std::byte[bytes[other]]);
    if (brought.data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for the ", bytes[other], " bytes that rank ", other, " brings"));
    }
    pulls.push_back({static_cast<int>(other), 0, bytes[other], brought.data.get()});
  }
  return absl::OkStatus();
}

SparseSum::Entries SparseSum::entries_of(int rank) const {
  if (rank == rank_) return own_;
  const Brought& brought = brought_[rank];
  const uint64_t index_bytes = static_cast<uint64_t>(tensor_.sparse_dim()) * sizeof(int64_t);
  std::vector<int64_t> shape = own_.values.sizes().vec();
  shape[0] = 1;
  const uint64_t value_bytes =
      static_cast<uint64_t>(c10::multiply_integers(shape)) * own_.values.element_size();
  int64_t count = -1;
  if (brought.size >= sizeof(count)) std::memcpy(&count, brought.data.get(), sizeof(count));
  const uint64_t each = index_bytes + value_bytes, left = brought.size - sizeof(count);
  if (count < 0 || (each > 0 && static_cast<uint64_t>(count) > left / each) ||
      left != static_cast<uint64_t>(count) * each) {
    C10_THROW_ERROR(DistBackendError,
                    absl::StrCat(kName, ": rank ", rank, " brought ", brought.size,
                                 " bytes, which are not the entries of a sparse tensor"));
  }
  shape[0] = count;
  std::byte* const indices = brought.data.get() + sizeof(count);
  return {at::from_blob(indices, {tensor_.sparse_dim(), count}, at::kLong),
          at::from_blob(indices + static_cast<uint64_t>(count) * index_bytes, shape,
                        own_.values.options())};
}

void SparseSum::write_result() {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::ScalarType type = tensor_.scalar_type();
  std::vector<at::Tensor> indices, values;
  for (size_t rank = 0; rank < brought_.size(); ++rank) {
    const Entries entries = entries_of(static_cast<int>(rank));
    indices.push_back(entries.indices);
    values.push_back(is_half(type) ? entries.values.to(at::kFloat) : entries.values);
  }
  const at::Tensor all = at::cat(indices, 1), added = at::cat(values, 0);
  // The indices come from other processes and decide where data is written, so check them.
  at::_validate_sparse_coo_tensor_args(all, added, tensor_.sizes());
  // coalesce() adds up entries with equal indices in their order, which is the order of the ranks.
  at::Tensor sum = at::sparse_coo_tensor(all, added, tensor_.sizes()).coalesce();
  if (reduction_ == Reduction::kAverage) sum.div_(static_cast<int64_t>(brought_.size()));
  tensor_.copy_(sum.to(type));
  brought_.clear();
}

}  // namespace weft::comm_internal
