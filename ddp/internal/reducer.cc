#include "weft/ddp/internal/reducer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/ddp/internal/scaled_copy.h"

namespace weft::internal {
namespace {

using c10::intrusive_ptr;
using Tensors = std::vector<at::Tensor>;

constexpr size_t kMostNames = 5;

std::string text_of(const std::exception& failed) {
  const auto* const error = dynamic_cast<const c10::Error*>(&failed);
  return error != nullptr ? error->what_without_backtrace() : failed.what();
}

int64_t kind_of(const at::Tensor& variable) {
  return (static_cast<int64_t>(variable.scalar_type()) << 32) |
         (static_cast<int64_t>(variable.device().type()) << 16) |
         static_cast<int64_t>(variable.device().index() + 1);
}

// A tensor on the same memory that autograd does not take for a view: users may detach_() it.
at::Tensor slice_like(const at::Tensor& flat, int64_t begin, const at::Tensor& variable) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor part = flat.narrow(0, begin, variable.numel());
  return variable.is_non_overlapping_and_dense()
             ? part.as_strided(variable.sizes(), variable.strides(), part.storage_offset())
             : part.view(variable.sizes());
}

bool same_memory(const at::Tensor& one, const at::Tensor& other) {
  return one.data_ptr() == other.data_ptr() && one.strides() == other.strides();
}

}  // namespace

struct Reducer::Bucket {
  std::vector<size_t> parameters;
  bool sparse = false;
  at::Tensor buffer;  // flat; of a sparse bucket, the gradient of the pass
  Tensors slices;
  std::vector<size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  intrusive_ptr<c10d::Work> work;  // of the pass: one of these two
  intrusive_ptr<c10::ivalue::Future> future;
};

// Gradients in `.grad`.
class Reducer::LocalHome final : public GradientHome {
 public:
  LocalHome(const std::vector<ReducerParameter>& parameters, bool views)
      : parameters_(parameters), views_(views) {}

  at::Tensor& gradient(size_t parameter) override {
    return parameters_[parameter].variable.mutable_grad();
  }
  void put(size_t parameter, const at::Tensor& average) override {
    at::Tensor& own = gradient(parameter);
    if (own.defined() && !own.is_sparse() && !average.is_sparse()) {
      own.copy_(average);
    } else if (average.is_sparse()) {
      own = average;
    } else {
      own = torch::autograd::utils::clone_obey_contract(average, parameters_[parameter].variable);
    }
  }
  bool views() const override { return views_; }

 private:
  const std::vector<ReducerParameter>& parameters_;
  const bool views_;
};

Reducer::Reducer(std::vector<ReducerParameter> parameters, std::shared_ptr<ProcessGroup> group,
                 ReducerOptions options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(std::move(options)),
      divisor_(group_->size()),
      local_(std::make_unique<LocalHome>(parameters_, options_.gradient_as_bucket_view)),
      core_(
          [this] {
            std::vector<std::string> names;
            for (const ReducerParameter& one : parameters_) names.push_back(one.name);
            return names;
          }(),
          {.find_unused = options_.find_unused,
           .static_graph = options_.static_graph,
           .whole_gradients = options_.whole_gradients}),
      kept_(parameters_.size()),
      with_nans_(parameters_.size(), false) {
  core_.set_buckets(assign_buckets(sizes(), options_.first_limits));
  allocate_buckets();
  install_hooks();
}

Reducer::~Reducer() {
  for (size_t i = 0; i < accumulators_.size(); ++i) accumulators_[i]->del_post_hook(hooks_[i]);
}

void Reducer::set_hook(std::shared_ptr<c10d::CommHookInterface> hook) { hook_ = std::move(hook); }

void Reducer::set_group(std::shared_ptr<ProcessGroup> group) {
  reset();
  const MutexLock lock(mutex_);
  group_ = std::move(group);
  divisor_ = group_->size();
  // Some ranks may have built their buckets again, or begun to, when others were lost.
  core_.start_over();
  core_.set_buckets(assign_buckets(sizes(), options_.first_limits));
  rebuilt_ = false;
  allocate_buckets();
}

std::vector<ParameterSize> Reducer::sizes() const {
  std::vector<ParameterSize> sizes;
  for (const ReducerParameter& one : parameters_) {
    sizes.push_back({one.variable.nbytes(), kind_of(one.variable), one.sparse});
  }
  return sizes;
}

void Reducer::install_hooks() {
  for (size_t parameter = 0; parameter < parameters_.size(); ++parameter) {
    // Variables hold their accumulators weakly: this keeps them, and the hooks with them.
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters_[parameter].variable);
    hooks_.push_back(
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [this, parameter](const torch::autograd::variable_list& outputs,
                              const torch::autograd::variable_list&) {
              local_gradient(parameter);
              return outputs;
            })));
    accumulators_.push_back(std::move(accumulator));
  }
}

