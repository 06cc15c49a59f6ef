#include "weft/comm/process_group.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/base/log.h"
#include "weft/comm/gloo_backend.h"
#include "weft/comm/hierarchical_backend.h"
#include "weft/comm/internal/group_store.h"
#include "weft/comm/internal/joining.h"
#include "weft/comm/same_host_backend.h"
#include "weft/shm/host_identity.h"
#ifdef WEFT_WITH_CUDA
#include "weft/comm/nccl_backend.h"
#endif

namespace weft {
namespace {

using c10::intrusive_ptr;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

intrusive_ptr<c10d::Store> below(const intrusive_ptr<c10d::Store>& store,
                                 const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

intrusive_ptr<c10d::Backend> create_same_host(const intrusive_ptr<c10d::Store>& store,
                                              const ProcessGroupOptions& options) {
  SameHostOptions same_host;
  same_host.timeout = options.timeout;
  same_host.spin = options.spin;
  return create_same_host_backend(store, options.rank, options.world_size, same_host);
}

// At kDetail, wraps the backend so that ranks compare their calls: Gloo and NCCL do not notice
// operations that do not match.
intrusive_ptr<c10d::Backend> checked(intrusive_ptr<c10d::Backend> backend,
                                     const intrusive_ptr<c10d::Store>& store,
                                     const ProcessGroupOptions& options) {
  if (options.debug != DebugLevel::kDetail) return backend;
  return create_checked_backend(std::move(backend), below(store, "checks"), options.timeout);
}

// `hosts` holds for each rank a text that identifies its host.
intrusive_ptr<c10d::Backend> create_backend(const intrusive_ptr<c10d::Store>& store,
                                            const ProcessGroupOptions& options,
                                            const std::vector<std::string>& hosts) {
  if (options.backend == "same_host") return create_same_host(store, options);
  if (options.backend == "gloo") {
    return checked(create_gloo_backend(store, options.rank, options.world_size, options.timeout),
                   store, options);
  }
#ifdef WEFT_WITH_CUDA
  if (options.backend == "nccl") {
    return checked(create_nccl_backend(store, options.rank, options.world_size, options.timeout),
                   store, options);
  }
#endif
  if (std::all_of(hosts.begin(), hosts.end(),
                  [&](const auto& host) { return host == hosts.front(); })) {
    return create_same_host(store, options);
  }
  HierarchicalOptions hierarchical;
  hierarchical.timeout = options.timeout;
  hierarchical.spin = options.spin;
  return create_hierarchical_backend(store, options.rank, hosts, hierarchical);
}

// Called before the ranks wait for each other, so that a wrong name fails at once.
void check_backend(const ProcessGroupOptions& options) {
  const std::string& backend = options.backend;
#ifndef WEFT_WITH_CUDA
  if (backend == "nccl") {
    C10_THROW_ERROR(ValueError,
                    "process group: backend 'nccl' needs a build with -DWEFT_WITH_CUDA=ON");
  }
#endif
  if (backend == "weft" || backend == "same_host" || backend == "gloo" || backend == "nccl") return;
  C10_THROW_ERROR(ValueError, absl::StrCat("process group: no backend is called '", options.backend,
                                           "'; there are weft, same_host, gloo and nccl"));
}

void check_times(const ProcessGroupOptions& options) {
  if (options.timeout <= milliseconds::zero()) {
    C10_THROW_ERROR(ValueError, absl::StrCat("process group '", options.name,
                                             "': the timeout is positive, not ",
                                             options.timeout.count(), " ms"));
  }
  if (options.spin < std::chrono::microseconds::zero()) {
    C10_THROW_ERROR(ValueError, absl::StrCat("process group '", options.name,
                                             "': the time to spin is not negative"));
  }
}

void check_place(const ProcessGroupOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("process group '", options.name, "': there is no rank ",
                                 options.rank, " in a group of ", options.world_size));
  }
}

// Warns or throws if the ranks are on several hosts. `refuses`: the first rank that refuses.
void check_plain_traffic(const ProcessGroupOptions& options, const std::vector<std::string>& hosts,
                         std::optional<size_t> refuses) {
  const size_t count = std::set<std::string>(hosts.begin(), hosts.end()).size();
  if (count == 1) return;
  if (refuses.has_value()) {
    C10_THROW_ERROR(
        ValueError,
        absl::StrCat(
            "process group '", options.name, "': its ranks are on ", count,
            " hosts, between which tensors travel in clear, and rank ", *refuses,
            " refuses that (WEFT_SECURITY=mtls, or ProcessGroupOptions::plain_traffic). To "
            "allow it, set WEFT_PLAIN_COLLECTIVES=allow on all ranks (docs/security.md)"));
  }
  if (options.plain_traffic == PlainTraffic::kWarn) {
    log_warning("process group '", options.name, "' sends tensors between ", count,
                " hosts in clear (docs/security.md)");
  }
}

constexpr char kRefuses[] = "refuses";

// What each rank tells the others before it makes the group: backend, whether it refuses plain
// traffic, host.
std::string announcement_of(const ProcessGroupOptions& options) {
  const std::string host = options.host.empty() ? host_identity() : options.host;
  return absl::StrCat(options.backend, "\n",
                      options.plain_traffic == PlainTraffic::kRefuse ? kRefuses : "", "\n", host);
}

// Returns the host of each rank. Throws if the ranks do not agree on the backend, or if one of them
// refuses that tensors travel between the hosts.
std::vector<std::string> hosts_of_agreed_group(const std::vector<std::string>& words,
                                               const ProcessGroupOptions& options) {
  std::vector<std::string> hosts;
  std::optional<size_t> refuses;
  std::string first;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    const std::vector<std::string> parts = absl::StrSplit(words[rank], absl::MaxSplits('\n', 2));
    if (parts.size() != 3) {
      C10_THROW_ERROR(ValueError, absl::StrCat("process group '", options.name, "': rank ", rank,
                                               " is of another version of Weft"));
    }
    if (rank == 0) first = parts[0];
    if (parts[0] != first) {
      C10_THROW_ERROR(ValueError,
                      absl::StrCat("process group '", options.name, "': rank 0 asks for backend '",
                                   first, "', rank ", rank, " for '", parts[0], "'"));
    }
    if (parts[1] == kRefuses && !refuses.has_value()) refuses = rank;
    hosts.push_back(parts[2]);
  }
  check_plain_traffic(options, hosts, refuses);
  return hosts;
}

