#include "weft/examples/pipeline_resnet50/loss.h"

#include <torch/torch.h>

#include "weft/rpc/function.h"

namespace weft::examples {

at::Tensor squared_error(const at::Tensor& scores, const at::Tensor& labels) {
  return torch::mse_loss(scores, torch::one_hot(labels, scores.size(1)).to(scores.dtype()));
}
WEFT_REGISTER_FUNCTION(squared_error);

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(scores, labels);
}
WEFT_REGISTER_FUNCTION(cross_entropy);

}  // namespace weft::examples
