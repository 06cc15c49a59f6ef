#include "weft/comm/internal/same_host_operations.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/comm/tensors/sparse_sum.h"

namespace weft::comm_internal {

using c10d::OpType;

// ---- calls that reduce

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

// ---- calls that only move data

SameHostBackend::WorkPtr SameHostBackend::broadcast(Tensors& tensors,
                                                    const c10d::BroadcastOptions& options) {
  const char* const name = "broadcast";
  const at::Tensor& given = single(name, tensors);
  const int root = root_of(name, options.rootRank);
  DenseTensors dense(name);
  const at::Tensor tensor = rank_ == root ? dense.input(given) : dense.output(given);
  Operation operation = moving(name, tensor);
  operation.root = root;
  if (rank_ == root) {
    operation.parts = {part_of(tensor)};
    operation.resident = arenas_.find(data_of(tensor), tensor.nbytes());
  } else {
    operation.pulls = {{root, 0, tensor.nbytes(), data_of(tensor)}};
  }
  return start({OpType::BROADCAST, "weft:broadcast", tensors, options.timeout},
               std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  WEFT_CHECK_ARGUMENT(outputs.size() == 1, "all_gather: takes one list of outputs");
  return gather_all({OpType::ALLGATHER, "weft:all_gather", {}, options.timeout}, "all_gather",
                    outputs, {single("all_gather", inputs)});
}

SameHostBackend::WorkPtr SameHostBackend::allgather_coalesced(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return gather_all({OpType::ALLGATHER_COALESCED, "weft:all_gather_coalesced", {}, options.timeout},
                    "all_gather_coalesced", outputs, inputs);
}

// outputs[i] receives inputs[i] of all ranks.
SameHostBackend::WorkPtr SameHostBackend::gather_all(Call call, const char* name,
                                                     const std::vector<Tensors>& outputs,
                                                     const Tensors& inputs) {
  WEFT_CHECK_ARGUMENT(!inputs.empty() && outputs.size() == inputs.size(),
                      absl::StrCat(name, ": takes as many lists of outputs as inputs"));
  DenseTensors dense(name);
  Tensors all;
  for (const at::Tensor& input : inputs) all.push_back(dense.input(input));
  Operation operation = moving(name, all[0]);
  uint64_t offset = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    WEFT_CHECK_ARGUMENT(outputs[i].size() == static_cast<size_t>(size_),
                        absl::StrCat(name, ": takes ", size_, " outputs for each input"));
    operation.parts.push_back(part_of(all[i]));
    take_from_all(operation, dense, outputs[i], all[i], offset);
    offset += all[i].nbytes();
    call.outputs.insert(call.outputs.end(), outputs[i].begin(), outputs[i].end());
  }
  if (all.size() > 1) operation.fingerprint = fingerprint_of(all);
  return start(std::move(call), std::move(operation), dense);
}

void SameHostBackend::take_from_all(Operation& operation, DenseTensors& dense,
                                    const Tensors& outputs, const at::Tensor& input,
                                    uint64_t offset) const {
  for (int other = 0; other < size_; ++other) {
    const at::Tensor output = dense.output_like(outputs[other], input);
    if (other == rank_) {
      copy_bytes(input, output);
    } else {
      operation.pulls.push_back({other, offset, input.nbytes(), data_of(output)});
    }
  }
}

SameHostBackend::WorkPtr SameHostBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& options) {
  return gather_into({OpType::_ALLGATHER_BASE, "weft:_all_gather_base", {output}, options.timeout},
                     {input});
}

SameHostBackend::WorkPtr SameHostBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return gather_into(
      {OpType::COALESCED, "weft:all_gather_into_tensor_coalesced", outputs, options.timeout},
      inputs);
}

