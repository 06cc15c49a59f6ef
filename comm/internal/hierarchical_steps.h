// A rank's part in an operation among hosts: within its host, between the leaders of the hosts,
// within its host again.
//
// Thread safety: one operation at a time; host() may be called from any thread.
// Blocking: all operations, as long as their Patience says.
// Errors: run() throws c10::DistBackendError. After the first one nothing goes on; the other ranks
// of the host are told why.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "weft/comm/internal/same_host_backend.h"

namespace weft::comm_internal {

// Where a rank is: its host's ranks in order, and the lowest rank of every host.
struct Places {
  std::vector<int> host;     // ranks of this host
  std::vector<int> leaders;  // by host, in order of rank
  int in_host = 0;           // this rank's index in `host`
  int host_index = 0;        // of this host in `leaders`
  std::vector<int> host_of;  // by rank, the index of its host
};

// `hosts`: of each rank, what names its host.
Places places_of(int rank, const std::vector<std::string>& hosts);

// How long a rank waits in one operation, from its making on: when the operation's turn has come,
// as those before it may have waited for a rank that was late.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds timeout);

  std::chrono::milliseconds within_host() const { return left() + grace_; }
  std::chrono::milliseconds between_hosts() const { return left(); }
  // Every rank of this host has begun, the leader too: so its time for the other hosts ends no
  // later than a timeout from now, whenever this rank's own began. The grace is for its result, or
  // for why it failed, to come.
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

  // `leaders`: null for a rank that leads no host.
  HierarchicalSteps(int size, Places places, c10::intrusive_ptr<SameHostBackend> host,
                    BackendPtr leaders);

  // Calls `operation`, which calls those below, unless an earlier one has failed.
  void run(const std::string& label, const std::function<void()>& operation);

  // `label`: what the operation of all leaders must have in common, beside the shape.
  void all_reduce(const std::string& label, const at::Tensor& tensor, Op op, Patience& patience);
  void broadcast(const std::string& label, const at::Tensor& tensor, int root, Patience& patience);
  void barrier(const std::string& label, Patience& patience);

  SameHostBackend& host() const { return *host_; }

 private:
  bool leads() const { return places_.in_host == 0; }
  void meet(const Patience& patience);
  // To this host's ranks, from one of them.
  void spread(Tensors& value, int root, const Patience& patience);
  void agree(const std::string& label, const at::Tensor& tensor, const Patience& patience);

  const int size_;
  const Places places_;
  const c10::intrusive_ptr<SameHostBackend> host_;
  BackendPtr leaders_;
  std::string failure_;  // the first; empty: none
};

}  // namespace weft::comm_internal
