// Wrong modules, one a line; tests/rpc/compile_fail/check.py wants each line's error to say what
// its comment says.
// clang-format off
#include <torch/nn/module.h>

#include "weft/dist_optim/hosted_module.h"

namespace wrong {

struct Right : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, at::Tensor y) const;
};
struct Scaled : torch::nn::Module {
  at::Tensor forward(at::Tensor x, int64_t times);
};
struct Named : torch::nn::Module {
  at::Tensor forward(const std::string& layer);
};
struct Many : torch::nn::Module {
  at::Tensor forward(at::Tensor a, at::Tensor b, at::Tensor c, at::Tensor d, double e) const;
};
WEFT_REGISTER_MODULE(Right);
WEFT_REGISTER_MODULE(Scaled);                      // argument 2 of this module's forward is no tensor
WEFT_REGISTER_MODULE(Named);                       // argument 1 of this module's forward is no tensor
WEFT_REGISTER_MODULE(Many);                        // ForwardTakesNoTensor<...> says which

void forwards(const weft::HostedModule<Right>& module, const at::Tensor& t) {
  module.forward(t, t);
  module.forward(t, 5);                            // argument 2 of HostedModule::forward is no tensor
  module.forward_async("x", t);                    // argument 1 of HostedModule::forward is no tensor
  module.forward_all(t, t, 2.5);                   // InputIsNoTensor<...> says which
}

}  // namespace wrong