void Reducer::allocate_buckets() {
  buckets_.clear();
  place_.assign(parameters_.size(), {0, 0});
  for (const auto& indices : core_.buckets()) {
    Bucket bucket;
    bucket.parameters = indices;
    const at::Tensor& first = parameters_[indices.front()].variable;
    bucket.sparse = parameters_[indices.front()].sparse;
    int64_t count = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      const at::Tensor& variable = parameters_[indices[i]].variable;
      place_[indices[i]] = {buckets_.size(), i};
      bucket.offsets.push_back(static_cast<size_t>(count));
      bucket.lengths.push_back(static_cast<size_t>(variable.numel()));
      bucket.sizes.push_back(variable.sizes());
      count += variable.numel();
    }
    if (!bucket.sparse) {
      const auto how = first.options().requires_grad(false);
      const auto& backend = group_->backend();
      if (count > 0 && backend->supportsTensorAlloc(first.device().index())) {
        bucket.buffer = backend->allocateTensor(count, how);
      } else {
        bucket.buffer = at::empty({count}, how);
      }
      for (size_t i = 0; i < indices.size(); ++i) {
        bucket.slices.push_back(slice_like(bucket.buffer, static_cast<int64_t>(bucket.offsets[i]),
                                           parameters_[indices[i]].variable));
      }
    }
    buckets_.push_back(std::move(bucket));
  }
}

std::vector<uint64_t> Reducer::bucket_bytes() const {
  std::vector<uint64_t> bytes;
  for (const auto& indices : core_.buckets()) {
    uint64_t sum = 0;
    for (const size_t parameter : indices) sum += parameters_[parameter].variable.nbytes();
    bytes.push_back(sum);
  }
  return bytes;
}

bool Reducer::rebuild_buckets() {
  const MutexLock lock(mutex_);
  const std::vector<size_t> order = core_.order_to_build();
  if (order.empty()) return false;
  core_.built_again();
  // Rank 0's order holds: arrival may differ from rank to rank.
  const at::Tensor shared = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), shared.data_ptr<int64_t>());
  at::Tensor to_send = shared;
  const at::Device device = parameters_.front().variable.device();
  if (!device.is_cpu()) to_send = shared.to(device);
  group_->broadcast(to_send, 0);
  const at::Tensor received = to_send.to(at::kCPU);
  std::vector<size_t> agreed(received.data_ptr<int64_t>(),
                             received.data_ptr<int64_t>() + received.numel());
  core_.set_buckets(assign_buckets_in_order(sizes(), agreed, options_.limits));
  allocate_buckets();
  rebuilt_ = true;
  return true;
}

void Reducer::check_whole() const {
  if (!broken_) return;
  C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the pass before failed, and the "
                                      "ranks with it (update_process_group begins anew): ",
                                      failure_));
}

void Reducer::prepare(const Tensors& outputs) {
  const MutexLock lock(mutex_);
  std::vector<size_t> unused;
  if (core_.needs_unused()) {
    unused = find_unused(outputs, accumulators_);
    unused_count_ = unused.size();
  }
  if (const absl::Status status = core_.begin(std::move(unused)); !status.ok()) {
    fail(status);
  }
  callback_queued_ = false;
  used_known_ = used_known_ && options_.static_graph;
  std::fill(with_nans_.begin(), with_nans_.end(), false);
  times_.forward = Clock::now() - forward_began_;
  backward_began_ = reduction_began_ = gradients_complete_ = {};
}

void Reducer::prepare_to_accumulate() {
  const MutexLock lock(mutex_);
  if (core_.in_pass()) {
    // A pass that was prepared and never ran is none.
    if (const absl::Status status = core_.begin({}); !status.ok()) fail(status);
    core_.cancel();
  }
}

