#include "weft/ddp/zero_redundancy_optimizer.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "weft/comm/exchange_device.h"
#include "weft/ddp/internal/exchange_bytes.h"
#include "weft/ddp/internal/move_states.h"

namespace weft {
namespace {

using torch::optim::OptimizerParamGroup;

// A text of everything that must be the same on all ranks, one line for each parameter.
std::string describe(const std::vector<OptimizerParamGroup>& groups) {
  std::vector<std::string> lines;
  std::unordered_map<const void*, size_t> seen;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group].params()) {
      std::string line = absl::StrCat("group ", group, ", ");
      const auto [first, is_new] = seen.emplace(parameter.unsafeGetTensorImpl(), lines.size());
      if (!parameter.defined()) {
        line += "not a tensor";
      } else if (!is_new) {
        absl::StrAppend(&line, "the same as parameter ", first->second);
      } else {
        absl::StrAppend(&line, c10::toString(parameter.scalar_type()), " [",
                        absl::StrJoin(parameter.sizes(), ", "), "] on ",
                        c10::DeviceTypeName(parameter.device().type(), /*lower_case=*/true));
        if (!parameter.is_leaf()) line += ", not a leaf";
      }
      lines.push_back(std::move(line));
    }
  }
  return absl::StrJoin(lines, "\n");
}

std::vector<std::string> lines_of(const std::string& text) {
  return text.empty() ? std::vector<std::string>() : absl::StrSplit(text, '\n');
}

void refuse_difference(const std::vector<std::string>& mine, const std::vector<std::string>& theirs,
                       int rank) {
  const size_t both = std::min(mine.size(), theirs.size());
  for (size_t i = 0; i < both; ++i) {
    if (mine[i] == theirs[i]) continue;
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("ZeRO: parameter ", i, " differs among the ranks: ", mine[i],
                                 " on rank 0, ", theirs[i], " on rank ", rank));
  }
  if (mine.size() == theirs.size()) return;
  C10_THROW_ERROR(ValueError,
                  absl::StrCat("ZeRO: parameter ", both, " is not on all ranks: rank 0 ", "has ",
                               mine.size(), " parameters, rank ", rank, " has ", theirs.size()));
}

// A part of `flat` with the parameter's shape. It has the parameter's strides if these leave no
// gaps.
at::Tensor view_like(const at::Tensor& flat, int64_t begin, const at::Tensor& parameter) {
  const at::Tensor part = flat.narrow(0, begin, parameter.numel());
  return parameter.is_non_overlapping_and_dense()
             ? part.as_strided(parameter.sizes(), parameter.strides())
             : part.view(parameter.sizes());
}

at::Tensor flatten(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& parameter : parameters) pieces.push_back(parameter.reshape(-1));
  return at::cat(pieces);
}

int64_t numel_of(const std::vector<at::Tensor>& parameters) {
  return std::accumulate(parameters.begin(), parameters.end(), int64_t{0},
                         [](int64_t sum, const at::Tensor& one) { return sum + one.numel(); });
}

void move_state(torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  for (const OptimizerParamGroup& group : to.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = from.state().find(parameter.unsafeGetTensorImpl());
      if (found != from.state().end()) to.state()[found->first] = std::move(found->second);
    }
  }
}

}  // namespace

std::vector<std::vector<int>> zero_partition(const std::vector<std::vector<int64_t>>& numels,
                                             int world_size) {
  std::vector<std::vector<int>> result;
  std::vector<int64_t> loads(world_size, 0);
  for (const std::vector<int64_t>& group : numels) {
    std::vector<size_t> order(group.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return group[a] > group[b]; });
    std::vector<int>& ranks = result.emplace_back(group.size());
    for (const size_t i : order) {
      const auto least = std::min_element(loads.begin(), loads.end());
      ranks[i] = static_cast<int>(least - loads.begin());
      *least += group[i];
    }
  }
  return result;
}

