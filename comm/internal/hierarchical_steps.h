// Runs a rank's part in an operation among hosts: within its host, between the host leaders, and
// within its host again.
//
// Thread safety: one operation at a time; host() and abort() may be called from any thread.
// Blocking: all operations, as long as their WaitLimits allows.
// Errors: run() throws c10::DistBackendError. After the first error all operations fail, and the
// other ranks of the host learn the reason.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "absl/base/thread_annotations.h"
#include "weft/base/mutex.h"
#include "weft/comm/internal/same_host_operations.h"

namespace weft::comm_internal {

// The position of a rank among the hosts.
struct Places {
  std::vector<int> host;     // the ranks of this host, in order
  std::vector<int> leaders;  // the lowest rank of every host, in order of rank
  int in_host = 0;           // this rank's index in `host`
  int host_index = 0;        // this host's index in `leaders`
  std::vector<int> host_of;  // by rank: the index of its host
};

// `hosts` holds for each rank a text that identifies its host.
Places places_of(int rank, const std::vector<std::string>& hosts);

// Limits how long a rank waits in one operation. The time begins with the constructor, which runs
// when the operation's turn has come: the operations before may have waited for a late rank.
class WaitLimits {
 public:
  explicit WaitLimits(std::chrono::milliseconds timeout);

  std::chrono::milliseconds within_host() const { return left() + grace_; }
  std::chrono::milliseconds between_hosts() const { return left(); }
  // Call this when every rank of this host, also the leader, has begun the operation. The leader's
  // time for the other hosts then expires at most one timeout from now, so the other ranks wait
  // that long. The grace gives the leader's result, or the reason of its failure, time to arrive.
  void host_has_met(bool leads);

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::milliseconds left() const;  // at least 1 ms

  const std::chrono::milliseconds timeout_;
  std::chrono::milliseconds grace_{0};
  Clock::time_point deadline_;
};

class HierarchicalSteps {
 public:
  using Op = c10d::ReduceOp::RedOpType;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  // `leaders` is the backend between the host leaders; null if this rank is none.
  HierarchicalSteps(int size, Places places, c10::intrusive_ptr<SameHostBackend> host,
                    BackendPtr leaders);

  // Calls `operation`, which calls the functions below. If an earlier operation has failed, throws
  // its reason instead.
  void run(const std::string& label, const std::function<void()>& operation);

  // `label` describes the operation. Label and shape must be the same on all host leaders.
  void all_reduce(const std::string& label, const at::Tensor& tensor, Op op, WaitLimits& waits);
  void broadcast(const std::string& label, const at::Tensor& tensor, int root, WaitLimits& waits);
  void barrier(const std::string& label, WaitLimits& waits);

  // Fails the work within the host, and all later operations. Work between the hosts that has begun
  // runs on until its timeout, because Gloo cannot cancel it.
  void abort() ABSL_LOCKS_EXCLUDED(mutex_);

  SameHostBackend& host() const { return *host_; }

 private:
  BackendPtr leaders() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool leads() const { return places_.in_host == 0; }
  void meet(const WaitLimits& waits);
  // Broadcasts `value` within this host, from the rank with index `root` in Places::host.
  void spread(Tensors& value, int root, const WaitLimits& waits);
  void agree(const std::string& label, const at::Tensor& tensor, const WaitLimits& waits);

  const int size_;
  const Places places_;
  const c10::intrusive_ptr<SameHostBackend> host_;
  mutable Mutex mutex_;
  BackendPtr leaders_ ABSL_GUARDED_BY(mutex_);  // null after the first error
  // The first error; empty if there was none. Only run() uses it, and one thread at a time calls
  // run().
  std::string failure_;
};

}  // namespace weft::comm_internal
