#include "weft/ddp/model_averaging.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  C10_THROW_ERROR(ValueError, absl::StrCat("model averaging: ", why));
}

void check_group(const std::shared_ptr<ProcessGroup>& group) {
  if (group == nullptr) refuse("the group is null");
}

void check_warmup(int64_t warmup_steps) {
  if (warmup_steps >= 0) return;
  refuse(absl::StrCat("warmup_steps is ", warmup_steps, "; it must not be negative"));
}

// Makes a group of `size` consecutive ranks that this rank belongs to.
std::shared_ptr<ProcessGroup> block(const std::shared_ptr<ProcessGroup>& group, int size) {
  if (size == group->size()) return group;
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), group->rank() / size * size);
  return group->new_group(ranks);
}

}  // namespace

void average_parameters(const std::vector<at::Tensor>& parameters, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> alike;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.is_floating_point() && !parameter.is_complex()) {
      refuse(absl::StrCat("a tensor of type ", c10::toString(parameter.scalar_type()),
                          " has no average"));
    }
    const auto same = std::find_if(alike.begin(), alike.end(), [&](const auto& others) {
      return others[0].scalar_type() == parameter.scalar_type() &&
             others[0].device() == parameter.device();
    });
    if (same == alike.end()) {
      alike.push_back({parameter});
    } else {
      same->push_back(parameter);
    }
  }
  for (const std::vector<at::Tensor>& tensors : alike) {
    std::vector<at::Tensor> pieces;
    for (const at::Tensor& tensor : tensors) pieces.push_back(tensor.reshape(-1));
    const at::Tensor flat = at::cat(pieces).div_(group.size());
    group.all_reduce(flat);
    int64_t begin = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

void ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  if (ProcessGroup* const group = group_at(step_)) {
    std::vector<at::Tensor> trained;
    for (const at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) trained.push_back(parameter);
    }
    weft::average_parameters(trained, *group);
  }
  ++step_;
}

PeriodicModelAverager::PeriodicModelAverager(std::shared_ptr<ProcessGroup> group,
                                             const PeriodicAveragingOptions& options)
    : group_(std::move(group)), options_(options) {
  check_group(group_);
  check_warmup(options.warmup_steps);
  if (options.period < 1) {
    refuse(absl::StrCat("period is ", options.period, "; it must be at least 1"));
  }
}

ProcessGroup* PeriodicModelAverager::group_at(int64_t step) const {
  const int64_t since = step - options_.warmup_steps;
  return since >= 0 && since % options_.period == 0 ? group_.get() : nullptr;
}

HierarchicalModelAverager::HierarchicalModelAverager(const std::shared_ptr<ProcessGroup>& group,
                                                     const HierarchicalAveragingOptions& options)
    : warmup_steps_(options.warmup_steps) {
  check_group(group);
  check_warmup(options.warmup_steps);
  if (options.group_sizes.empty()) refuse("group_sizes is empty");
  int before = 0;
  for (const auto& [period, size] : options.group_sizes) {
    if (period < 1) refuse(absl::StrCat("period ", period, " in group_sizes; it must be positive"));
    if (size <= before || group->size() % size != 0) {
      refuse(absl::StrCat("period ", period, " has groups of ", size, " ranks; there must be more ",
                          "than of shorter periods, and they must divide the ", group->size(),
                          " ranks of the group"));
    }
    before = size;
  }
  if (before != group->size()) {
    refuse(absl::StrCat("the longest period has groups of ", before, " ranks; it must have all ",
                        group->size()));
  }
  for (const auto& [period, size] : options.group_sizes) groups_[period] = block(group, size);
}

ProcessGroup* HierarchicalModelAverager::group_at(int64_t step) const {
  if (step < warmup_steps_) return nullptr;
  const auto found = std::find_if(groups_.rbegin(), groups_.rend(),
                                  [step](const auto& level) { return step % level.first == 0; });
  return found == groups_.rend() ? nullptr : found->second.get();
}

PostLocalSgdOptimizer::PostLocalSgdOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                             std::shared_ptr<ModelAverager> averager)
    : optimizer_(std::move(optimizer)), averager_(std::move(averager)) {
  if (optimizer_ == nullptr) refuse("the optimizer is null");
  if (averager_ == nullptr) refuse("the averager is null");
}

at::Tensor PostLocalSgdOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  at::Tensor loss = optimizer_->step(std::move(closure));
  std::vector<at::Tensor> parameters;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  averager_->average_parameters(parameters);
  return loss;
}

void PostLocalSgdOptimizer::save(torch::serialize::OutputArchive& archive) const {
  torch::serialize::OutputArchive optimizer(archive.compilation_unit());
  optimizer_->save(optimizer);
  archive.write("optimizer", optimizer);
  archive.write("averager_step", c10::IValue(averager_->step()));
}

void PostLocalSgdOptimizer::load(torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive optimizer;
  archive.read("optimizer", optimizer);
  c10::IValue step;
  archive.read("averager_step", step);
  optimizer_->load(optimizer);
  averager_->set_step(step.toInt());
}

}  // namespace weft
