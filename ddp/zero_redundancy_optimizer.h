// Spreads the state of a LibTorch optimizer over the ranks: each rank keeps the state of its shard
// of the parameters (ZeRO, stage 1).
//
//   weft::ZeroRedundancyOptimizer<torch::optim::Adam, torch::optim::AdamOptions> optimizer(
//       model->parameters(), torch::optim::AdamOptions(1e-3), group);
//   loss.backward();                       // DDP averages the gradients
//   optimizer.step();                      // of the shard; then every rank sends its parameters
//
//   optimizer.consolidate_state_dict(0);   // all ranks
//   if (group->rank() == 0) torch::save(optimizer, "optimizer.pt");
//   torch::load(optimizer, "optimizer.pt");  // all ranks, in a group of any size
//
// Partition: whole parameters, group by group, the largest first (equal ones in their order). Each
// goes to the rank that has the fewest elements so far (the lowest such rank).
//
// It is a torch::optim::Optimizer over all parameters. param_groups() holds all of them with their
// options. A change there, for example by a learning rate scheduler, holds for the next step if all
// ranks make it. state() is empty; see local(). A saved state is the one that the wrapped optimizer
// itself would save, so each can load the other's.
//
// The wrapped optimizer must treat each parameter by itself, so LBFGS cannot be used.
//
// Thread safety: none.
// Lifetime: shares the group.
// Blocking: construction, step, add_param_group and consolidate_state_dict are collective. All
// ranks call them, and they wait for each other.
// Errors: c10::ValueError on every rank if their parameters differ; the text names the first
// difference. c10::ValueError for arguments; those of the collectives. After a failed step, ranks
// may have different parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "weft/comm/process_group.h"
#include "weft/ddp/join.h"

namespace torch::optim {
class LBFGS;
}

namespace weft {

struct ZeroOptions {
  // The parameters become views of the memory that is sent, so a step copies nothing. Their storage
  // changes once, at construction. So take views of parameters after that.
  bool parameters_as_bucket_view = false;
};

// Gives the rank of each parameter of each group, from the parameters' numbers of elements.
std::vector<std::vector<int>> zero_partition(const std::vector<std::vector<int64_t>>& numels,
                                             int world_size);

class ZeroRedundancyOptimizerBase : public torch::optim::Optimizer, public Joinable {
 public:
  ~ZeroRedundancyOptimizerBase() override;

  // The closure is called once and sees all parameters.
  at::Tensor step(LossClosure closure = nullptr) override;
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  // Gathers the state of all ranks on rank `to`. It needs memory for the whole state until the next
  // step.
  void consolidate_state_dict(int to = 0);
  // Call it on the rank of the last consolidate_state_dict, with no step after that.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Every rank reads the whole state and keeps its shard.
  void load(torch::serialize::InputArchive& archive) override;

  // The rank of each parameter of each group.
  const std::vector<std::vector<int>>& partition() const { return partition_; }
  // In a join, name it behind the DDP whose gradients it applies. A rank that has joined goes on to
  // update its shard, with the averages of the other ranks.
  const std::shared_ptr<ProcessGroup>& join_group() const override { return group_; }
  at::Device join_device() const override { return device(); }
  void shadow_step() override { step(); }
  void end_join(bool /*last*/) override {}

  // Steps this rank's shard.
  const torch::optim::Optimizer& local() const { return *local_; }

 protected:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Groups&)>;

  ZeroRedundancyOptimizerBase(const Groups& groups,
                              std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
                              std::shared_ptr<ProcessGroup> group, const ZeroOptions& options);

 private:
  // Parameters of one rank that are sent as one tensor.
  struct Bucket {
    int rank = 0;
    std::vector<at::Tensor> parameters;
    at::Tensor flat;  // the parameters are views of it; undefined: they are not
  };

  c10::Device device() const;
  void check_groups(const Groups& groups);
  void take(const torch::optim::OptimizerParamGroup& group);
  void make_buckets(size_t first_group);
  Groups groups_of(int rank) const;
  void send_parameters();

  const Make make_;
  const std::shared_ptr<ProcessGroup> group_;
  const ZeroOptions options_;
  std::vector<std::vector<int>> partition_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::unique_ptr<torch::optim::Optimizer> consolidated_;  // over all parameters
};

// Wrapped is for example torch::optim::Adam, and WrappedOptions its options.
template <class Wrapped, class WrappedOptions>
class ZeroRedundancyOptimizer : public ZeroRedundancyOptimizerBase {
  static_assert(!std::is_same_v<Wrapped, torch::optim::LBFGS>,
                "LBFGS looks at all parameters at once: its state cannot be spread over ranks");

 public:
  ZeroRedundancyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          const WrappedOptions& defaults, std::shared_ptr<ProcessGroup> group,
                          const ZeroOptions& options = {})
      : ZeroRedundancyOptimizerBase(
            groups, std::make_unique<WrappedOptions>(defaults),
            [defaults](const Groups& some) { return std::make_unique<Wrapped>(some, defaults); },
            std::move(group), options) {}

  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const WrappedOptions& defaults,
                          std::shared_ptr<ProcessGroup> group, const ZeroOptions& options = {})
      : ZeroRedundancyOptimizer(Groups{torch::optim::OptimizerParamGroup(std::move(parameters))},
                                defaults, std::move(group), options) {}
};

}  // namespace weft
