// Compares what ranks are about to do in a training step (DebugLevel::kDetail).
//
// Thread safety: a free function.
// Blocking: it waits for all ranks, no longer than the group's timeout.
// Errors: c10::ValueError on every rank, which names the first difference and its rank; errors of
// the group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

struct StepDescription {
  struct Item {
    std::string name;
    int64_t value;
  };
  std::vector<Item> items;  // with the same names on all ranks
};

// Collective. `shadows`: this rank only takes part for the others, and is not compared.
void verify_step(ProcessGroup& group, const StepDescription& mine, bool shadows, at::Device device);

}  // namespace weft::ddp_internal