// Waits for the other ranks and makes the group with them.
std::shared_ptr<ProcessGroup> meet(const intrusive_ptr<c10d::Store>& store, uint32_t attempt,
                                   ProcessGroupOptions options, std::vector<int> global_ranks) {
  const comm_internal::JoiningRank self = {options.name, options.rank, options.world_size, attempt};
  std::vector<std::string> hosts;
  const comm_internal::Meeting meeting =
      comm_internal::join_group(store, self, announcement_of(options), options.timeout,
                                [&](const std::vector<std::string>& words) {
                                  hosts = hosts_of_agreed_group(words, options);
                                });
  auto backend = create_backend(meeting.store, options, hosts);
  return std::make_shared<ProcessGroup>(std::move(backend), meeting.store, std::move(options),
                                        std::move(global_ranks));
}

const at::Tensor& defined(const char* operation, const at::Tensor& tensor) {
  if (tensor.defined()) return tensor;
  C10_THROW_ERROR(ValueError, absl::StrCat(operation, ": a tensor is undefined"));
}

c10d::ReduceOp reduction(const char* operation, ProcessGroup::Op op) {
  if (op < ProcessGroup::Op::PREMUL_SUM) return op;
  C10_THROW_ERROR(ValueError, absl::StrCat(operation, ": this reduction is not supported"));
}

// Not all backends take every layout. If `output` is not contiguous, returns a contiguous tensor in
// its place. copy_back() then copies the result into `output`.
at::Tensor row_by_row(const at::Tensor& output) {
  if (output.is_contiguous()) return output;
  return at::empty(output.sizes(), output.options().memory_format(c10::MemoryFormat::Contiguous));
}
// Returns a contiguous copy of a tensor that has gaps. A tensor that overlaps itself is returned as
// it is, because the backend refuses it.
at::Tensor without_gaps(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense() ||
      at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return tensor;
  }
  return tensor.detach().contiguous();
}
void copy_back(const at::Tensor& from, const at::Tensor& output) {
  if (!from.is_same(output)) output.detach().copy_(from);
}

std::vector<int> first(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  for (int rank = 0; rank < count; ++rank) ranks[static_cast<size_t>(rank)] = rank;
  return ranks;
}

}  // namespace

ProcessGroup::ProcessGroup(intrusive_ptr<c10d::Backend> backend, intrusive_ptr<c10d::Store> store,
                           ProcessGroupOptions options, std::vector<int> global_ranks)
    : backend_(std::move(backend)),
      store_(std::move(store)),
      options_(std::move(options)),
      global_ranks_(std::move(global_ranks)) {}

