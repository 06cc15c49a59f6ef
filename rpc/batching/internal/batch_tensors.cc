#include "weft/rpc/batching/internal/batch_tensors.h"

#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::rpc_internal {

void ShapeOfCall::operator()(const at::Tensor& tensor) {
  const auto refuse = [&](auto... text) {
    status = absl::InvalidArgumentError(absl::StrCat(text...));
  };
  if (!status.ok()) return;
  if (!tensor.defined()) {
    numbers.push_back(-1);
    return;
  }
  if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_quantized()) {
    refuse("a tensor of layout ", c10::str(tensor.layout()), " and type ",
           c10::toString(tensor.scalar_type()),
           " cannot be part of a batch: only dense ones can, that are not quantized");
    return;
  }
  ++tensors;
  requires_grad |= tensor.requires_grad();
  numbers.push_back(static_cast<int64_t>(tensor.scalar_type()));
  numbers.push_back(static_cast<int64_t>(tensor.device().type()));
  numbers.push_back(tensor.device().index());
  numbers.push_back(tensor.dim());
  at::IntArrayRef sizes = tensor.sizes();
  if (join == BatchJoin::kConcatenate) {
    if (tensor.dim() == 0) {
      refuse(
          "a tensor without dimensions cannot be concatenated with others: stack them, or give it "
          "a first dimension");
      return;
    }
    if (rows < 0) rows = sizes[0];
    if (rows != sizes[0]) {
      refuse("the tensors of one call of a batch have ", rows, " and ", sizes[0],
             " rows; all need the same first dimension");
      return;
    }
    sizes = sizes.slice(1);
  }
  numbers.insert(numbers.end(), sizes.begin(), sizes.end());
}

size_t tensor_bytes(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_nested()) return 0;
  if (tensor.layout() == at::kSparse) {
    return tensor._indices().nbytes() + tensor._values().nbytes();
  }
  return tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
}

at::Tensor join_tensors(std::vector<at::Tensor> tensors, BatchJoin join) {
  at::Tensor& first = tensors.front();
  if (!first.defined()) return first;
  if (tensors.size() == 1) return join == BatchJoin::kStack ? first.unsqueeze(0) : first;
  return join == BatchJoin::kStack ? at::stack(tensors) : at::cat(tensors);
}

absl::StatusOr<std::vector<at::Tensor>> divide_tensor(const at::Tensor& tensor,
                                                      const BatchRows& rows,
                                                      const std::string& batcher) {
  const size_t calls = rows.of.size();
  if (!tensor.defined()) return std::vector<at::Tensor>(calls);
  const int64_t together = std::accumulate(rows.of.begin(), rows.of.end(), int64_t{0});
  if (tensor.dim() == 0 || tensor.size(0) != together) {
    return absl::InternalError(absl::StrCat("batcher '", batcher,
                                            "': the function returned a tensor of shape [",
                                            absl::StrJoin(tensor.sizes(), ", "), "] for ", calls,
                                            " calls; its first dimension must be ", together));
  }
  if (rows.join == BatchJoin::kStack) return tensor.unbind(0);
  return tensor.split_with_sizes(rows.of, 0);
}

absl::Status wrong_count(const std::string& batcher, size_t results, size_t calls) {
  return absl::InternalError(absl::StrCat("batcher '", batcher, "': the function returned ",
                                          results, " results for ", calls, " calls"));
}

}  // namespace weft::rpc_internal
