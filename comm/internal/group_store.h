// Opens the store over which a process group's ranks find each other, and limits how long calls on
// it may take.
//
// Thread safety: free functions. Only one thread at a time may use a StoreCaller.
// Blocking: until the store answers, at most for the options' timeout (a call: until its deadline)
// and two seconds more.
// Errors: c10::ValueError for an unknown init_method and for missing or invalid variables.
// c10::DistNetworkError names the address that does not answer.
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

// A call on a store waits no longer, even if its options say so.
inline constexpr std::chrono::milliseconds kLongestStoreTimeout = std::chrono::hours(24);

struct GroupStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint32_t attempt = 0;  // this rank's attempt: how often the launcher has restarted it
};

// Opens the store that options.init_method names:
//   env://             The store of the job (store/job/job_store.h).
//   tcp://HOST:PORT    The same, which rank 0 hosts there.
//   file:///PATH       The store is a file that all ranks see.
// With env://, rank and world size come from the environment if the options leave them open, and
// are written into `options`. The store's keys then have a prefix for the job and its group epoch.
GroupStore open_group_store(ProcessGroupOptions& options);

// Names the store for errors: "rendezvous store at HOST:PORT". Looks below PrefixStores.
std::string name_of(const c10::intrusive_ptr<c10d::Store>& store);

// Makes calls on a store, on a thread of its own. c10d waits without limit for a server that is
// stopped or whose host is gone, and cannot be interrupted. A thread that hangs in such a call is
// left behind. So a call must own everything that it uses.
class StoreCaller {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Time that a store gets beyond a call's deadline, so that it can report the timeout itself.
  static constexpr std::chrono::milliseconds kGrace{2000};

  // False: `call` has not returned when its deadline and the grace were over, and no later call
  // will return. Throws what `call` throws. Destroys what `call` holds before it returns, unless
  // `call` hangs.
  bool run(std::function<void()> call, TimePoint deadline,
           std::chrono::milliseconds grace = kGrace);

 private:
  // Shared with the call that runs.
  const std::shared_ptr<SerialThread> thread_ =
      std::make_shared<SerialThread>(SerialThread::AtEnd::kDrop, "calls on the group's store");
};

}  // namespace comm_internal
}  // namespace weft