std::shared_ptr<ProcessGroup> ProcessGroup::new_group(const std::vector<int>& ranks) {
  const std::string list = absl::StrJoin(ranks, ",");
  if (store_ == nullptr) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("new_group: group '", name(), "' was made without a store"));
  }
  if (ranks.empty() || std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("new_group: ranks are distinct and at least one: ", list));
  }
  std::vector<int> global;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size()) {
      C10_THROW_ERROR(ValueError, absl::StrCat("new_group: there is no rank ", rank, " in group '",
                                               name(), "' of ", size()));
    }
    global.push_back(global_ranks_[static_cast<size_t>(rank)]);
  }
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  if (place == ranks.end()) return nullptr;

  ProcessGroupOptions options = options_;
  options.rank = static_cast<int>(place - ranks.begin());
  options.world_size = static_cast<int>(ranks.size());
  {
    const MutexLock lock(mutex_);
    options.name = absl::StrCat(name(), "/", list, "#", made_[ranks]++);
  }
  const auto store = below(store_, absl::StrCat("group/", options.name));
  return meet(store, /*attempt=*/0, std::move(options), std::move(global));
}

ProcessGroup::Work ProcessGroup::in_words(const char* operation,
                                          const std::function<Work()>& call) const {
  try {
    return call();
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& failed) {
    // Gloo throws other exceptions.
    C10_THROW_ERROR(DistBackendError,
                    absl::StrCat(operation, " in process group '", name(), "', rank ", rank(),
                                 " of ", size(), ": ", failed.what()));
  }
}

ProcessGroup::Work ProcessGroup::wait(const char* operation,
                                      const std::function<Work()>& start) const {
  return in_words(operation, [&] {
    Work work = start();
    work->wait();
    return work;
  });
}

