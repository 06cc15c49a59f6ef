// Makes a c10d backend for CPU tensors of ranks on several hosts. It uses shared memory within a
// host and Gloo between hosts.
//
// all_reduce, broadcast and barrier run in three steps: within each host, between the host leaders,
// and within each host again. A host leader is the lowest rank of its host. So each byte crosses
// the network once per host, not once per rank. All ranks get the same bits. fp16 and bf16 are
// added up in fp32. These three operations run one after another on a thread of the backend. Gloo
// runs the other operations, and all_reduce of sparse tensors, among all ranks.
//
// Thread safety: all methods may be called from any thread. The order of calls must be the same on
// all ranks.
// Lifetime: the destructor waits for work that is not done, at most until its timeout.
// Blocking: creation, until all ranks have come; Work::wait; monitoredBarrier; the destructor. All
// other calls only start an operation.
//
// Timeouts of the three operations: the time begins when the operations before are done. Within it
// a rank waits for the other ranks of its host. Once they have come, it waits one timeout more and
// half a second for its leader. The reason: the leader's time may have begun only then, and the
// leader may need all of it for the other hosts.
//
// Errors: c10::ValueError for invalid arguments. c10::DistBackendError from Work::wait, with the
// text of the same-host backend (which counts the ranks of a host from 0) or of Gloo. For the three
// operations:
//   If a rank dies or calls another operation, the work of its host fails at once. Through the host
//   leader the work of the other hosts fails too.
//   If a rank only does not come, the work fails within the timeout.
//   The errors of a host's other ranks also say why their leader failed, in up to some 200
//   characters.
//   After one failure all three fail for good. Make a new group of the ranks that are left.
// If sizes differ between ranks in one of the other operations, Gloo ends the process.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

struct HierarchicalOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::chrono::microseconds spin{100};  // SameHostOptions::spin, within a host
};

// `hosts` holds for each rank a text that identifies its host.
c10::intrusive_ptr<c10d::Backend> create_hierarchical_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<std::string>& hosts,
    const HierarchicalOptions& options = {});

}  // namespace weft