void Reducer::reset() {
  const MutexLock lock(mutex_);
  core_.reset();
  broken_ = false;
  used_known_ = false;
  used_work_.reset();
  std::fill(kept_.begin(), kept_.end(), at::Tensor());
  for (Bucket& bucket : buckets_) {
    bucket.work.reset();
    bucket.future.reset();
  }
}

void Reducer::local_gradient(size_t parameter) {
  // A pass of distributed autograd runs the same hooks, perhaps inside one of LibTorch's engine,
  // and keeps its gradients elsewhere.
  if (torch::autograd::get_current_node() != accumulators_[parameter]) return;
  if (gradient_ready(parameter, *local_)) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish(*local_); });
    return;
  }
  // As a rule the sink has done this. Not for a pass that begins behind the outputs of forward.
  const MutexLock lock(mutex_);
  queue_end();
}

void Reducer::backward_begins() {
  if (torch::autograd::get_current_graph_task_id() < 0) return;
  const MutexLock lock(mutex_);
  queue_end();
}

void Reducer::queue_end() {
  if (!core_.reduces_at_end() || std::exchange(callback_queued_, true)) return;
  torch::autograd::Engine::get_default_engine().queue_callback([this] {
    {
      const MutexLock lock(mutex_);
      act(core_.at_end(), *local_);
    }
    finish(*local_);
  });
}

bool Reducer::gradient_ready(size_t parameter, GradientHome& home) {
  const at::NoGradGuard no_grad;
  const MutexLock lock(mutex_);
  if (core_.in_pass() && backward_began_ == Clock::time_point()) backward_began_ = Clock::now();
  const absl::StatusOr<ReducerCore::Actions> actions =
      core_.arrived(parameter, home.gradient(parameter).defined());
  if (!actions.ok()) {
    broken_ = true;
    fail(actions.status());
  }
  act(*actions, home);
  return actions->last;
}

void Reducer::act(const ReducerCore::Actions& actions, GradientHome& home) {
  const at::NoGradGuard no_grad;
  for (const size_t parameter : actions.write) write(parameter, home);
  if (actions.last) gradients_complete_ = Clock::now();
  for (const size_t bucket : actions.reduce) reduce(bucket);
  if (actions.last && core_.shares_used()) share_used();
}

void Reducer::write(size_t parameter, GradientHome& home) {
  const auto [index, at] = place_[parameter];
  Bucket& bucket = buckets_[index];
  at::Tensor& gradient = home.gradient(parameter);
  if (bucket.sparse) return write_sparse(parameter, gradient, bucket);
  const at::Tensor& slice = bucket.slices[at];
  if (!gradient.defined()) {
    slice.zero_();
    return;
  }
  if (gradient.is_sparse()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the gradient of '",
                                        parameters_[parameter].name,
                                        "' is sparse: name it in sparse_parameters"));
  }
  if (options_.check_nans && !at::isfinite(gradient).all().item<bool>()) {
    with_nans_[parameter] = true;
  }
  const double factor = hook_ == nullptr ? 1.0 / divisor_ : 1.0;
  const bool in_place = same_memory(gradient, slice);
  // One that no rank used must come out as it was.
  if (in_place && !core_.used(parameter)) kept_[parameter] = gradient.clone();
  if (!in_place) {
    scaled_copy(slice, gradient, factor);
  } else if (factor != 1) {
    slice.mul_(factor);
  }
  if (home.views() && !in_place && core_.used(parameter)) gradient = slice;
}

void Reducer::write_sparse(size_t parameter, const at::Tensor& gradient, Bucket& bucket) {
  const at::Tensor& variable = parameters_[parameter].variable;
  if (gradient.defined() && !gradient.is_sparse()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the gradient of '",
                                        parameters_[parameter].name,
                                        "' is not sparse, which its layer said it would be"));
  }
  if (gradient.defined()) {
    bucket.buffer = gradient.coalesce();
    if (options_.check_nans && !at::isfinite(bucket.buffer._values()).all().item<bool>()) {
      with_nans_[parameter] = true;
    }
  } else {
    // No rows. Embeddings, the only layers with sparse gradients, have them by rows.
    std::vector<int64_t> rows = variable.sizes().vec();
    rows[0] = 0;
    const auto how = variable.options().requires_grad(false);
    bucket.buffer = at::sparse_coo_tensor(at::empty({1, 0}, how.dtype(at::kLong)),
                                          at::empty(rows, how), variable.sizes())
                        .coalesce();
  }
  if (hook_ == nullptr && divisor_ != 1) bucket.buffer = bucket.buffer.div(divisor_).coalesce();
}

