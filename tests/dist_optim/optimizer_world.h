// Workers with references and distributed autograd in one process, and a module that they host.
//
// Thread safety: free functions.
#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/dist_optim/hosted_module.h"
#include "weft/rpc/function.h"
#include "weft/tests/support/runtime_world.h"

namespace weft::testing {

// Its values depend on `seed` only, so a copy in the test is the same module.
class Layer : public torch::nn::Module {
 public:
  Layer(int64_t in, int64_t out, int64_t seed);
  at::Tensor forward(at::Tensor x);

  at::Tensor weight, bias;
  at::Tensor calls;  // a buffer; each forward adds 1 to it
};
WEFT_REGISTER_MODULE(Layer, int64_t, int64_t, int64_t);

// Options of a RuntimeWorld whose workers have references and distributed autograd.
inline RuntimeWorld::Options with_autograd(size_t workers) {
  return {.workers = workers, .autograd = true};
}

}  // namespace weft::testing