ZeroRedundancyOptimizerBase::ZeroRedundancyOptimizerBase(
    const Groups& groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults, Make make,
    std::shared_ptr<ProcessGroup> group, const ZeroOptions& options)
    : Optimizer(Groups(), std::move(defaults)),
      make_(std::move(make)),
      group_(std::move(group)),
      options_(options) {
  if (group_ == nullptr) C10_THROW_ERROR(ValueError, "ZeRO: the process group is null");
  check_groups(groups);
  for (const OptimizerParamGroup& one : groups) take(one);
  make_buckets(0);
  local_ = make_(groups_of(group_->rank()));
}

ZeroRedundancyOptimizerBase::~ZeroRedundancyOptimizerBase() = default;

// Every rank finds the same answer, so none goes on alone.
void ZeroRedundancyOptimizerBase::check_groups(const Groups& groups) {
  Groups all = param_groups();
  for (const OptimizerParamGroup& one : groups) all.push_back(one);
  c10::Device device = c10::kCPU;
  for (const OptimizerParamGroup& group : all) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.defined() && device.is_cpu()) device = parameter.device();
    }
  }
  const std::vector<std::string> texts = ddp_internal::all_gather_bytes(
      *group_, describe(all), comm_internal::exchange_device(*group_, device));
  const std::vector<std::string> expected = lines_of(texts[0]);
  for (int rank = 1; rank < group_->size(); ++rank) {
    refuse_difference(expected, lines_of(texts[rank]), rank);
  }
  if (expected.empty()) C10_THROW_ERROR(ValueError, "ZeRO: there are no parameters");
  for (size_t i = 0; i < expected.size(); ++i) {
    for (const char* fault : {"not a tensor", "the same as", "not a leaf"}) {
      if (expected[i].find(fault) == std::string::npos) continue;
      C10_THROW_ERROR(ValueError,
                      absl::StrCat("ZeRO: parameter ", i, " cannot be optimized: ", expected[i]));
    }
  }
}

void ZeroRedundancyOptimizerBase::take(const OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  std::vector<std::vector<int64_t>> numels;
  for (const OptimizerParamGroup& one : param_groups()) {
    std::vector<int64_t>& sizes = numels.emplace_back();
    for (const at::Tensor& parameter : one.params()) sizes.push_back(parameter.numel());
  }
  // Groups are dealt out one after the other, so the parameters of earlier groups keep their ranks.
  partition_ = zero_partition(numels, group_->size());
}

void ZeroRedundancyOptimizerBase::make_buckets(size_t first_group) {
  const size_t first_bucket = buckets_.size();
  for (size_t group = first_group; group < partition_.size(); ++group) {
    const std::vector<at::Tensor>& parameters = param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int rank = partition_[group][i];
      const auto same =
          std::find_if(buckets_.begin() + first_bucket, buckets_.end(), [&](const Bucket& bucket) {
            return bucket.rank == rank &&
                   bucket.parameters[0].scalar_type() == parameters[i].scalar_type() &&
                   bucket.parameters[0].device() == parameters[i].device();
          });
      if (same != buckets_.end()) {
        same->parameters.push_back(parameters[i]);
      } else {
        buckets_.push_back({rank, {parameters[i]}, {}});
      }
    }
  }
  if (!options_.parameters_as_bucket_view) return;
  const at::NoGradGuard no_grad;
  for (size_t i = first_bucket; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    bucket.flat = at::empty({numel_of(bucket.parameters)}, bucket.parameters[0].options());
    int64_t begin = 0;
    for (at::Tensor& parameter : bucket.parameters) {
      const at::Tensor view = view_like(bucket.flat, begin, parameter);
      view.copy_(parameter);
      parameter.set_data(view);
      begin += parameter.numel();
    }
  }
}

ZeroRedundancyOptimizerBase::Groups ZeroRedundancyOptimizerBase::groups_of(int rank) const {
  Groups result;
  for (size_t group = 0; group < partition_.size(); ++group) {
    const OptimizerParamGroup& whole = param_groups()[group];
    std::vector<at::Tensor> share;
    for (size_t i = 0; i < whole.params().size(); ++i) {
      if (partition_[group][i] == rank) share.push_back(whole.params()[i]);
    }
    result.emplace_back(std::move(share), whole.options().clone());
  }
  return result;
}