void Reducer::reduce(size_t index) {
  Bucket& bucket = buckets_[index];
  if (reduction_began_ == Clock::time_point()) reduction_began_ = Clock::now();
  if (hook_ != nullptr) {
    Tensors variables;
    for (const size_t parameter : bucket.parameters) {
      variables.push_back(parameters_[parameter].variable);
    }
    c10d::GradBucket given(index, buckets_.size(), bucket.buffer, bucket.offsets, bucket.lengths,
                           bucket.sizes, std::move(variables), std::nullopt);
    try {
      bucket.future = hook_->runHook(given);
      TORCH_CHECK(bucket.future != nullptr, "it returned no future");
    } catch (const std::exception& failed) {
      fail_reduction(absl::StrCat("the communication hook failed for bucket ", index, " (",
                                  names_in(bucket), ")"),
                     failed);
    }
    return;
  }
  try {
    bucket.work = group_->all_reduce_async(bucket.buffer);
  } catch (const std::exception& failed) {
    fail_reduction(absl::StrCat("bucket ", index, " (", names_in(bucket), ") could not be reduced"),
                   failed);
  }
}

void Reducer::share_used() {
  const auto count = static_cast<int64_t>(parameters_.size());
  used_map_ = at::empty({count}, at::kInt);
  int32_t* const used = used_map_.data_ptr<int32_t>();
  for (int64_t i = 0; i < count; ++i) used[i] = core_.used(static_cast<size_t>(i)) ? 1 : 0;
  const at::Device device = parameters_.front().variable.device();
  if (!device.is_cpu()) used_map_ = used_map_.to(device);
  used_work_ = group_->all_reduce_async(used_map_);
}

void Reducer::wait_for(Bucket& bucket, size_t index) {
  try {
    if (bucket.work != nullptr) {
      const intrusive_ptr<c10d::Work> work = std::exchange(bucket.work, nullptr);
      work->wait();
      if (bucket.sparse) {
        const Tensors results = work->result();
        if (!results.empty()) bucket.buffer = results[0];
      }
    } else if (bucket.future != nullptr) {
      const auto future = std::exchange(bucket.future, nullptr);
      future->wait();
      if (future->hasError()) future->value();  // throws it
      const at::Tensor result = hook_->parseHookResult(future->value());
      TORCH_CHECK(result.defined() && result.numel() == bucket.buffer.numel(),
                  "the communication hook's result is not of the size of the bucket");
      if (bucket.sparse) {
        bucket.buffer = result;
      } else if (!same_memory(result.view({-1}), bucket.buffer)) {
        bucket.buffer.copy_(result.view({-1}));
      }
    }
  } catch (const std::exception& failed) {
    fail_reduction(absl::StrCat("bucket ", index, " (", names_in(bucket), ") could not be reduced"),
                   failed);
  }
}

void Reducer::wait_for_used() {
  if (used_work_ == nullptr) return;
  try {
    std::exchange(used_work_, nullptr)->wait();
  } catch (const std::exception& failed) {
    fail_reduction("ranks could not tell each other which parameters they used", failed);
  }
  used_map_ = used_map_.to(at::kCPU);
  used_known_ = true;  // of a static graph, for good
}

void Reducer::fail_reduction(const std::string& what, const std::exception& why) {
  failure_ = absl::StrCat(what, ": ", text_of(why));
  broken_ = true;
  C10_THROW_ERROR(DistBackendError, absl::StrCat("DistributedDataParallel: ", failure_));
}

void Reducer::fail(const absl::Status& status) {
  failure_ = std::string(status.message());
  C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: ", failure_));
}

std::string Reducer::names_in(const Bucket& bucket) const {
  std::vector<std::string> names;
  for (const size_t parameter : bucket.parameters) {
    if (names.size() == kMostNames) {
      names.push_back(absl::StrCat(bucket.parameters.size() - kMostNames, " more"));
      break;
    }
    names.push_back(parameters_[parameter].name);
  }
  return absl::StrJoin(names, ", ");
}

