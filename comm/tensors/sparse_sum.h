// Computes the sum or mean of the sparse tensors of all ranks.
//
// Each rank contributes the entries of its tensor. All ranks put all entries together in rank order
// and add them up in the same way. So all ranks get the same bits. fp16 and bf16 are added up in
// fp32.
//
// Thread safety: none. The operation's plan is called once, before write_result().
// Errors: c10::ValueError for invalid tensors. write_result() throws c10::DistBackendError if a
// contribution has the wrong size, and names the rank. It throws LibTorch's c10::Error if an index
// is out of range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "weft/comm/same_host/operation.h"
#include "weft/comm/tensors/reduce_kernels.h"

namespace weft::comm_internal {

class SparseSum {
 public:
  // Reads `tensor` now. write_result() writes it.
  SparseSum(const at::Tensor& tensor, Reduction reduction, int rank, int size);

  // The operation refers to this object, which must outlive it.
  Operation operation();
  // Call it when the operation is done.
  void write_result();

 private:
  struct Entries {
    at::Tensor indices;  // [sparse dims, entries]
    at::Tensor values;
  };
  // The contribution of a rank: the number of its entries, their indices, their values.
  struct Brought {
    std::unique_ptr<std::byte[]> data;
    uint64_t size = 0;
  };

  absl::Status plan(std::span<const uint64_t> bytes, std::vector<Operation::Pull>& pulls);
  Entries entries_of(int rank) const;

  const at::Tensor tensor_;
  const Reduction reduction_;
  const int rank_;
  Entries own_;
  int64_t own_count_;
  std::vector<Brought> brought_;  // by rank; empty for this one
};

}  // namespace weft::comm_internal
