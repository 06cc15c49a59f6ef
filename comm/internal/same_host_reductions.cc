// The calls of SameHostBackend that reduce.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/comm/internal/same_host_backend.h"
#include "weft/comm/tensors/sparse_sum.h"

namespace weft::comm_internal {

using c10d::OpType;

SameHostBackend::WorkPtr SameHostBackend::allreduce(Tensors& tensors,
                                                    const c10d::AllreduceOptions& options) {
  const char* const name = "all_reduce";
  const at::Tensor& given = single(name, tensors);
  Call call = {OpType::ALLREDUCE, "weft:all_reduce", tensors, options.timeout};
  if (given.defined() && given.layout() == at::kSparse) {
    return allreduce_sparse_sum(given, std::move(call), options.reduceOp);
  }
  const Reduction reduction = reduction_of(name, options.reduceOp);
  DenseTensors dense(name);
  Operation operation = reducing(name, reduction, dense.inout(given));
  operation.sum = Operation::Sum::kEverywhere;
  return start(std::move(call), std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::allreduce_sparse(Tensors& tensors,
                                                           const c10d::AllreduceOptions& options) {
  return allreduce_sparse_sum(
      single("all_reduce_sparse", tensors),
      {OpType::_ALLREDUCE_SPARSE, "weft:all_reduce_sparse", tensors, options.timeout},
      options.reduceOp);
}

SameHostBackend::WorkPtr SameHostBackend::allreduce_sparse_sum(const at::Tensor& tensor, Call call,
                                                               const c10d::ReduceOp& op) {
  const auto sum =
      std::make_shared<SparseSum>(tensor, reduction_of("all_reduce", op), rank_, size_);
  std::vector<Operation> operations(1);
  operations[0] = sum->operation();
  operations[0].memory = sum;
  return start(std::move(call), std::move(operations), [sum] { sum->write_result(); });
}

SameHostBackend::WorkPtr SameHostBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  const char* const name = "all_reduce_coalesced";
  WEFT_CHECK_ARGUMENT(!tensors.empty(), absl::StrCat(name, ": takes at least one tensor"));
  const Reduction reduction = reduction_of(name, options.reduceOp);
  DenseTensors dense(name);
  Tensors all;
  for (const at::Tensor& tensor : tensors) all.push_back(dense.inout(tensor));
  Operation operation = reducing(name, reduction, all[0]);
  operation.shape = {static_cast<int64_t>(all.size())};
  operation.parts.clear();
  operation.resident.reset();
  for (const at::Tensor& tensor : all) {
    WEFT_CHECK_ARGUMENT(tensor.scalar_type() == all[0].scalar_type(),
                        absl::StrCat(name, ": all tensors have one type"));
    operation.parts.push_back(part_of(tensor));
    if (operation.shape.size() < kMostDims) operation.shape.push_back(tensor.numel());
  }
  operation.fingerprint = fingerprint_of(all);
  operation.sum = Operation::Sum::kEverywhere;
  return start({OpType::ALLREDUCE_COALESCED, "weft:all_reduce_coalesced", tensors, options.timeout},
               std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::reduce(Tensors& tensors,
                                                 const c10d::ReduceOptions& options) {
  const char* const name = "reduce";
  const at::Tensor& given = single(name, tensors);
  const int root = root_of(name, options.rootRank);
  const Reduction reduction = reduction_of(name, options.reduceOp);
  DenseTensors dense(name);
  const at::Tensor tensor = rank_ == root ? dense.inout(given) : dense.input(given);
  Operation operation = reducing(name, reduction, tensor);
  operation.root = root;
  operation.sum = Operation::Sum::kHere;
  if (rank_ == root) {
    operation.count = static_cast<uint64_t>(tensor.numel());
    operation.sum_to = data_of(tensor);
  }
  return start({OpType::REDUCE, "weft:reduce", tensors, options.timeout}, std::move(operation),
               dense);
}

SameHostBackend::WorkPtr SameHostBackend::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
  const char* const name = "reduce_scatter";
  WEFT_CHECK_ARGUMENT(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                      absl::StrCat(name, ": takes one list of ", size_, " inputs"));
  const Reduction reduction = reduction_of(name, options.reduceOp);
  DenseTensors dense(name);
  Tensors all;
  for (const at::Tensor& input : inputs[0]) all.push_back(dense.input(input));
  const at::Tensor output = dense.output_like(single(name, outputs), all[rank_]);
  Operation operation = reducing(name, reduction, output);
  operation.shape.clear();  // the parts of the ranks may have different sizes
  operation.parts.clear();
  operation.resident.reset();
  operation.sum = Operation::Sum::kHere;
  for (int other = 0; other < size_; ++other) {
    const at::Tensor& input = all[other];
    WEFT_CHECK_ARGUMENT(input.scalar_type() == output.scalar_type(),
                        absl::StrCat(name, ": all tensors have one type"));
    if (other < rank_) operation.first += static_cast<uint64_t>(input.numel());
    operation.parts.push_back(part_of(input));
    if (operation.shape.size() < kMostDims) operation.shape.push_back(input.numel());
    check_apart(name, input, output, other == rank_ ? data_of(output) : nullptr);
  }
  operation.fingerprint = fingerprint_of(all);
  operation.count = static_cast<uint64_t>(output.numel());
  operation.sum_to = data_of(output);
  return start({OpType::REDUCE_SCATTER, "weft:reduce_scatter", outputs, options.timeout},
               std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return scatter_sums(
      {OpType::_REDUCE_SCATTER_BASE, "weft:_reduce_scatter_base", {output}, options.timeout},
      {input}, options.reduceOp);
}

SameHostBackend::WorkPtr SameHostBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return scatter_sums(
      {OpType::COALESCED, "weft:reduce_scatter_tensor_coalesced", outputs, options.timeout}, inputs,
      options.reduceOp);
}

SameHostBackend::WorkPtr SameHostBackend::scatter_sums(Call call, const Tensors& inputs,
                                                       const c10d::ReduceOp& op) {
  const char* const name = "reduce_scatter_tensor";
  WEFT_CHECK_ARGUMENT(!inputs.empty() && call.outputs.size() == inputs.size(),
                      absl::StrCat(name, ": takes as many outputs as inputs"));
  const Reduction reduction = reduction_of(name, op);
  DenseTensors dense(name);
  std::vector<Operation> operations;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor input = dense.contiguous_input(inputs[i]);
    const at::Tensor output = dense.contiguous_output(call.outputs[i]);
    WEFT_CHECK_ARGUMENT(
        input.scalar_type() == output.scalar_type() && input.numel() == output.numel() * size_,
        absl::StrCat(name, ": the input has ", size_, " times ", output.numel(), " elements of ",
                     c10::toString(output.scalar_type())));
    Operation operation = reducing(name, reduction, input);
    operation.sum = Operation::Sum::kHere;
    operation.count = static_cast<uint64_t>(output.numel());
    operation.first = operation.count * static_cast<uint64_t>(rank_);
    operation.sum_to = data_of(output);
    check_apart(name, input, output);
    operations.push_back(std::move(operation));
  }
  return start(std::move(call), std::move(operations), dense);
}

Operation SameHostBackend::reducing(const char* name, Reduction reduction,
                                    const at::Tensor& tensor) const {
  Operation operation = moving(name, tensor);
  operation.label = label_of(name, tensor, reduction);
  operation.kernel = kernel_for(name, reduction, tensor);
  operation.element_bytes = tensor.element_size();
  operation.parts = {part_of(tensor)};
  if (tensor.nbytes() > kSlotBytes) {
    operation.resident = arenas_.find(data_of(tensor), tensor.nbytes());
  }
  return operation;
}

}  // namespace weft::comm_internal
