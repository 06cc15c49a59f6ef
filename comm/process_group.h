// A group of ranks with one way to run collectives among them.
//
//   auto group = weft::init_process_group();  // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   group->all_reduce(tensor);                // waits
//   auto work = group->all_reduce_async(tensor);
//   work->wait();
//   auto even = group->new_group({0, 2, 4});  // called by its members; null for others
//
// Backends: "weft" (the same-host backend where all ranks are on one host, else that one on each
// host and Gloo between their leaders), "same_host" and "gloo" carry CPU tensors only. "nccl" needs
// a build with WEFT_WITH_CUDA and carries CUDA tensors only (docs/ddp.md, "On GPUs").
//
// Thread safety: all methods may be called from any thread; all ranks call the same collectives in
// the same order. Lifetime: shared; the backend ends with the last handle.
// Blocking: init_process_group and new_group until all ranks have come; methods without _async
// until the operation is done; all of them no longer than the timeout.
// Errors: c10::ValueError for options and arguments that cannot be; c10::DistBackendError and
// c10::DistNetworkError for what goes wrong between ranks, naming the rank where it is known.
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

namespace weft {

struct ProcessGroupOptions {
  std::string backend = "weft";
  // env://, tcp://HOST:PORT or file:///PATH (a path that all ranks see, fresh for each job).
  // Ignored with a store.
  std::string init_method = "env://";
  int rank = -1;                                    // -1: RANK
  int world_size = -1;                              // -1: WORLD_SIZE
  c10::intrusive_ptr<c10d::Store> store = nullptr;  // shared by the ranks, for this group alone
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of joining, and of an operation
  // Same host: how long who waits looks for the others before it sleeps; 0: not at all.
  std::chrono::microseconds spin{100};
  std::string name = "default";  // in errors, and in front of the group's keys in the store
  // What names this host among the ranks; "": the kernel's boot id and network namespace. Tests set
  // it to have several hosts on one machine.
  std::string host = "";
  DebugLevel debug = debug_level_of_environment();
};

class ProcessGroup {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Op = c10d::ReduceOp::RedOpType;

  // A group around a backend that exists; `store` for new_group, null if there is to be none.
  ProcessGroup(c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store,
               ProcessGroupOptions options, std::vector<int> global_ranks);

  int rank() const { return backend_->getRank(); }
  int size() const { return backend_->getSize(); }
  const std::string& name() const { return options_.name; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return backend_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // Of each rank of this group, its rank in the group that init_process_group made.
  const std::vector<int>& global_ranks() const { return global_ranks_; }

  // A group of some ranks of this one, in the order given; only they call it, each with the same
  // list. Null for a caller who is not in the list.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);

  void all_reduce(const at::Tensor& tensor, Op op = Op::SUM);
  void reduce(const at::Tensor& tensor, int root, Op op = Op::SUM);
  void broadcast(const at::Tensor& tensor, int root);
  // The tensors of `tensors`, all of one device, in as few operations as `bytes` at once allow.
  void broadcast_coalesced(const std::vector<at::Tensor>& tensors, int root,
                           int64_t bytes = 250 << 20);
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);  // one for each rank, equal shapes
  // `outputs` on the root only.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root);
  void scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, int root);
  // `input` has size() times the rows of `output`.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op = Op::SUM);
  // Equal shares of the rows for each rank.
  void all_to_all(const at::Tensor& output, const at::Tensor& input);
  void send(const at::Tensor& tensor, int to, int tag = 0);
  int recv(const at::Tensor& tensor, int from = kAnyRank, int tag = 0);  // who sent it
  void barrier();
  // Names the ranks that are late.
  void monitored_barrier(std::chrono::milliseconds timeout);

  Work all_reduce_async(const at::Tensor& tensor, Op op = Op::SUM);
  Work broadcast_async(const at::Tensor& tensor, int root);
  Work isend(const at::Tensor& tensor, int to, int tag = 0);
  Work irecv(const at::Tensor& tensor, int from = kAnyRank, int tag = 0);

  static constexpr int kAnyRank = -1;

 private:
  // Makes a c10 error of what else is thrown.
  Work in_words(const char* operation, const std::function<Work()>& call) const;
  Work wait(const char* operation, const std::function<Work()>& start) const;

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const ProcessGroupOptions options_;
  const std::vector<int> global_ranks_;
  Mutex mutex_;
  std::map<std::vector<int>, int> made_ ABSL_GUARDED_BY(mutex_);  // groups by members
};

std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& options = {});

}  // namespace weft