c10::Device ZeroRedundancyOptimizerBase::device() const {
  return buckets_[0].parameters[0].device();
}

at::Tensor ZeroRedundancyOptimizerBase::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  consolidated_.reset();
  for (size_t i = 0; i < param_groups().size(); ++i) {
    local_->param_groups()[i].set_options(param_groups()[i].options().clone());
  }
  local_->step();
  send_parameters();
  return loss;
}

void ZeroRedundancyOptimizerBase::send_parameters() {
  const at::NoGradGuard no_grad;
  const int own = group_->rank();
  std::vector<std::pair<at::Tensor, ProcessGroup::Work>> sent;
  for (const Bucket& bucket : buckets_) {
    at::Tensor flat = bucket.flat;
    if (!flat.defined() && bucket.rank == own) flat = flatten(bucket.parameters);
    if (!flat.defined()) {
      flat = at::empty({numel_of(bucket.parameters)}, bucket.parameters[0].options());
    }
    sent.emplace_back(flat, group_->broadcast_async(flat, bucket.rank));
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const auto& [flat, work] = sent[i];
    work->wait();
    if (buckets_[i].flat.defined() || buckets_[i].rank == own) continue;
    int64_t begin = 0;
    for (const at::Tensor& parameter : buckets_[i].parameters) {
      parameter.copy_(flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
      begin += parameter.numel();
    }
  }
}

void ZeroRedundancyOptimizerBase::add_param_group(const OptimizerParamGroup& group) {
  check_groups({group});
  consolidated_.reset();
  take(group);
  make_buckets(partition_.size() - 1);
  local_->add_param_group(groups_of(group_->rank()).back());
}

void ZeroRedundancyOptimizerBase::consolidate_state_dict(int to) {
  if (to < 0 || to >= group_->size()) {
    C10_THROW_ERROR(ValueError, absl::StrCat("ZeRO: cannot gather the state on rank ", to,
                                             " of a group of ", group_->size()));
  }
  consolidated_.reset();
  torch::serialize::OutputArchive share;
  local_->save(share);
  std::ostringstream bytes;
  share.save_to(bytes);
  const std::vector<std::string> shares = ddp_internal::gather_bytes(
      *group_, std::move(bytes).str(), to, comm_internal::exchange_device(*group_, device()));
  if (group_->rank() != to) return;
  std::unique_ptr<Optimizer> whole = make_(param_groups());
  for (int rank = 0; rank < group_->size(); ++rank) {
    torch::serialize::InputArchive archive;
    std::istringstream stream(shares[rank]);
    archive.load_from(stream, device());
    const std::unique_ptr<Optimizer> part = make_(groups_of(rank));
    part->load(archive);
    for (auto& [parameter, state] : part->state()) whole->state()[parameter] = std::move(state);
  }
  consolidated_ = std::move(whole);
}

void ZeroRedundancyOptimizerBase::save(torch::serialize::OutputArchive& archive) const {
  if (consolidated_ == nullptr) {
    C10_THROW_ERROR(ValueError, absl::StrCat("ZeRO: rank ", group_->rank(),
                                             " does not hold the whole state: all ranks must call "
                                             "consolidate_state_dict(",
                                             group_->rank(), ") after the last step"));
  }
  consolidated_->save(archive);
}

void ZeroRedundancyOptimizerBase::load(torch::serialize::InputArchive& archive) {
  const std::unique_ptr<Optimizer> whole = make_(param_groups());
  whole->load(archive);
  consolidated_.reset();
  for (size_t i = 0; i < param_groups().size(); ++i) {
    param_groups()[i].set_options(whole->param_groups()[i].options().clone());
  }
  local_->state().clear();
  move_state(*whole, *local_);
  ddp_internal::move_states_to_parameters(*local_);
}

}  // namespace weft
