// Averages parameters over ranks every few steps, in place of gradients at each step: local SGD.
//
//   auto averager = std::make_shared<weft::PeriodicModelAverager>(
//       group, weft::PeriodicAveragingOptions{.period = 4, .warmup_steps = 100});
//   weft::PostLocalSgdOptimizer optimizer(sgd, averager);
//   optimizer.step();        // sgd's step; then, every fourth time, the average
//
// After the warm-up, gradients are usually still averaged among the ranks of one host
// (post_local_sgd_hook of comm_hooks.h, with start_local_sgd_iter = warmup_steps).
//
// Thread safety: none.
// Lifetime: averagers share the group.
// Blocking: construction of a hierarchical averager, and each average, wait for all of its ranks.
// All ranks call them equally often, with the same parameters.
// Errors: c10::ValueError for arguments; those of the collectives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "weft/comm/process_group.h"

namespace weft {

// Replaces each tensor by its mean over the group. Tensors are divided and then summed, as one
// tensor for each type and device.
void average_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

class ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  // Counts a step. If the averager averages at this step, it averages the parameters that have a
  // gradient.
  void average_parameters(const std::vector<at::Tensor>& parameters);

  // How often average_parameters was called.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

 protected:
  // The group that averages at this step. Null: none does.
  virtual ProcessGroup* group_at(int64_t step) const = 0;

 private:
  int64_t step_ = 0;
};

struct PeriodicAveragingOptions {
  int64_t period = 1;
  int64_t warmup_steps = 0;  // steps without averaging
};

// Averages at the steps warmup_steps, warmup_steps + period, and so on. The first step is 0.
class PeriodicModelAverager : public ModelAverager {
 public:
  PeriodicModelAverager(std::shared_ptr<ProcessGroup> group,
                        const PeriodicAveragingOptions& options);

 private:
  ProcessGroup* group_at(int64_t step) const override;

  const std::shared_ptr<ProcessGroup> group_;
  const PeriodicAveragingOptions options_;
};

struct HierarchicalAveragingOptions {
  // For each period, the number of ranks that average together: the first ranks of the group, the
  // next ones, and so on. Longer periods have more ranks, and the longest one has all.
  std::map<int64_t, int> group_sizes = {};
  int64_t warmup_steps = 0;
};

// From warmup_steps on, averages among the ranks of the longest period that divides the step.
class HierarchicalModelAverager : public ModelAverager {
 public:
  // Collective over `group`.
  HierarchicalModelAverager(const std::shared_ptr<ProcessGroup>& group,
                            const HierarchicalAveragingOptions& options);

 private:
  ProcessGroup* group_at(int64_t step) const override;

  const int64_t warmup_steps_;
  std::map<int64_t, std::shared_ptr<ProcessGroup>> groups_;  // this rank's groups, by period
};

// An optimizer with an averager that runs after each step.
class PostLocalSgdOptimizer {
 public:
  PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                        std::shared_ptr<ModelAverager> averager);

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  void zero_grad(bool set_to_none = true) { optimizer_->zero_grad(set_to_none); }

  // Includes the averager's step, so that a run that goes on does not warm up again.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  const std::shared_ptr<torch::optim::Optimizer> optimizer_;  // also the program's, for schedulers
  const std::shared_ptr<ModelAverager> averager_;
};

}  // namespace weft
