#include "weft/comm/hierarchical_backend.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "weft/comm/gloo_backend.h"
#include "weft/comm/internal/hierarchical_steps.h"
#include "weft/comm/internal/queued_work.h"
#include "weft/comm/same_host_backend.h"
#include "weft/comm/tensors/tensor_arguments.h"

namespace weft {
namespace {

using c10::intrusive_ptr;
using comm_internal::DenseTensors;
using comm_internal::HierarchicalSteps;
using comm_internal::Places;
using comm_internal::SameHostBackend;
using comm_internal::single;
using comm_internal::Tensors;
using comm_internal::WaitLimits;
using std::chrono::milliseconds;
using BackendPtr = intrusive_ptr<c10d::Backend>;
using Op = c10d::ReduceOp::RedOpType;
using WorkPtr = intrusive_ptr<c10d::Work>;

constexpr milliseconds kForever = std::chrono::hours(24);

class HierarchicalBackend : public c10d::Backend {
 public:
  HierarchicalBackend(int rank, int size, std::shared_ptr<HierarchicalSteps> steps,
                      BackendPtr everyone, milliseconds timeout)
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
  // Fails the work within the host, and all later operations. Work of Gloo that has begun runs on
  // until its timeout.
  void abort() override {
    steps_->abort();
    everyone_->abort();
  }

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
    const milliseconds limit = limit_of(options.timeout);
    return push(c10d::OpType::BROADCAST, "weft:broadcast", tensors, label,
                [steps = steps_, tensor, root, label, limit, back = dense.copy_back()] {
                  WaitLimits waits(limit);
                  steps->broadcast(label, tensor, root, waits);
                  if (back != nullptr) back();
                });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const milliseconds limit = limit_of(options.timeout);
    return push(c10d::OpType::BARRIER, "weft:barrier", {}, "barrier", [steps = steps_, limit] {
      WaitLimits waits(limit);
      steps->barrier("barrier", waits);
    });
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

  // A timeout of 0 means no limit, for which kForever stands.
  milliseconds limit_of(milliseconds timeout) const {
    if (timeout == c10d::kUnsetTimeout) timeout = timeout_;
    if (timeout == kNoTimeout) timeout = kForever;
    return std::min(timeout, kForever);
  }

  WorkPtr reduce_all(const char* name, const Tensors& tensors, const c10d::ReduceOp& op,
                     milliseconds timeout) {
    WEFT_CHECK_ARGUMENT(!tensors.empty(), absl::StrCat(name, ": takes at least one tensor"));
    DenseTensors dense(name);
    Tensors all;
    std::string label;
    for (const at::Tensor& tensor : tensors) {
      all.push_back(dense.inout(tensor));
      const comm_internal::Reduction reduction = comm_internal::reduction_of(name, op);
      comm_internal::kernel_for(name, reduction, tensor);
      WEFT_CHECK_ARGUMENT(!tensor.is_complex() || op == Op::SUM || op == Op::AVG,
                          absl::StrCat(name, ": among hosts there is no ",
                                       std::string(comm_internal::to_string(reduction)), " of ",
                                       c10::toString(tensor.scalar_type()), " tensors"));
      if (label.empty()) {
        label = absl::StrCat(name, "(", std::string(comm_internal::to_string(reduction)), ", ",
                             c10::toString(tensor.scalar_type()), ")");
      }
    }
    const milliseconds limit = limit_of(timeout);
    return push(c10d::OpType::ALLREDUCE, "weft:all_reduce", tensors, label,
                [steps = steps_, all, label, limit, op = op.op_, back = dense.copy_back()] {
                  WaitLimits waits(limit);
                  for (const at::Tensor& tensor : all) {
                    steps->all_reduce(label, tensor, op, waits);
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

  const std::shared_ptr<HierarchicalSteps> steps_;  // shared with the queue's work
  const BackendPtr everyone_;
  std::atomic<milliseconds> timeout_;
  std::atomic<uint64_t> calls_{0};
  comm_internal::WorkQueue queue_;  // destroyed first: waits for its work
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
  Places places = comm_internal::places_of(rank, hosts);
  SameHostOptions same_host;
  same_host.timeout = options.timeout;
  same_host.spin = options.spin;
  const auto host = c10::static_intrusive_pointer_cast<SameHostBackend>(
      create_same_host_backend(below(absl::StrCat("host/", places.host_index)), places.in_host,
                               static_cast<int>(places.host.size()), same_host));
  BackendPtr leaders;
  if (places.in_host == 0) {
    leaders = create_gloo_backend(below("leaders"), places.host_index,
                                  static_cast<int>(places.leaders.size()), options.timeout);
  }
  const BackendPtr everyone = create_gloo_backend(below("everyone"), rank, size, options.timeout);
  auto steps =
      std::make_shared<HierarchicalSteps>(size, std::move(places), host, std::move(leaders));
  return c10::make_intrusive<HierarchicalBackend>(rank, size, std::move(steps), everyone,
                                                  options.timeout);
}

}  // namespace weft
