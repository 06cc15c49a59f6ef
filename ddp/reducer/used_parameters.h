// Lets the ranks tell each other which parameters they used in a pass.
//
// Thread safety: none. The reducer calls it in a turn, after the last turn of a pass, or when no
// pass runs.
// Blocking: wait() waits for the other ranks, no longer than the group's timeout.
// Errors: those of the group, thrown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/comm/process_group.h"

namespace weft::ddp_internal {

class UsedParameters {
 public:
  // Collective. Starts the exchange. `here` says by parameter whether this rank used it (1 or 0).
  // The exchange needs tensors on `device`.
  void share(ProcessGroup& group, const std::vector<int32_t>& here, at::Device device);
  // Waits until the exchange is over, if one was started.
  void wait();
  // Forgets the result. An exchange that still runs is given up.
  void forget();

  bool known() const { return known_; }  // an exchange is over, and was not forgotten
  // No rank used the parameter. Only after wait().
  bool nowhere(size_t parameter) const;

 private:
  at::Tensor counts_;  // int32, by parameter: the number of ranks that used it
  c10::intrusive_ptr<c10d::Work> work_;
  bool known_ = false;
};

}  // namespace weft::ddp_internal