ProcessGroup::Work ProcessGroup::all_reduce_async(const at::Tensor& tensor, Op op) {
  Tensors tensors = {defined("all_reduce", tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = reduction("all_reduce", op);
  return in_words("all_reduce", [&] { return backend_->allreduce(tensors, options); });
}
void ProcessGroup::all_reduce(const at::Tensor& tensor, Op op) {
  const at::Tensor dense = without_gaps(defined("all_reduce", tensor));
  wait("all_reduce", [&] { return all_reduce_async(dense, op); });
  copy_back(dense, tensor);
}

void ProcessGroup::reduce(const at::Tensor& tensor, int root, Op op) {
  Tensors tensors = {without_gaps(defined("reduce", tensor))};
  c10d::ReduceOptions options;
  options.reduceOp = reduction("reduce", op);
  options.rootRank = root;
  wait("reduce", [&] { return backend_->reduce(tensors, options); });
  if (rank() == root) copy_back(tensors[0], tensor);
}

ProcessGroup::Work ProcessGroup::broadcast_async(const at::Tensor& tensor, int root) {
  Tensors tensors = {defined("broadcast", tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return in_words("broadcast", [&] { return backend_->broadcast(tensors, options); });
}
void ProcessGroup::broadcast(const at::Tensor& tensor, int root) {
  const at::Tensor dense = without_gaps(defined("broadcast", tensor));
  wait("broadcast", [&] { return broadcast_async(dense, root); });
  copy_back(dense, tensor);
}

void ProcessGroup::broadcast_coalesced(const Tensors& tensors, int root, int64_t bytes) {
  for (const at::Tensor& tensor : tensors) defined("broadcast_coalesced", tensor);
  for (size_t begin = 0; begin < tensors.size();) {
    // Take as many neighbours of one type and device as fit, at least one.
    const at::Tensor& head = tensors[begin];
    int64_t sum = 0;
    size_t end = begin;
    while (end < tensors.size() && tensors[end].scalar_type() == head.scalar_type() &&
           tensors[end].device() == head.device() &&
           (end == begin || sum + static_cast<int64_t>(tensors[end].nbytes()) <= bytes)) {
      sum += static_cast<int64_t>(tensors[end].nbytes());
      ++end;
    }
    Tensors flat;
    for (size_t i = begin; i < end; ++i) flat.push_back(tensors[i].detach().reshape({-1}));
    at::Tensor all = at::cat(flat);
    broadcast(all, root);
    int64_t at = 0;
    for (size_t i = begin; i < end; ++i) {
      const int64_t count = tensors[i].numel();
      tensors[i].detach().copy_(all.narrow(0, at, count).view(tensors[i].sizes()));
      at += count;
    }
    begin = end;
  }
}

Tensors ProcessGroup::all_gather(const at::Tensor& tensor) {
  std::vector<Tensors> outputs(1);
  for (int rank = 0; rank < size(); ++rank)
    outputs[0].push_back(at::empty_like(defined("all_gather", tensor)));
  Tensors inputs = {without_gaps(tensor)};
  wait("all_gather", [&] { return backend_->allgather(outputs, inputs); });
  return std::move(outputs[0]);
}

Tensors ProcessGroup::gather(const at::Tensor& tensor, int root) {
  std::vector<Tensors> outputs;
  if (rank() == root) {
    outputs.emplace_back();
    for (int rank = 0; rank < size(); ++rank)
      outputs[0].push_back(at::empty_like(defined("gather", tensor)));
  }
  Tensors inputs = {without_gaps(defined("gather", tensor))};
  c10d::GatherOptions options;
  options.rootRank = root;
  wait("gather", [&] { return backend_->gather(outputs, inputs, options); });
  return outputs.empty() ? Tensors() : std::move(outputs[0]);
}

void ProcessGroup::scatter(const at::Tensor& output, const Tensors& inputs, int root) {
  Tensors outputs = {without_gaps(defined("scatter", output))};
  std::vector<Tensors> lists;
  if (rank() == root) lists.push_back(inputs);
  c10d::ScatterOptions options;
  options.rootRank = root;
  wait("scatter", [&] { return backend_->scatter(outputs, lists, options); });
  copy_back(outputs[0], output);
}

void ProcessGroup::reduce_scatter(const at::Tensor& output, const at::Tensor& input, Op op) {
  const char* const name = "reduce_scatter";
  at::Tensor to = row_by_row(defined(name, output)), from = defined(name, input).contiguous();
  c10d::ReduceScatterOptions options;
  options.reduceOp = reduction(name, op);
  wait(name, [&] { return backend_->_reduce_scatter_base(to, from, options); });
  copy_back(to, output);
}

void ProcessGroup::all_to_all(const at::Tensor& output, const at::Tensor& input) {
  const char* const name = "all_to_all";
  at::Tensor to = row_by_row(defined(name, output)), from = defined(name, input).contiguous();
  std::vector<int64_t> equal_to, equal_from;
  wait(name, [&] { return backend_->alltoall_base(to, from, equal_to, equal_from); });
  copy_back(to, output);
}

ProcessGroup::Work ProcessGroup::isend(const at::Tensor& tensor, int to, int tag) {
  Tensors tensors = {defined("send", tensor).contiguous()};
  return in_words("send", [&] { return backend_->send(tensors, to, tag); });
}
ProcessGroup::Work ProcessGroup::irecv(const at::Tensor& tensor, int from, int tag) {
  Tensors tensors = {defined("recv", tensor)};
  return in_words("recv", [&] {
    return from == kAnyRank ? backend_->recvAnysource(tensors, tag)
                            : backend_->recv(tensors, from, tag);
  });
}
void ProcessGroup::send(const at::Tensor& tensor, int to, int tag) {
  wait("send", [&] { return isend(tensor, to, tag); });
}
int ProcessGroup::recv(const at::Tensor& tensor, int from, int tag) {
  const at::Tensor to = row_by_row(defined("recv", tensor));
  const Work work = wait("recv", [&] { return irecv(to, from, tag); });
  copy_back(to, tensor);
  return from == kAnyRank ? work->sourceRank() : from;
}

void ProcessGroup::barrier() {
  wait("barrier", [&] { return backend_->barrier(); });
}
void ProcessGroup::monitored_barrier(milliseconds timeout) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  in_words("monitored_barrier", [&]() -> Work {
    backend_->monitoredBarrier(options, /*waitAllRanks=*/true);
    return nullptr;
  });
}

std::shared_ptr<ProcessGroup> init_process_group(const ProcessGroupOptions& given) {
  ProcessGroupOptions options = given;
  check_backend(options);
  check_times(options);
  comm_internal::GroupStore found = {options.store};
  if (found.store == nullptr) {
    found = comm_internal::open_group_store(options);  // fills in rank and world size
  }
  check_place(options);
  options.store = nullptr;
  const auto store = below(found.store, absl::StrCat("weft/group/", options.name));
  std::vector<int> global_ranks = first(options.world_size);
  return meet(store, found.attempt, std::move(options), std::move(global_ranks));
}

}  // namespace weft
