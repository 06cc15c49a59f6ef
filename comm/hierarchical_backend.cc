#include "weft/comm/hierarchical_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "weft/comm/gloo_backend.h"
#include "weft/comm/internal/queued_work.h"
#include "weft/comm/internal/tensor_arguments.h"
#include "weft/comm/same_host_backend.h"

namespace weft {
namespace {

using c10::intrusive_ptr;
using internal::DenseTensors;
using internal::single;
using internal::Tensors;
using std::chrono::milliseconds;
using BackendPtr = intrusive_ptr<c10d::Backend>;
using Clock = std::chrono::steady_clock;
using Op = c10d::ReduceOp::RedOpType;
using WorkPtr = intrusive_ptr<c10d::Work>;

constexpr milliseconds kForever = std::chrono::hours(24);
// What ranks wait longer for their leader than it waits for other hosts: it says why it failed.
constexpr milliseconds kGrace{500};

// Where a rank is: its host's ranks in order, and the lowest rank of every host.
struct Places {
  std::vector<int> host;     // ranks of this host
  std::vector<int> leaders;  // by host, in order of rank
  int in_host = 0;           // this rank's index in `host`
  int host_index = 0;        // of this host in `leaders`
  std::vector<int> host_of;  // by rank, the index of its host
};

Places places_of(int rank, const std::vector<std::string>& hosts) {
  Places places;
  std::vector<std::string> seen;
  for (int one = 0; one < static_cast<int>(hosts.size()); ++one) {
    const std::string& host = hosts[static_cast<size_t>(one)];
    const auto known = std::find(seen.begin(), seen.end(), host);
    places.host_of.push_back(static_cast<int>(known - seen.begin()));
    if (known == seen.end()) {
      seen.push_back(host);
      places.leaders.push_back(one);
    }
    if (host == hosts[static_cast<size_t>(rank)]) {
      if (one == rank) places.in_host = static_cast<int>(places.host.size());
      places.host.push_back(one);
    }
  }
  places.host_index = places.host_of[static_cast<size_t>(rank)];
  return places;
}

// One operation after another, on the queue's thread.
class Steps {
 public:
  // `leaders`: null for a rank that leads no host.
  Steps(int size, Places places, BackendPtr host, BackendPtr leaders)
      : size_(size),
        places_(std::move(places)),
        host_(std::move(host)),
        leaders_(std::move(leaders)) {}

  // After an error the ranks may be at different operations: nothing goes on from there.
  void run(const std::string& label, const std::function<void()>& operation) {
    std::string reason;
    if (!failure_.empty()) {
      reason = absl::StrCat("an earlier operation failed: ", failure_);
    } else {
      try {
        return operation();
      } catch (const c10::Error& failed) {
        reason = failed.what_without_backtrace();
      } catch (const std::exception& failed) {
        reason = absl::StrCat("between hosts: ", failed.what());
      }
      failure_ = absl::StrCat(label, ": ", reason);
      host_->abort();
      leaders_ = nullptr;  // closes its connections: the leaders of the other hosts notice
    }
    C10_THROW_ERROR(DistBackendError, absl::StrCat(label, " among hosts: ", reason));
  }

  void all_reduce(const std::string& label, const at::Tensor& tensor, Op op,
                  Clock::time_point deadline) {
    const at::ScalarType type = tensor.scalar_type();
    const bool half = type == at::kHalf || type == at::kBFloat16;
    const bool average = op == Op::AVG;
    // Averages are taken once, at the end: the hosts may have different numbers of ranks.
    const Op partial = average ? Op::SUM : op;
    Tensors sum = {half ? tensor.detach().to(at::kFloat) : tensor.detach().contiguous()};
    c10d::ReduceOptions within;
    within.reduceOp = partial;
    within.timeout = left(deadline);
    host_->reduce(sum, within)->wait();
    if (leaders_ != nullptr) {
      agree(label, tensor, deadline);
      c10d::AllreduceOptions between;
      between.reduceOp = partial;
      between.timeout = left(deadline);
      Tensors wide = {type == at::kShort    ? sum[0].to(at::kInt)
                      : sum[0].is_complex() ? at::view_as_real(sum[0])
                                            : sum[0]};
      leaders_->allreduce(wide, between)->wait();
      if (type == at::kShort) sum[0].copy_(wide[0]);
      if (average) sum[0].div_(size_);
    }
    spread(sum, 0, left(deadline));
    if (sum[0].data_ptr() != tensor.data_ptr()) tensor.detach().copy_(sum[0]);
  }

  void broadcast(const std::string& label, const at::Tensor& tensor, int root,
                 Clock::time_point deadline) {
    Tensors value = {tensor.detach().contiguous()};
    const auto here = std::find(places_.host.begin(), places_.host.end(), root);
    const bool ours = here != places_.host.end();
    if (ours) spread(value, static_cast<int>(here - places_.host.begin()), left(deadline));
    if (leaders_ != nullptr) {
      agree(label, tensor, deadline);
      c10d::BroadcastOptions between;
      between.rootRank = places_.host_of[static_cast<size_t>(root)];
      between.timeout = left(deadline);
      leaders_->broadcast(value, between)->wait();
    }
    if (!ours) spread(value, 0, left(deadline));
    if (value[0].data_ptr() != tensor.data_ptr()) tensor.detach().copy_(value[0]);
  }

