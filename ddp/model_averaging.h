// Averages parameters over ranks every few steps in place of gradients at each: local SGD.
//
//   auto averager = std::make_shared<weft::PeriodicModelAverager>(
//       group, weft::PeriodicAveragingOptions{.period = 4, .warmup_steps = 100});
//   weft::PostLocalSgdOptimizer optimizer(sgd, averager);
//   optimizer.step();        // sgd's step; then, every fourth time, the average
//
// After the warm-up gradients are as a rule still averaged, among the ranks of one host
// (post_local_sgd_hook of comm_hooks.h with start_local_sgd_iter = warmup_steps).
//
// Thread safety: none. Lifetime: they share the group.
// Blocking: constructing a hierarchical averager, and each average, until all of its ranks have
// come. All ranks call them equally often with the same parameters.
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

// Each tensor becomes its mean over the group: divided, then summed, as one for each type and
// device.
void average_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group);

class ModelAverager {
 public:
  virtual ~ModelAverager() = default;

  // Counts a step, and averages those of the parameters that have a gradient if it is one of the
  // averager's steps.
  void average_parameters(const std::vector<at::Tensor>& parameters);

  // How often average_parameters was called.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

 protected:
  // The group that averages at this step; null: none.
  virtual ProcessGroup* group_at(int64_t step) const = 0;

 private:
  int64_t step_ = 0;
};

struct PeriodicAveragingOptions {
  int64_t period = 1;
  int64_t warmup_steps = 0;  // steps that never average
};

// Averages at the steps warmup_steps, warmup_steps + period, and so on; the first step is 0.
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
  // Of each period the number of ranks that average together: the first ranks of the group, the
  // next, and so on. Longer periods have more ranks; the longest has all.
  std::map<int64_t, int> group_sizes = {};
  int64_t warmup_steps = 0;
};

// From warmup_steps on, averages among the ranks of the largest period that divides the step.
class HierarchicalModelAverager : public ModelAverager {
 public:
  // Collective over `group`.
  HierarchicalModelAverager(const std::shared_ptr<ProcessGroup>& group,
                            const HierarchicalAveragingOptions& options);

 private:
  ProcessGroup* group_at(int64_t step) const override;

  const int64_t warmup_steps_;
  std::map<int64_t, std::shared_ptr<ProcessGroup>> groups_;  // this rank's, by period
};

// An optimizer whose steps are followed by its averager's.
class PostLocalSgdOptimizer {
 public:
  PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                        std::shared_ptr<ModelAverager> averager);

  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  void zero_grad(bool set_to_none = true) { optimizer_->zero_grad(set_to_none); }

  // With the averager's step, so that a run that goes on does not warm up again.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

  torch::optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  const std::shared_ptr<torch::optim::Optimizer> optimizer_;  // the program's too: for schedulers
  const std::shared_ptr<ModelAverager> averager_;
};

}  // namespace weft