SameHostBackend::WorkPtr SameHostBackend::gather_into(Call call, const Tensors& inputs) {
  const char* const name = "all_gather_into_tensor";
  WEFT_CHECK_ARGUMENT(!inputs.empty() && call.outputs.size() == inputs.size(),
                      absl::StrCat(name, ": takes as many outputs as inputs"));
  DenseTensors dense(name);
  Tensors all;
  for (const at::Tensor& input : inputs) all.push_back(dense.contiguous_input(input));
  Operation operation = moving(name, all[0]);
  uint64_t offset = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor& input = all[i];
    const at::Tensor output = dense.contiguous_output(call.outputs[i]);
    WEFT_CHECK_ARGUMENT(
        input.scalar_type() == output.scalar_type() && output.numel() == input.numel() * size_,
        absl::StrCat(name, ": the output has ", size_, " times ", input.numel(), " elements of ",
                     c10::toString(input.scalar_type())));
    const uint64_t size = input.nbytes();
    check_apart(name, input, output, data_of(output) + size * static_cast<uint64_t>(rank_));
    for (int other = 0; other < size_; ++other) {
      std::byte* to = data_of(output) + size * static_cast<uint64_t>(other);
      if (other != rank_) {
        operation.pulls.push_back({other, offset, size, to});
      } else if (size > 0 && to != data_of(input)) {
        std::memcpy(to, data_of(input), size);
      }
    }
    operation.parts.push_back(part_of(input));
    offset += size;
  }
  if (all.size() > 1) operation.fingerprint = fingerprint_of(all);
  return start(std::move(call), std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  const char* const name = "gather";
  const int root = root_of(name, options.rootRank);
  DenseTensors dense(name);
  const at::Tensor input = dense.input(single(name, inputs));
  Operation operation = moving(name, input);
  operation.root = root;
  Call call = {OpType::GATHER, "weft:gather", {}, options.timeout};
  if (rank_ == root) {
    WEFT_CHECK_ARGUMENT(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(size_),
                        absl::StrCat(name, ": the root takes one list of ", size_, " outputs"));
    call.outputs = outputs[0];
    take_from_all(operation, dense, outputs[0], input, 0);
  } else {
    WEFT_CHECK_ARGUMENT(outputs.empty(), absl::StrCat(name, ": only the root has outputs"));
    operation.parts = {part_of(input)};
  }
  return start(std::move(call), std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                  const c10d::ScatterOptions& options) {
  const char* const name = "scatter";
  const int root = root_of(name, options.rootRank);
  DenseTensors dense(name);
  const at::Tensor output = dense.output(single(name, outputs));
  Operation operation = moving(name, output);
  operation.root = root;
  if (rank_ == root) {
    WEFT_CHECK_ARGUMENT(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                        absl::StrCat(name, ": the root takes one list of ", size_, " inputs"));
    for (int other = 0; other < size_; ++other) {
      const at::Tensor input = dense.input_like(inputs[0][other], output);
      operation.parts.push_back(part_of(input));
      if (other == rank_) copy_bytes(input, output);
    }
  } else {
    WEFT_CHECK_ARGUMENT(inputs.empty(), absl::StrCat(name, ": only the root has inputs"));
    const uint64_t size = output.nbytes();
    operation.pulls = {{root, size * static_cast<uint64_t>(rank_), size, data_of(output)}};
  }
  return start({OpType::SCATTER, "weft:scatter", outputs, options.timeout}, std::move(operation),
               dense);
}

SameHostBackend::WorkPtr SameHostBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& options) {
  const char* const name = "all_to_all";
  DenseTensors dense(name);
  const at::Tensor in = dense.contiguous_input(input), out = dense.contiguous_output(output);
  WEFT_CHECK_ARGUMENT(in.scalar_type() == out.scalar_type(),
                      absl::StrCat(name, ": takes tensors of one type"));
  check_apart(name, in, out);
  Operation operation = moving(name, in);
  operation.shape.clear();  // ranks may have different shapes
  operation.parts = {part_of(in)};
  operation.shares = shares_of("input", in, input_splits);
  const std::vector<uint64_t> taken = shares_of("output", out, output_splits);
  WEFT_CHECK_ARGUMENT(taken[rank_] == operation.shares[rank_],
                      absl::StrCat(name, ": rank ", rank_, " sends itself ",
                                   operation.shares[rank_], " bytes and takes ", taken[rank_]));
  uint64_t at = 0, own = 0;
  for (int before = 0; before < rank_; ++before) own += operation.shares[before];
  for (int other = 0; other < size_; ++other) {
    std::byte* to = data_of(out) + at;
    if (other != rank_) {
      operation.pulls.push_back({other, 0, taken[other], to, true});
    } else if (taken[other] > 0) {
      std::memcpy(to, data_of(in) + own, taken[other]);
    }
    at += taken[other];
  }
  return start({OpType::ALLTOALL_BASE, "weft:all_to_all", {output}, options.timeout},
               std::move(operation), dense);
}