  void barrier(const std::string& label, Clock::time_point deadline) {
    c10d::BarrierOptions within;
    within.timeout = left(deadline);
    host_->barrier(within)->wait();
    if (leaders_ != nullptr) agree(label, at::Tensor(), deadline);
    within.timeout = left(deadline) + kGrace;
    host_->barrier(within)->wait();
  }

  c10d::Backend& host() const { return *host_; }

 private:
  // A text of fixed length, which ends with 0.
  using Label = std::array<char, 192>;

  static milliseconds left(Clock::time_point deadline) {
    return std::max(std::chrono::ceil<milliseconds>(deadline - Clock::now()), milliseconds(1));
  }

  void spread(Tensors& value, int root, milliseconds timeout) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout + kGrace;
    host_->broadcast(value, options)->wait();
  }

  // Gloo ends the process where sizes differ, and mixes up what does not belong together: so the
  // leaders tell each other first what they are about to do.
  void agree(const std::string& label, const at::Tensor& tensor, Clock::time_point deadline) {
    std::string text = label;
    if (tensor.defined()) absl::StrAppend(&text, " of shape ", c10::str(tensor.sizes()));
    Label mine{};
    std::memcpy(mine.data(), text.data(), std::min(text.size(), mine.size() - 1));
    const auto length = static_cast<int64_t>(mine.size());
    const auto hosts = static_cast<int64_t>(places_.leaders.size());
    at::Tensor input = at::empty({length}, at::kByte);
    at::Tensor output = at::empty({hosts * length}, at::kByte);
    std::memcpy(input.data_ptr(), mine.data(), mine.size());
    c10d::AllgatherOptions options;
    options.timeout = left(deadline);
    leaders_->_allgather_base(output, input, options)->wait();
    for (int64_t host = 0; host < hosts; ++host) {
      Label other{};
      std::memcpy(other.data(), output.const_data_ptr<uint8_t>() + host * length, other.size());
      if (other == mine) continue;
      other.back() = 0;
      const int rank = places_.leaders[static_cast<size_t>(host)];
      C10_THROW_ERROR(
          DistBackendError,
          absl::StrCat("rank ", places_.leaders[static_cast<size_t>(places_.host_index)], " calls ",
                       mine.data(), ", rank ", rank, " calls ",
                       static_cast<const char*>(other.data())));
    }
  }

  const int size_;
  const Places places_;
  const BackendPtr host_;
  BackendPtr leaders_;
  std::string failure_;  // the first; empty: none
};

class HierarchicalBackend : public c10d::Backend {
 public:
  HierarchicalBackend(int rank, int size, std::shared_ptr<Steps> steps, BackendPtr everyone,
                      milliseconds timeout)
      : Backend(rank, size),
        steps_(std::move(steps)),
        everyone_(std::move(everyone)),
        timeout_(timeout) {}

