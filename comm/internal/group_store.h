// Opens the store over which a process group's ranks find each other, and bounds how long calls on
// it may take.
//
// Thread safety: free functions; a StoreCaller is used by one thread at a time. Blocking: until the
// store answers, no longer than the options' timeout (a call: its deadline) and two seconds more.
// Errors: c10::ValueError for a method that is none, or variables that are missing or bad;
// c10::DistNetworkError naming the address that does not answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "weft/async/serial_thread.h"

namespace weft {

struct ProcessGroupOptions;

namespace comm_internal {

struct GroupStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint32_t attempt = 0;  // how often the launcher has started this rank again
};

// By options.init_method. With env:// rank and world size come from the environment where the
// options leave them open, and are filled in; keys are those of the job and its group epoch.
//   env://             MASTER_ADDR, MASTER_PORT; rank 0 serves unless the launcher does
//   tcp://HOST:PORT    rank 0 serves
//   file:///PATH       a file that all ranks see
GroupStore open_group_store(ProcessGroupOptions& options);

// For errors: "rendezvous store at HOST:PORT", also of one below prefixes.
std::string name_of(const c10::intrusive_ptr<c10d::Store>& store);

// Makes calls on a store, on a thread of its own: c10d waits for ever for a server that is stopped
// or whose host has gone, and cannot be interrupted. A thread that hangs there is left behind, so a
// call owns all that it touches.
class StoreCaller {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // False: `call` has not come back by two seconds after its deadline, and no further one will.
  // Throws what `call` throws. What `call` holds is destroyed before this returns, unless it hangs.
  bool run(std::function<void()> call, TimePoint deadline);

 private:
  // Shared with the call that runs.
  const std::shared_ptr<SerialThread> thread_ =
      std::make_shared<SerialThread>(SerialThread::AtEnd::kDrop, "calls on the group's store");
};

}  // namespace comm_internal
}  // namespace weft