SameHostBackend::WorkPtr SameHostBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                   const c10d::AllToAllOptions& options) {
  const char* const name = "all_to_all";
  WEFT_CHECK_ARGUMENT(
      outputs.size() == static_cast<size_t>(size_) && inputs.size() == outputs.size(),
      absl::StrCat(name, ": takes ", size_, " inputs and as many outputs"));
  DenseTensors dense(name);
  Operation operation;
  for (int other = 0; other < size_; ++other) {
    const at::Tensor input = dense.contiguous_input(inputs[other]);
    const at::Tensor output = dense.contiguous_output(outputs[other]);
    if (other == 0) operation.label = label_of(name, input);
    WEFT_CHECK_ARGUMENT(input.scalar_type() == inputs[0].scalar_type() &&
                            output.scalar_type() == inputs[0].scalar_type(),
                        absl::StrCat(name, ": all tensors have one type"));
    operation.parts.push_back(part_of(input));
    operation.shares.push_back(input.nbytes());
    if (other != rank_) {
      operation.pulls.push_back({other, 0, output.nbytes(), data_of(output), true});
      continue;
    }
    WEFT_CHECK_ARGUMENT(input.sizes() == output.sizes(),
                        absl::StrCat(name, ": rank ", rank_, "'s own tensors differ: ",
                                     c10::str(input.sizes(), " and ", output.sizes())));
    copy_bytes(input, output);
  }
  return start({OpType::ALLTOALL, "weft:all_to_all", outputs, options.timeout},
               std::move(operation), dense);
}

// The number of bytes for each rank. Without splits all ranks get the same number.
std::vector<uint64_t> SameHostBackend::shares_of(const char* which, const at::Tensor& tensor,
                                                 const std::vector<int64_t>& splits) const {
  const auto ranks = static_cast<uint64_t>(size_);
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    WEFT_CHECK_ARGUMENT(rows % size_ == 0,
                        absl::StrCat("all_to_all: the ", which, " has ", rows, " rows, which ",
                                     size_, " ranks cannot share"));
    return std::vector<uint64_t>(ranks, tensor.nbytes() / ranks);
  }
  WEFT_CHECK_ARGUMENT(splits.size() == ranks,
                      absl::StrCat("all_to_all: ", which, " splits are for ", splits.size(),
                                   " ranks, not ", size_));
  int64_t sum = 0;
  for (const int64_t split : splits) {
    WEFT_CHECK_ARGUMENT(split >= 0 && split <= rows - sum,
                        absl::StrCat("all_to_all: ", which, " splits do not fit ", rows,
                                     " rows: ", absl::StrJoin(splits, ", ")));
    sum += split;
  }
  WEFT_CHECK_ARGUMENT(sum == rows, absl::StrCat("all_to_all: ", which, " splits are of ", sum,
                                                " rows, not ", rows));
  std::vector<uint64_t> shares;
  const uint64_t row = rows == 0 ? 0 : tensor.nbytes() / static_cast<uint64_t>(rows);
  for (const int64_t split : splits) shares.push_back(static_cast<uint64_t>(split) * row);
  return shares;
}

}  // namespace weft::comm_internal
