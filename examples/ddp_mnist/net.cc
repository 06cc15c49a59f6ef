#include "weft/examples/ddp_mnist/net.h"

#include <ATen/ops/relu.h>

#include "weft/examples/support/fashion_mnist.h"

namespace weft::examples {

NetImpl::NetImpl()
    : first_(torch::nn::Conv2dOptions(1, 16, 5).stride(2).padding(2)),    // to 14 x 14
      second_(torch::nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)),  // to 7 x 7
      hidden_(32 * 7 * 7, 64),
      output_(64, kFashionMnistClasses) {
  register_module("first", first_);
  register_module("second", second_);
  register_module("hidden", hidden_);
  register_module("output", output_);
}

at::Tensor NetImpl::forward(const at::Tensor& images) {
  const at::Tensor x = at::relu(second_->forward(at::relu(first_->forward(images))));
  return output_->forward(at::relu(hidden_->forward(x.flatten(1))));
}

}  // namespace weft::examples
