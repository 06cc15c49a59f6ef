// Implements create_same_host_backend(): turns c10d's calls into operations of a CollectiveGroup.
//
// Thread safety, lifetime, blocking and errors: see comm/same_host_backend.h.
// same_host_operations.cc has the collective calls, and comm/same_host_backend.cc the rest.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "weft/comm/internal/same_host_work.h"
#include "weft/comm/same_host/arenas.h"
#include "weft/comm/same_host/collective_group.h"
#include "weft/comm/same_host_backend.h"
#include "weft/comm/tensors/tensor_arguments.h"

namespace weft::comm_internal {

class SameHostBackend : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  // Shared by the backend and its work.
  struct Shared {
    Shared(std::shared_ptr<Mesh> mesh, CollectiveGroup::Options options)
        : arenas(mesh), group(mesh, [&] {
            options.arenas = &arenas;
            return options;
          }()) {}

    Arenas arenas;
    CollectiveGroup group;  // destroyed first: it uses the arenas
  };
  struct Options : c10d::Backend::Options {
    explicit Options(const SameHostOptions& options);
    std::chrono::microseconds spin;
  };

  SameHostBackend(std::shared_ptr<Shared> shared, const SameHostOptions& options);
  ~SameHostBackend() override;

  const std::string getBackendName() const override { return "weft_same_host"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(Milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void enableCollectivesTiming() override {}  // not needed: profilers see the calls without it
  c10d::ErrorType getError() override;
  void abort() override;
  void abort(absl::Status reason);  // the other ranks get the reason, cut to 255 characters
  void shutdown() override;
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  bool supportsTensorAlloc(c10::DeviceIndex index) override { return index < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;

  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  CollectiveGroup::Counts counts() const { return group_->counts(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    c10d::OpType type;
    const char* title;
    Tensors outputs;
    Milliseconds timeout;
  };

  // Check that a root or a peer exists. ValueError if not.
  int root_of(const char* operation, int64_t root) const;
  void check_peer(const char* operation, int peer) const;
  Clock::time_point deadline_of(Milliseconds timeout) const;

  Operation moving(const char* name, const at::Tensor& tensor) const;
  Operation reducing(const char* name, Reduction reduction, const at::Tensor& tensor) const;
  // Takes the inputs of all ranks, at `offset` in their contributions, each into one output.
  void take_from_all(Operation& operation, DenseTensors& dense, const Tensors& outputs,
                     const at::Tensor& input, uint64_t offset) const;
  std::vector<uint64_t> shares_of(const char* which, const at::Tensor& tensor,
                                  const std::vector<int64_t>& splits) const;
  WorkPtr allreduce_sparse_sum(const at::Tensor& tensor, Call call, const c10d::ReduceOp& op);
  WorkPtr gather_all(Call call, const char* name, const std::vector<Tensors>& outputs,
                     const Tensors& inputs);
  WorkPtr gather_into(Call call, const Tensors& inputs);
  WorkPtr scatter_sums(Call call, const Tensors& inputs, const c10d::ReduceOp& op);
  WorkPtr transfer(Call call, bool sends, const at::Tensor& tensor, int peer, int tag);

  // The work keeps the tensors of `dense`. When it is done, it copies them back or calls `settle`.
  WorkPtr start(Call call, Operation operation, const DenseTensors& dense);
  WorkPtr start(Call call, std::vector<Operation> operations, const DenseTensors& dense);
  WorkPtr start(Call call, std::vector<Operation> operations, std::function<void()> settle);

  const std::shared_ptr<CollectiveGroup> group_;  // shared with work that outlives this
  Arenas& arenas_;                                // of the same Shared
  const std::chrono::microseconds spin_;
  std::atomic<Milliseconds> timeout_;
  std::atomic<uint64_t> calls_{0};
};

}  // namespace weft::comm_internal
