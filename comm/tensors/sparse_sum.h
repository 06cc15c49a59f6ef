// The sum or mean of the sparse tensors of all ranks.
//
// Each rank brings the entries of its tensor; all of them put everybody's together in rank order
// and add them up in the same way, so all get the same bits. fp16 and bf16 are added up in fp32.
//
// Thread safety: none; the operation's plan is called once, before write_result().
// Errors: c10::ValueError for tensors that cannot be; c10::DistBackendError from write_result()
// where what a rank brought makes no sense, naming it.
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
  // `tensor` is read now, and written by write_result().
  SparseSum(const at::Tensor& tensor, Reduction reduction, int rank, int size);

  // Borrows this.
  Operation operation();
  // Once the operation is done.
  void write_result();

 private:
  struct Entries {
    at::Tensor indices;  // [sparse dims, entries]
    at::Tensor values;
  };
  // What a rank brings: the number of its entries, their indices, their values.
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
  std::vector<Brought> brought_;  // by rank; none of this one
};

}  // namespace weft::comm_internal