  const std::string getBackendName() const override { return "weft_hierarchical"; }
  void setTimeout(milliseconds timeout) override {
    timeout_ = timeout;
    everyone_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  // Ends what goes on within the host, and all that comes after; what goes on between hosts ends
  // with its timeout.
  void abort() override { steps_->host().abort(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = single("all_reduce", tensors);
    if (tensor.defined() && tensor.layout() == at::kSparse) return sum_sparse(tensors, options);
    return reduce_all("all_reduce", tensors, options.reduceOp, options.timeout);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return reduce_all("all_reduce_coalesced", tensors, options.reduceOp, options.timeout);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const char* const name = "broadcast";
    const at::Tensor& given = single(name, tensors);
    WEFT_CHECK_ARGUMENT(
        options.rootRank >= 0 && options.rootRank < size_,
        absl::StrCat(name, ": there is no rank ", options.rootRank, " in a group of ", size_));
    const auto root = static_cast<int>(options.rootRank);
    DenseTensors dense(name);
    const at::Tensor tensor = root == rank_ ? dense.input(given) : dense.output(given);
    const std::string label =
        absl::StrCat(name, " from rank ", root, " (", c10::toString(tensor.scalar_type()), ")");
    const auto deadline = deadline_of(options.timeout);
    return push(c10d::OpType::BROADCAST, "weft:broadcast", tensors, label,
                [steps = steps_, tensor, root, label, deadline, back = dense.copy_back()] {
                  steps->broadcast(label, tensor, root, deadline);
                  if (back != nullptr) back();
                });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const auto deadline = deadline_of(options.timeout);
    return push(c10d::OpType::BARRIER, "weft:barrier", {}, "barrier",
                [steps = steps_, deadline] { steps->barrier("barrier", deadline); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    everyone_->monitoredBarrier(options, wait_all_ranks);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return everyone_->reduce(tensors, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return everyone_->allgather(outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return everyone_->_allgather_base(output, input, options);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return everyone_->allgather_coalesced(outputs, inputs, options);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return everyone_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return everyone_->scatter(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return everyone_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return everyone_->_reduce_scatter_base(output, input, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return everyone_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return everyone_->alltoall(outputs, inputs, options);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return everyone_->send(tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return everyone_->recv(tensors, from, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return everyone_->recvAnysource(tensors, tag);
  }

  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return steps_->host().supportsTensorAlloc(device);
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return steps_->host().allocateTensor(size, options);
  }

 private:
  WorkPtr push(c10d::OpType type, const char* title, Tensors outputs, std::string label,
               std::function<void()> operation) {
    return queue_.push({type, title, rank_, calls_++, std::move(outputs)},
                       [steps = steps_, label = std::move(label),
                        operation = std::move(operation)] { steps->run(label, operation); });
  }

  // 0: never.
  Clock::time_point deadline_of(milliseconds timeout) const {
    if (timeout == c10d::kUnsetTimeout) timeout = timeout_;
    if (timeout == kNoTimeout) timeout = kForever;
    return Clock::now() + std::min(timeout, kForever);
  }

  WorkPtr reduce_all(const char* name, const Tensors& tensors, const c10d::ReduceOp& op,
                     milliseconds timeout) {
    WEFT_CHECK_ARGUMENT(!tensors.empty(), absl::StrCat(name, ": takes at least one tensor"));
    DenseTensors dense(name);
    Tensors all;
    std::string label;
    for (const at::Tensor& tensor : tensors) {
      all.push_back(dense.inout(tensor));
      const internal::Reduction reduction = internal::reduction_of(name, op);
      internal::kernel_for(name, reduction, tensor);
      WEFT_CHECK_ARGUMENT(!tensor.is_complex() || op == Op::SUM || op == Op::AVG,
                          absl::StrCat(name, ": among hosts there is no ",
                                       std::string(internal::to_string(reduction)), " of ",
                                       c10::toString(tensor.scalar_type()), " tensors"));
      if (label.empty()) {
        label = absl::StrCat(name, "(", std::string(internal::to_string(reduction)), ", ",
                             c10::toString(tensor.scalar_type()), ")");
      }
    }
    const auto deadline = deadline_of(timeout);
    return push(c10d::OpType::ALLREDUCE, "weft:all_reduce", tensors, label,
                [steps = steps_, all, label, deadline, op = op.op_, back = dense.copy_back()] {
                  for (const at::Tensor& tensor : all) {
                    steps->all_reduce(label, tensor, op, deadline);
                  }
                  if (back != nullptr) back();
                });
  }

  WorkPtr sum_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
    if (options.reduceOp != Op::AVG) return everyone_->allreduce(tensors, options);
    WEFT_CHECK_ARGUMENT(tensors[0].is_floating_point() || tensors[0].is_complex(),
                        absl::StrCat("all_reduce: there is no average of ",
                                     c10::toString(tensors[0].scalar_type()), " tensors"));
    c10d::AllreduceOptions sum = options;
    sum.reduceOp = Op::SUM;
    const WorkPtr work = everyone_->allreduce(tensors, sum);
    return push(c10d::OpType::ALLREDUCE, "weft:all_reduce", tensors, "all_reduce(average, sparse)",
                [work, tensor = tensors[0], size = size_] {
                  work->wait();
                  tensor.detach()._values().div_(size);
                });
  }

  const std::shared_ptr<Steps> steps_;  // shared with the queue's work
  const BackendPtr everyone_;
  std::atomic<milliseconds> timeout_;
  std::atomic<uint64_t> calls_{0};
  internal::WorkQueue queue_;  // ends first
};

}  // namespace

intrusive_ptr<c10d::Backend> create_hierarchical_backend(const intrusive_ptr<c10d::Store>& store,
                                                         int rank,
                                                         const std::vector<std::string>& hosts,
                                                         const HierarchicalOptions& options) {
  const int size = static_cast<int>(hosts.size());
  if (rank < 0 || rank >= size) {
    C10_THROW_ERROR(ValueError, absl::StrCat("hierarchical backend: there is no rank ", rank,
                                             " in a group of ", size));
  }
  const auto below = [&](const std::string& prefix) {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  Places places = places_of(rank, hosts);
  SameHostOptions same_host;
  same_host.timeout = options.timeout;
  same_host.spin = options.spin;
  const BackendPtr host =
      create_same_host_backend(below(absl::StrCat("host/", places.host_index)), places.in_host,
                               static_cast<int>(places.host.size()), same_host);
  BackendPtr leaders;
  if (places.in_host == 0) {
    leaders = create_gloo_backend(below("leaders"), places.host_index,
                                  static_cast<int>(places.leaders.size()), options.timeout);
  }
  const BackendPtr everyone = create_gloo_backend(below("everyone"), rank, size, options.timeout);
  auto steps = std::make_shared<Steps>(size, std::move(places), host, std::move(leaders));
  return c10::make_intrusive<HierarchicalBackend>(rank, size, std::move(steps), everyone,
                                                  options.timeout);
}

}  // namespace weft
