// A c10d backend for CPU tensors of ranks on several hosts: shared memory within a host, Gloo
// between hosts.
//
// all_reduce, broadcast and barrier run in three steps: within each host, between one leader a
// host (its lowest rank), within each host again; so each byte crosses the network once a host, not
// once a rank. All ranks get the same bits; fp16 and bf16 are added up in fp32. These operations
// run one after another on a thread of the backend's. The other operations, and sparse tensors, are
// Gloo's among all ranks.
//
// Thread safety: all methods may be called from any thread; the order of calls must be the same on
// all ranks. Lifetime: what is not done when it ends is waited for, no longer than its timeout.
// Blocking: creating, until all ranks have come; Work::wait. The rest only starts. A timeout counts
// from when the operations before have ended. A rank waits that long for the others of its host,
// and once they have come, that long again and half a second for its leader: that one's own time
// may have begun as late, and the other hosts have all of it.
// Errors: c10::ValueError for arguments that cannot be; c10::DistBackendError from Work::wait, with
// the words of the same-host backend (which counts the ranks of a host from 0) or Gloo. A rank that
// is lost, or calls something else, fails the work of its host at once, and through its leader that
// of the other hosts; a rank that only does not come, within the timeout. Why a leader failed is in
// the errors of its host's others too, up to some 200 characters of it. What has failed once is
// over, as far as those three operations go: make a new group of those who are left. Where sizes
// differ between ranks in one of the other operations, Gloo ends the process.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft {

struct HierarchicalOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::chrono::microseconds spin{100};  // within a host
};

// `hosts`: of each rank, what names its host.
c10::intrusive_ptr<c10d::Backend> create_hierarchical_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<std::string>& hosts,
    const HierarchicalOptions& options = {});

}  // namespace weft
