// Opens the store over which a process group's ranks find each other.
//
// Thread safety: a free function. Blocking: until the store answers, no longer than the options'
// timeout. Errors: c10::ValueError for a method that is none, or variables that are missing or bad;
// c10::DistNetworkError naming the address that does not answer.
#pragma once

#include <cstdint>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/comm/process_group.h"

namespace weft::internal {

struct GroupStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint32_t life = 0;  // how often the launcher has started this rank again
};

// By options.init_method. With env:// rank and world size come from the environment where the
// options leave them open, and are filled in; keys are those of the job and its group epoch.
//   env://             MASTER_ADDR, MASTER_PORT; rank 0 serves unless the launcher does
//   tcp://HOST:PORT    rank 0 serves
//   file:///PATH       a file that all ranks see
GroupStore open_group_store(ProcessGroupOptions& options);

}  // namespace weft::internal
