#include "weft/ddp/batch_norm/sync_batch_norm.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/comm/exchange_device.h"
#include "weft/ddp/batch_norm/internal/sync_batch_norm_function.h"

namespace weft {
namespace {

using ddp_internal::BatchStatistics;
using torch::nn::Module;
using ModulePtr = std::shared_ptr<Module>;
using GroupPtr = std::shared_ptr<ProcessGroup>;

int64_t values_per_channel(const at::Tensor& input) {
  int64_t count = input.size(0);
  for (int64_t dim = 2; dim < input.dim(); ++dim) count *= input.size(dim);
  return count;
}

void update(const at::Tensor& running, const at::Tensor& value, double momentum) {
  running.mul_(1 - momentum).add_(value.to(running.options()), momentum);
}

// The SyncBatchNorm that replaces `module`. Null if that is no BatchNorm.
std::shared_ptr<SyncBatchNormImpl> converted(Module& module, const GroupPtr& group) {
  using namespace torch::nn;
  if (const auto* norm = module.as<BatchNorm1d>()) return SyncBatchNormImpl::sharing(*norm, group);
  if (const auto* norm = module.as<BatchNorm2d>()) return SyncBatchNormImpl::sharing(*norm, group);
  if (const auto* norm = module.as<BatchNorm3d>()) return SyncBatchNormImpl::sharing(*norm, group);
  return nullptr;
}

bool holds_replaceable_children(Module& module) {
  using namespace torch::nn;
  return module.as<Sequential>() || module.as<ModuleList>() || module.as<ModuleDict>();
}

// Replaces it in the container's own list, which its forward and its users read. The list of
// children that the container has as a Module is another one.
void replace_held(Module& container, const ModulePtr& from,
                  const std::shared_ptr<SyncBatchNormImpl>& to) {
  if (auto* sequential = container.as<torch::nn::Sequential>()) {
    for (torch::nn::AnyModule& held : *sequential) {
      if (held.ptr() == from) held = torch::nn::AnyModule(to);
    }
  } else if (auto* list = container.as<torch::nn::ModuleList>()) {
    for (ModulePtr& held : *list) {
      if (held == from) held = to;
    }
  } else if (auto* dict = container.as<torch::nn::ModuleDict>()) {
    for (auto& item : *dict) {
      if (item.value() == from) item.value() = to;
    }
  }
}

struct Conversion {
  struct Place {
    Module* container;
    std::string key;
    ModulePtr norm;
  };
  std::vector<Place> places;
  std::map<ModulePtr, std::shared_ptr<SyncBatchNormImpl>> replacements;  // one for a shared module
  std::vector<SyncBatchNormImpl*> already;
  std::vector<std::string> stuck;  // names of BatchNorms that cannot be replaced

  void plan(Module& module, const std::string& prefix, const GroupPtr& group) {
    for (const auto& child : module.named_children()) {
      const std::string path = absl::StrCat(prefix, child.key());
      if (auto* norm = child.value()->as<SyncBatchNormImpl>()) already.push_back(norm);
      auto replacement = converted(*child.value(), group);
      if (replacement == nullptr) {
        plan(*child.value(), absl::StrCat(path, "."), group);
      } else if (holds_replaceable_children(module)) {
        places.push_back({&module, child.key(), child.value()});
        replacements.emplace(child.value(), std::move(replacement));
      } else {
        stuck.push_back(path);
      }
    }
  }

