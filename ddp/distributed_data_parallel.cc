#include "weft/ddp/distributed_data_parallel.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/embedding.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/freed_memory.h"
#include "weft/ddp/batch_norm/sync_batch_norm.h"
#include "weft/ddp/distributed_gradients.h"
#include "weft/ddp/internal/output_sink.h"
#include "weft/ddp/internal/verify_parameters.h"
#include "weft/ddp/reducer/reducer.h"

namespace weft {
namespace ddp_internal {
namespace {

constexpr double kMiB = 1 << 20;
constexpr double kCapMb = 25;
constexpr double kFirstCapMb = 1;

std::vector<uint64_t> caps_of(const DdpOptions& options) {
  std::vector<double> caps = options.bucket_cap_mb;
  if (caps.empty()) caps = {kFirstCapMb, kCapMb};
  std::vector<uint64_t> bytes;
  for (const double cap : caps) {
    if (!(cap > 0) || cap > 1e12) {
      throw_ddp_error(absl::StrCat("bucket_cap_mb is positive, not ", cap));
    }
    bytes.push_back(static_cast<uint64_t>(cap * kMiB));
  }
  return bytes;
}

ReducerOptions reducer_options(const DdpOptions& options) {
  ReducerOptions result;
  result.find_unused = options.find_unused_parameters;
  result.static_graph = options.static_graph;
  result.check_nans = options.check_nans;
  result.whole_gradients = options.distributed_gradients != nullptr;
  // The buckets of a distributed pass must not become a parameter's `.grad`.
  result.gradient_as_bucket_view =
      options.gradient_as_bucket_view && options.distributed_gradients == nullptr;
  result.limits = caps_of(options);
  const bool at_once = options.find_unused_parameters && !options.static_graph;
  result.first_limits =
      at_once || options.bucket_cap_mb.size() > 1 ? result.limits : std::vector{kNoLimit};
  return result;
}

// The names of weights of embeddings with sparse gradients.
std::set<std::string> sparse_names(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& one : module.named_modules("", /*include_self=*/true)) {
    const torch::nn::Module& layer = *one.value();
    bool sparse = false;
    if (const auto* embedding = layer.as<torch::nn::EmbeddingImpl>()) {
      sparse = embedding->options.sparse();
    } else if (const auto* bag = layer.as<torch::nn::EmbeddingBagImpl>()) {
      sparse = bag->options.sparse();
    }
    if (sparse) names.insert(one.key().empty() ? "weight" : absl::StrCat(one.key(), ".weight"));
  }
  return names;
}

}  // namespace

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                                   std::shared_ptr<ProcessGroup> group, DdpOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  if (module_ == nullptr) throw_ddp_error("there is no module");
  if (group_ == nullptr) throw_ddp_error("there is no process group");
  // Each gradient is freed as soon as it is in its bucket, and the next step allocates as much
  // again.
  keep_freed_memory();
  try {
    collect();
    check_arguments();
  } catch (const c10::ValueError& refusal) {
    if (options_.init_sync) tell_others(refusal.what_without_backtrace());
    throw;
  }
  if (options_.init_sync) {
    verify_copies(*group_, description(), join_device());
    broadcast_state(0);
  }
  std::vector<ReducerParameter> parameters;
  for (size_t i = 0; i < variables_.size(); ++i) {
    parameters.push_back({names_[i], variables_[i], sparse_[i]});
  }
  reducer_ = std::make_shared<Reducer>(std::move(parameters), group_, reducer_options(options_));
  if (options_.distributed_gradients != nullptr) options_.distributed_gradients->attach(reducer_);
  tell_buckets();
}

DataParallelCore::~DataParallelCore() {
  if (options_.distributed_gradients != nullptr) options_.distributed_gradients->detach(reducer_);
}

void DataParallelCore::collect() {
  const std::set<std::string> ignored(options_.ignored.begin(), options_.ignored.end());
  std::set<std::string> sparse = sparse_names(*module_);
  sparse.insert(options_.sparse_parameters.begin(), options_.sparse_parameters.end());
  std::set<std::string> known;
  std::unordered_set<const void*> seen;
  for (const auto& one : module_->named_parameters()) {
    known.insert(one.key());
    if (ignored.count(one.key()) > 0 || !one.value().defined()) continue;
    if (!seen.insert(one.value().unsafeGetTensorImpl()).second) continue;  // shared, seen before
    if (!one.value().requires_grad()) {
      frozen_names_.push_back(one.key());
      frozen_.push_back(one.value());
      continue;
    }
    names_.push_back(one.key());
    variables_.push_back(one.value());
    sparse_.push_back(sparse.count(one.key()) > 0);
  }
  for (const auto& one : module_->named_buffers()) {
    known.insert(one.key());
    if (ignored.count(one.key()) > 0 || !one.value().defined()) continue;
    if (!seen.insert(one.value().unsafeGetTensorImpl()).second) continue;
    buffer_names_.push_back(one.key());
    buffers_.push_back(one.value());
  }
  for (const auto* const names : {&options_.ignored, &options_.sparse_parameters}) {
    for (const std::string& name : *names) {
      if (known.count(name) == 0) {
        throw_ddp_error(absl::StrCat("there is no parameter or buffer '", name, "' in the module"));
      }
    }
  }
}

