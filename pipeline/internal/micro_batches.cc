#include "weft/pipeline/internal/micro_batches.h"

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"

namespace weft::pipeline_internal {

int64_t batch_size(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : 0;
}

std::vector<at::Tensor> divided(const at::Tensor& whole, int64_t size, int micro_batches,
                                const char* what) {
  if (batch_size(whole) != size || micro_batches < 1 || size < micro_batches) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat(what, " of size ", batch_size(whole), " in dimension 0 do not divide into ",
                     micro_batches, " micro-batches of the batch of ", size)));
  }
  return whole.detach().tensor_split(micro_batches);
}

}  // namespace weft::pipeline_internal
