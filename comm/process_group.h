// Runs collectives and messages among the ranks of a group, over one backend.
//
//   auto group = weft::init_process_group();  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   group->all_reduce(tensor);                // waits
//   auto work = group->all_reduce_async(tensor);
//   work->wait();
//   auto even = group->new_group({0, 2, 4});  // called by its members; null for others
//
// Backends:
//   "weft": If all ranks are on one host, this is "same_host". Otherwise it uses shared memory on
//     each host and Gloo between the host leaders. CPU tensors only.
//   "same_host": All ranks are on one host. CPU tensors only.
//   "gloo": Any hosts. CPU tensors only.
//   "nccl": CUDA tensors only. It needs a build with WEFT_WITH_CUDA (docs/ddp.md, "On GPUs").
//
// Thread safety: all methods may be called from any thread. All ranks must call the same
// collectives in the same order.
// Lifetime: shared. The backend is destroyed with the last handle.
// Blocking: init_process_group and new_group block until all ranks have come. isend, irecv and the
// methods with _async only start. The others block until the operation is done ("nccl": see
// nccl_backend.h). Each wait is limited by the timeout. joining.h and hierarchical_backend.h say
// where a rank waits longer.
// Errors: c10::ValueError for invalid options and arguments. c10::DistBackendError and
// c10::DistNetworkError for failures between ranks. They name the rank if it is known.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "weft/base/mutex.h"
#include "weft/comm/debug_level.h"
#include "weft/comm/plain_traffic.h"

namespace weft {

struct ProcessGroupOptions {
  std::string backend = "weft";
  // env://, tcp://HOST:PORT or file:///PATH. All ranks must see this path, and it must be new for
  // each job. Ignored if `store` is set.
  std::string init_method = "env://";
  int rank = -1;                                    // -1: RANK of the environment (env:// only)
  int world_size = -1;                              // -1: WORLD_SIZE, in the same way
  c10::intrusive_ptr<c10d::Store> store = nullptr;  // shared by the ranks, only for this group
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // for joining, and per operation
  // Same-host backend: how long a waiting thread looks for the other ranks before it sleeps; 0: it
  // sleeps at once.
  std::chrono::microseconds spin{100};
  std::string name = "default";  // used in errors, and in the prefix of the group's store keys
  // Identifies this host among the ranks. Empty: the kernel's boot id and network namespace. Tests
  // set it to have several hosts on one machine.
  std::string host = "";
  DebugLevel debug = debug_level_of_environment();
  // What happens if the ranks are on several hosts. Gloo and NCCL send in clear between them, and
  // "weft" uses Gloo there (docs/security.md). An unknown value in the environment is a
  // c10::ValueError here.
  //
  // kAllow: nothing. kWarn: one line in the log for each group. kRefuse: joining fails on all ranks
  // if one of them refuses.
  PlainTraffic plain_traffic = plain_traffic_of_environment();
};

class ProcessGroup {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Op = c10d::ReduceOp::RedOpType;

  // Makes a group around an existing backend. `store` is for new_group(), which fails if it is
  // null.
  ProcessGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
               ProcessGroupOptions options, std::vector<int> global_ranks);

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  const std::string& name() const { return options_.name; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // By rank of this group: the rank in the group that init_process_group made.
  const std::vector<int>& global_ranks() const { return global_ranks_; }

  // Makes a group of some ranks of this one, in the order given. Only the ranks in the list need to
  // call it, all with the same list. Returns null to a rank that is not in the list.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);

  void all_reduce(const at::Tensor& tensor, Op op = Op::SUM);
  // The root's tensor gets the result. Those of the other ranks are undefined afterwards.
  void reduce(const at::Tensor& tensor, int root, Op op = Op::SUM);
  void broadcast(const at::Tensor& tensor, int root);
  // Broadcasts all tensors. One operation carries neighbouring tensors of one type and device, with
  // up to `bytes` bytes together, or one larger tensor.
  void broadcast_coalesced(const std::vector<at::Tensor>& tensors, int root,
                           int64_t bytes = 250 << 20);
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);  // one for each rank, equal shapes
  // Returns one tensor per rank on the root, and an empty list on the other ranks.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root);
  // Only the root's `inputs` are used, one for each rank.
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root);
  // `input` has size() times the rows of `output`.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op = Op::SUM);
  // Row block r of `input` goes to rank r, and row block r of `output` comes from rank r. Both have
  // the same shape, with a number of rows that size() divides.
  void all_to_all(const at::Tensor& output, const at::Tensor& input);
  void send(const at::Tensor& tensor, int to, int tag = 0);
  int recv(const at::Tensor& tensor, int from = kAnyRank, int tag = 0);  // returns the sender
  void barrier();
  // A barrier whose error names the ranks that are late.
  void monitored_barrier(std::chrono::milliseconds timeout);

  Work all_reduce_async(const at::Tensor& tensor, Op op = Op::SUM);
  Work broadcast_async(const at::Tensor& tensor, int root);
  Work isend(const at::Tensor& tensor, int to, int tag = 0);
  Work irecv(const at::Tensor& tensor, int from = kAnyRank, int tag = 0);

  static constexpr int kAnyRank = -1;

 private:
  // Calls `call`. Turns an exception that is no c10::Error into a c10::DistBackendError.
  Work in_words(const char* operation, const std::function<Work()>& call) const;
  Work wait(const char* operation, const std::function<Work()>& start) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const ProcessGroupOptions options_;
  const std::vector<int> global_ranks_;
  Mutex mutex_;
  std::map<std::vector<int>, int> made_ ABSL_GUARDED_BY(mutex_);  // new groups by members
};

// Joins the group of all ranks that the options, or else the environment, name (docs/ddp.md). It
// waits for all of them, for `options.timeout` at most. Throws what the operations throw.
std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

}  // namespace weft