void DataParallelCore::tell_others(const std::string& refusal) const {
  CopyDescription mine;
  mine.refusal = refusal.substr(std::min(refusal.size(), std::string_view(kErrorPrefix).size()));
  try {
    verify_copies(*group_, mine, exchange_device());
  } catch (const std::exception&) {
    // The caller throws the refusal itself, which says more.
  }
}

at::Device DataParallelCore::exchange_device() const {
  if (!options_.device_ids.empty()) return options_.device_ids.front();
  for (const at::Tensor& one : variables_) {
    if (one.is_cuda()) return one.device();
  }
  return at::kCPU;
}

CopyDescription DataParallelCore::description() const {
  uint64_t caps = 0;
  for (const uint64_t cap : caps_of(options_)) caps = caps * 1'000'003 + cap;
  CopyDescription mine;
  mine.options = {{"find_unused_parameters", options_.find_unused_parameters},
                  {"static_graph", options_.static_graph},
                  {"broadcast_buffers", options_.broadcast_buffers},
                  {"bucket_cap_mb", static_cast<int64_t>(caps)},
                  {"debug", static_cast<int64_t>(options_.debug)},
                  {"distributed_gradients", options_.distributed_gradients != nullptr}};
  for (size_t i = 0; i < variables_.size(); ++i) {
    mine.parameters.push_back({names_[i], variables_[i], sparse_[i]});
  }
  for (size_t i = 0; i < frozen_.size(); ++i) {
    mine.others.push_back({frozen_names_[i], frozen_[i]});
  }
  if (!options_.broadcast_buffers) return mine;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    mine.others.push_back({buffer_names_[i], buffers_[i]});
  }
  return mine;
}

void DataParallelCore::check_arguments() const {
  caps_of(options_);
  if (variables_.empty()) throw_ddp_error("no parameter of the module requires gradients");
  const at::Tensor& first = variables_.front();
  for (size_t i = 0; i < variables_.size(); ++i) {
    if (variables_[i].device().type() != first.device().type()) {
      throw_ddp_error(absl::StrCat("parameters are on several types of devices: '", names_.front(),
                                   "' on ", first.device().str(), ", '", names_[i], "' on ",
                                   variables_[i].device().str()));
    }
    if (!variables_[i].is_leaf()) {
      throw_ddp_error(absl::StrCat("parameter '", names_[i], "' is not a leaf of the graph"));
    }
  }
  if (options_.device_ids.size() > 1) {
    throw_ddp_error(absl::StrCat("device_ids names ", options_.device_ids.size(),
                                 " devices: one for each process, or none"));
  }
  for (const at::Device& device : options_.device_ids) {
    for (size_t i = 0; i < variables_.size(); ++i) {
      if (variables_[i].device() == device) continue;
      throw_ddp_error(absl::StrCat("device_ids says ", device.str(), ", parameter '", names_[i],
                                   "' is on ", variables_[i].device().str()));
    }
  }
}

at::Device DataParallelCore::join_device() const { return variables_.front().device(); }

void DataParallelCore::broadcast_state(int root) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all = variables_;
  all.insert(all.end(), frozen_.begin(), frozen_.end());
  if (options_.broadcast_buffers) all.insert(all.end(), buffers_.begin(), buffers_.end());
  group_->broadcast_coalesced(all, root);
}

void DataParallelCore::broadcast_buffers() {
  if (!broadcasts_buffers() || buffers_.empty()) return;
  const at::NoGradGuard no_grad;
  // In a join, the highest rank that still trains sends its buffers; otherwise rank 0 does.
  const int root = active_join() == nullptr ? 0 : common_rank(true);
  group_->broadcast_coalesced(buffers_, root);
}

int DataParallelCore::common_rank(bool candidate) {
  const at::Tensor rank = at::full({1}, candidate ? group_->rank() : -1,
                                   at::TensorOptions().dtype(at::kInt).device(join_device()));
  group_->all_reduce(rank, ProcessGroup::Op::MAX);
  return rank.item<int>();
}