  void carry_out(const GroupPtr& group) {
    for (const Place& place : places) {
      const auto& replacement = replacements.at(place.norm);
      replace_held(*place.container, place.norm, replacement);
      place.container->replace_module(place.key, replacement);
    }
    for (SyncBatchNormImpl* norm : already) norm->set_group(group);
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     std::shared_ptr<ProcessGroup> group)
    : options(options), group_(std::move(group)) {
  reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     const Tensors& tensors, std::shared_ptr<ProcessGroup> group)
    : options(options), group_(std::move(group)) {
  register_tensors(tensors);
}

void SyncBatchNormImpl::register_tensors(const Tensors& tensors) {
  const auto parameter = [this](const char* name, const at::Tensor& tensor) {
    return register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = parameter("weight", tensors.weight);
  bias = parameter("bias", tensors.bias);
  running_mean = register_buffer("running_mean", tensors.running_mean);
  running_var = register_buffer("running_var", tensors.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

void SyncBatchNormImpl::reset() {
  if (options.num_features() < 1) {
    C10_THROW_ERROR(ValueError, absl::StrCat("SyncBatchNorm: num_features is at least 1, not ",
                                             options.num_features()));
  }
  Tensors tensors;
  const int64_t channels = options.num_features();
  if (options.affine()) {
    tensors.weight = at::empty({channels}).set_requires_grad(true);
    tensors.bias = at::empty({channels}).set_requires_grad(true);
  }
  if (options.track_running_stats()) {
    tensors.running_mean = at::empty({channels});
    tensors.running_var = at::empty({channels});
    tensors.num_batches_tracked = at::empty({}, at::kLong);
  }
  register_tensors(tensors);
  reset_parameters();
}

void SyncBatchNormImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  reset_running_stats();
  if (weight.defined()) weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!running_mean.defined()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << weight.defined() << ", track_running_stats=" << running_mean.defined();
  if (group_ != nullptr) stream << ", group=" << group_->name();
  stream << ")";
}

void SyncBatchNormImpl::set_group(std::shared_ptr<ProcessGroup> group) {
  group_ = std::move(group);
  agreed_type_ = std::nullopt;
}

void SyncBatchNormImpl::check_input(const at::Tensor& input) const {
  if (!input.defined() || input.dim() < 2 || input.dim() > 5 ||
      input.size(1) != options.num_features() || !at::isFloatingType(input.scalar_type())) {
    C10_THROW_ERROR(
        ValueError,
        absl::StrCat("SyncBatchNorm: takes (N, ", options.num_features(),
                     ") and up to three more dimensions of a floating type, not ",
                     input.defined() ? c10::str(input.sizes(), " of ", input.scalar_type())
                                     : "an undefined tensor"));
  }
}

// Checks once, and again when the type changes. The messages of forward do not show that types
// differ.
void SyncBatchNormImpl::check_ranks_agree(const at::Tensor& input) {
  if (agreed_type_ == input.scalar_type()) return;
  const at::Tensor mine =
      at::tensor({options.num_features(), static_cast<int64_t>(input.scalar_type())}, at::kLong)
          .to(comm_internal::exchange_device(*group_, input.device()));
  const at::Tensor all = at::stack(group_->all_gather(mine)).cpu();
  const auto of = [&all](int64_t rank) {
    const auto type = static_cast<at::ScalarType>(all[rank][1].item<int64_t>());
    return absl::StrCat("rank ", rank, " has ", all[rank][0].item<int64_t>(), " channels of ",
                        c10::toString(type));
  };
  for (int64_t rank = 1; rank < all.size(0); ++rank) {
    if (!all[rank].equal(all[0])) {
      C10_THROW_ERROR(ValueError,
                      absl::StrCat("SyncBatchNorm: ranks differ: ", of(0), ", ", of(rank)));
    }
  }
  agreed_type_ = input.scalar_type();
}

double SyncBatchNormImpl::next_momentum() {
  num_batches_tracked.add_(1);
  if (options.momentum()) return *options.momentum();
  return 1.0 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward_alone(const at::Tensor& input) {
  const bool tracks = is_training() && running_mean.defined();
  return torch::nn::functional::batch_norm(input, running_mean, running_var,
                                           torch::nn::functional::BatchNormFuncOptions()
                                               .weight(weight)
                                               .bias(bias)
                                               .training(is_training() || !running_mean.defined())
                                               .momentum(tracks ? next_momentum() : 0)
                                               .eps(options.eps()));
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check_input(input);
  if (!is_training() || group_ == nullptr || group_->size() == 1) return forward_alone(input);

  check_ranks_agree(input);
  BatchStatistics statistics;
  {
    const at::NoGradGuard no_grad;
    statistics = ddp_internal::gather_statistics(input, *group_);
    // A rank with two values of its own knows that there are at least two in all. Only the other
    // ranks read the sum, because on a GPU that means to wait for it. If the sum is below two, all
    // ranks read it.
    const double seen = values_per_channel(input) < 2 ? statistics.count.item<double>() : 2;
    if (seen == 1) {
      C10_THROW_ERROR(ValueError,
                      "SyncBatchNorm: all ranks together have one value per channel, and training "
                      "needs more than that");
    }
    if (running_mean.defined() && seen > 0) {
      const double momentum = next_momentum();
      update(running_mean, statistics.mean, momentum);
      update(running_var, statistics.unbiased_var(), momentum);
    }
  }
  return ddp_internal::sync_batch_norm(input, {weight, bias, options.eps()}, statistics, group_);
}

std::shared_ptr<Module> convert_sync_batch_norm(const std::shared_ptr<Module>& module,
                                                const std::shared_ptr<ProcessGroup>& group) {
  if (module == nullptr) C10_THROW_ERROR(ValueError, "convert_sync_batch_norm: no module");
  if (auto root = converted(*module, group)) return root;
  Conversion conversion;
  if (auto* norm = module->as<SyncBatchNormImpl>()) conversion.already.push_back(norm);
  conversion.plan(*module, "", group);
  if (!conversion.stuck.empty()) {
    C10_THROW_ERROR(
        ValueError,
        absl::StrCat(
            "convert_sync_batch_norm: members of a module cannot be replaced from outside: ",
            absl::StrJoin(conversion.stuck, ", "),
            "; declare them weft::SyncBatchNorm, which needs no group until this call"));
  }
  conversion.carry_out(group);
  return module;
}

}  // namespace weft