bool Reducer::used_nowhere(size_t parameter) {
  if (core_.used(parameter)) return false;
  if (!core_.shares_used() && !used_known_) return false;
  wait_for_used();
  return used_map_.data_ptr<int32_t>()[parameter] == 0;
}

void Reducer::put(size_t parameter, const at::Tensor& slice, GradientHome& home) {
  if (used_nowhere(parameter)) {
    if (kept_[parameter].defined()) home.gradient(parameter).copy_(kept_[parameter]);
    return;
  }
  if (!home.views()) return home.put(parameter, slice);
  at::Tensor& gradient = home.gradient(parameter);
  if (slice.is_sparse() || !gradient.defined() || !same_memory(gradient, slice)) gradient = slice;
}

void Reducer::finish(GradientHome& home) {
  const at::NoGradGuard no_grad;
  const Clock::time_point waited = Clock::now();
  for (size_t index = 0; index < buckets_.size(); ++index) wait_for(buckets_[index], index);
  const Clock::time_point reduced = Clock::now();
  const std::string not_finite_one = options_.check_nans ? not_finite() : "";
  for (Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      put(bucket.parameters[i], bucket.sparse ? bucket.buffer : bucket.slices[i], home);
    }
  }
  wait_for_used();  // also a rank that did not need it
  std::fill(kept_.begin(), kept_.end(), at::Tensor());
  const MutexLock lock(mutex_);
  core_.finished();
  failure_ = not_finite_one;
  ++passes_;
  times_.backward = gradients_complete_ - backward_began_;
  times_.communication = reduced - reduction_began_;
  times_.overlap = waited > reduction_began_ ? waited - reduction_began_ : Clock::duration::zero();
  // The pass has ended on all ranks: who catches this may skip the step and go on.
  if (!failure_.empty()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: ", failure_));
  }
}

std::string Reducer::not_finite() const {
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      const at::Tensor& slice = bucket.sparse ? bucket.buffer._values() : bucket.slices[i];
      if (at::isfinite(slice).all().item<bool>()) continue;
      const size_t parameter = bucket.parameters[i];
      return absl::StrCat("the averaged gradient of '", parameters_[parameter].name,
                          "' is not finite; this rank's own was ",
                          with_nans_[parameter] ? "not either" : "finite");
    }
  }
  return "";
}

void Reducer::shadow_pass() {
  const at::NoGradGuard no_grad;
  {
    const MutexLock lock(mutex_);
    for (size_t index = 0; index < buckets_.size(); ++index) {
      Bucket& bucket = buckets_[index];
      if (bucket.sparse) {
        write_sparse(bucket.parameters.front(), at::Tensor(), bucket);
      } else {
        bucket.buffer.zero_();
      }
      reduce(index);
    }
  }
  for (size_t index = 0; index < buckets_.size(); ++index) wait_for(buckets_[index], index);
  if (core_.others_share_used()) {
    used_map_ = at::zeros(
        {static_cast<int64_t>(parameters_.size())},
        at::TensorOptions().dtype(at::kInt).device(parameters_.front().variable.device()));
    used_work_ = group_->all_reduce_async(used_map_);
    wait_for_used();
  }
  // For an optimizer that goes on with this rank's share of the parameters.
  if (!options_.whole_gradients) {
    for (const Bucket& bucket : buckets_) {
      for (size_t i = 0; i < bucket.parameters.size(); ++i) {
        put(bucket.parameters[i], bucket.sparse ? bucket.buffer : bucket.slices[i], *local_);
      }
    }
  }
  const MutexLock lock(mutex_);
  core_.shadowed();
}

std::vector<size_t> find_unused(const Tensors& outputs,
                                const std::vector<std::shared_ptr<torch::autograd::Node>>& leaves) {
  std::unordered_map<const torch::autograd::Node*, size_t> left;
  for (size_t i = 0; i < leaves.size(); ++i) left[leaves[i].get()] = i;
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!open.empty() && !left.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    left.erase(node);
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<size_t> unused;
  for (const auto& [node, index] : left) unused.push_back(index);
  std::sort(unused.begin(), unused.end());
  return unused;
}

}  // namespace weft::internal