DataParallelCore::Forward DataParallelCore::forward_of_others(Forward mine) {
  const at::Tensor most = at::full({1}, static_cast<int>(mine),
                                   at::TensorOptions().dtype(at::kInt).device(join_device()));
  group_->all_reduce(most, ProcessGroup::Op::MAX);
  return static_cast<Forward>(most.item<int>());
}

void DataParallelCore::settle() {
  if (options_.distributed_gradients != nullptr) options_.distributed_gradients->settle(reducer_);
}

void DataParallelCore::rebuild_buckets() {
  if (reducer_->rebuild_buckets()) tell_buckets();
}

void DataParallelCore::before_forward() {
  settle();
  tell_times();
  reducer_->check_whole();
  const int training = announce_step();
  const ddp_internal::ActiveJoin* const joining = active_join();
  reducer_->set_divisor(joining != nullptr && !joining->options.divide_by_initial_world_size
                            ? training
                            : group_->size());
  const bool graph = at::GradMode::is_enabled();
  if (joining != nullptr) {
    forward_of_others(!graph ? Forward::kNoGraph : sync_ ? Forward::kReduced : Forward::kLocal);
  }
  if (graph && sync_) verify_step(/*shadows=*/false);
  if (graph) rebuild_buckets();
  broadcast_buffers();
  reducer_->forward_begins();
}

void DataParallelCore::after_forward(std::vector<at::Tensor*> outputs) {
  if (!at::GradMode::is_enabled()) {
    buffers_last_sync_ = false;
    return;
  }
  buffers_last_sync_ = sync_;
  if (!sync_) return reducer_->prepare_to_accumulate();

  std::erase_if(outputs, [](const at::Tensor* one) { return !one->requires_grad(); });
  std::vector<at::Tensor> tensors;
  for (const at::Tensor* const one : outputs) tensors.push_back(*one);
  reducer_->prepare(tensors);
  if (tensors.empty() || (!options_.find_unused_parameters && !options_.static_graph)) return;
  // The graph may outlive the reducer.
  tensors =
      through_sink(tensors, options_.clone_outputs, [reducer = std::weak_ptr<Reducer>(reducer_)] {
        if (const auto here = reducer.lock()) here->backward_begins();
      });
  for (size_t i = 0; i < outputs.size(); ++i) *outputs[i] = tensors[i];
}

at::Tensor DataParallelCore::to_device(const at::Tensor& input) const {
  if (options_.device_ids.empty() || !input.defined()) return input;
  return input.to(options_.device_ids.front(), input.scalar_type(), /*non_blocking=*/true);
}

void DataParallelCore::set_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
  if (hook == nullptr) throw_ddp_error("the communication hook is null");
  if (reducer_->has_hook()) throw_ddp_error("there is a communication hook already");
  if (reducer_->passes() > 0) {
    throw_ddp_error("a communication hook is registered before the first backward pass");
  }
  reducer_->set_hook(std::move(hook));
}

void DataParallelCore::update_group(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) throw_ddp_error("there is no process group");
  settle();
  group_ = std::move(group);
  passes_before_ = reducer_->passes();
  buffers_last_sync_ = true;  // ranks may have failed at different positions
  reducer_->set_group(group_);
}

void DataParallelCore::shadow_step() {
  const Forward forward = forward_of_others(Forward::kNoGraph);
  if (forward == Forward::kReduced) verify_step(/*shadows=*/true);
  if (forward != Forward::kNoGraph) rebuild_buckets();
  if (broadcasts_buffers() && !buffers_.empty()) {
    const at::NoGradGuard no_grad;
    const int root = common_rank(false);
    group_->broadcast_coalesced(buffers_, root);
  }
  buffers_last_sync_ = forward == Forward::kReduced;
  if (forward == Forward::kReduced) reducer_->shadow_pass();
}

void DataParallelCore::check_join(const JoinOptions& options) const {
  if (options.throw_on_early_termination) return;
  for (const auto& one : module_->named_modules("", /*include_self=*/true)) {
    if (one.value()->as<SyncBatchNormImpl>() == nullptr) continue;
    throw_ddp_error(absl::StrCat("join: '", one.key(),
                                 "' is a SyncBatchNorm, whose statistics need all "
                                 "ranks' inputs: set throw_on_early_termination"));
  }
}

void DataParallelCore::end_join(bool last) { broadcast_state(common_rank(last)); }

}  // namespace ddp_internal

}  // namespace weft
