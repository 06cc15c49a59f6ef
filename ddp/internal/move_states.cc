#include "weft/ddp/internal/move_states.h"

#include <sstream>

#include <torch/serialize/archive.h>

namespace weft::ddp_internal {

// The types of the states belong to the optimizers. So only serialising can move a state.
void move_states_to_parameters(torch::optim::Optimizer& optimizer) {
  for (const auto& parameters : optimizer.param_groups()) {
    for (const at::Tensor& parameter : parameters.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || parameter.device().is_cpu()) continue;
      torch::serialize::OutputArchive out;
      found->second->serialize(out);
      std::stringstream memory;
      out.save_to(memory);
      torch::serialize::InputArchive in;
      in.load_from(memory, parameter.device());
      found->second->serialize(in);
    }
  }
}

}  // namespace weft::ddp_internal
