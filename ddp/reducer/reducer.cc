#include "weft/ddp/reducer/reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "absl/strings/str_cat.h"
#include "weft/ddp/reducer/find_unused.h"

namespace weft::ddp_internal {
namespace {

using Tensors = std::vector<at::Tensor>;

int64_t kind_of(const at::Tensor& variable) {
  return (static_cast<int64_t>(variable.scalar_type()) << 32) |
         (static_cast<int64_t>(variable.device().type()) << 16) |
         static_cast<int64_t>(variable.device().index() + 1);
}

}  // namespace

// Keeps gradients in `.grad`.
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
  give_up("the group is exchanged");
  leave_buckets();
  const MutexLock lock(mutex_);
  group_ = std::move(group);
  divisor_ = group_->size();
  // Some ranks may have rebuilt their buckets, or have begun to, when other ranks were lost.
  core_.start_over();
  core_.set_buckets(assign_buckets(sizes(), options_.first_limits));
  rebuilt_ = false;
  allocate_buckets();
  broken_ = false;
  failure_.clear();
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
    // Variables hold their accumulators weakly. This vector keeps them and their hooks alive.
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
  std::vector<size_t> order;
  {
    const MutexLock lock(mutex_);
    order = core_.order_to_build();
    if (order.empty()) return false;
    core_.built_again();
  }
  // Gradients may arrive in another order on each rank, so rank 0's order holds for all.
  const at::Tensor shared = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), shared.data_ptr<int64_t>());
  at::Tensor to_send = shared;
  const at::Device device = parameters_.front().variable.device();
  if (!device.is_cpu()) to_send = shared.to(device);
  group_->broadcast(to_send, 0);
  const at::Tensor received = to_send.to(at::kCPU);
  std::vector<size_t> agreed(received.data_ptr<int64_t>(),
                             received.data_ptr<int64_t>() + received.numel());
  const MutexLock lock(mutex_);
  broken_ = true;  // stays true if there is no memory for them
  failure_ = "there was no memory for the buckets";
  core_.set_buckets(assign_buckets_in_order(sizes(), agreed, options_.limits));
  allocate_buckets();
  broken_ = false;
  failure_.clear();
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
  std::vector<size_t> unused;
  if (core_.needs_unused()) {
    unused = find_unused(outputs, accumulators_);
    unused_count_ = unused.size();
  }
  const MutexLock lock(mutex_);
  if (std::exchange(seen_elsewhere_, false) && core_.in_pass() && !core_.begun() && passes_ == 0) {
    core_.cancel();
    C10_THROW_ERROR(Error,
                    "DistributedDataParallel: the gradients of a pass of distributed autograd were "
                    "not averaged: set WorkerOptions::leaf_observer to the DdpGradients of "
                    "DdpOptions::distributed_gradients");
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
    // The prepared pass never ran, so it is dropped.
    if (const absl::Status status = core_.begin({}); !status.ok()) fail(status);
    core_.cancel();
  }
}

void Reducer::give_up(const std::string& reason) {
  const Turns::Turn turn(turns_, turns_.take_ticket());
  const MutexLock lock(mutex_);
  core_.reset();
  if (!broken_) failure_ = reason;
  broken_ = true;
  used_known_ = false;
  used_work_.reset();
  std::fill(kept_.begin(), kept_.end(), at::Tensor());
  for (Bucket& bucket : buckets_) {
    bucket.work.reset();
    bucket.future.reset();
  }
}

void Reducer::local_gradient(size_t parameter) {
  // A pass of distributed autograd runs the same hooks, perhaps inside a pass of LibTorch's engine.
  // It keeps its gradients elsewhere.
  if (torch::autograd::get_current_node() != accumulators_[parameter]) {
    return gradient_elsewhere(parameter);
  }
  if (gradient_ready(parameter, *local_)) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish(*local_); });
    return;
  }
  // The sink has usually done this before. It has not if the pass begins behind the outputs of
  // forward.
  const MutexLock lock(mutex_);
  queue_end();
}

// Reports a gradient that no GradientHome shows to this reducer: it would not be averaged, without
// any notice.
void Reducer::gradient_elsewhere(size_t parameter) {
  const MutexLock lock(mutex_);
  if (!core_.in_pass()) return;
  seen_elsewhere_ = true;
  if (options_.whole_gradients) return;
  C10_THROW_ERROR(Error,
                  absl::StrCat("DistributedDataParallel: '", parameters_[parameter].name,
                               "' got a gradient in a pass of distributed autograd, which "
                               "would not be averaged: set DdpOptions::distributed_gradients "
                               "and WorkerOptions::leaf_observer to one DdpGradients"));
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
      Step step;
      uint64_t ticket;
      {
        const MutexLock lock(mutex_);
        step = step_of(core_.at_end());
        ticket = turns_.take_ticket();
      }
      const Turns::Turn turn(turns_, ticket);
      act(step, *local_);
    }
    finish(*local_);
  });
}

bool Reducer::gradient_ready(size_t parameter, GradientHome& home) {
  const at::NoGradGuard no_grad;
  const bool defined = home.gradient(parameter).defined();
  Step step;
  uint64_t ticket;
  {
    const MutexLock lock(mutex_);
    if (core_.in_pass() && backward_began_ == Clock::time_point()) backward_began_ = Clock::now();
    absl::StatusOr<ReducerCore::Actions> actions = core_.arrived(parameter, defined);
    if (!actions.ok()) {
      broken_ = true;
      fail(actions.status());
    }
    if (actions->write.empty()) return false;
    step = step_of(*std::move(actions));
    ticket = turns_.take_ticket();
  }
  const Turns::Turn turn(turns_, ticket);
  act(step, home);
  return step.actions.last;
}

Reducer::Step Reducer::step_of(ReducerCore::Actions actions) const {
  Step step;
  step.actions = std::move(actions);
  for (const size_t parameter : step.actions.write) step.used.push_back(core_.used(parameter));
  if (step.actions.last && core_.shares_used()) {
    for (size_t i = 0; i < parameters_.size(); ++i) step.used_map.push_back(core_.used(i) ? 1 : 0);
  }
  return step;
}

void Reducer::act(const Step& step, GradientHome& home) {
  const at::NoGradGuard no_grad;
  const ReducerCore::Actions& actions = step.actions;
  for (size_t i = 0; i < actions.write.size(); ++i) write(actions.write[i], step.used[i], home);
  if (actions.last) gradients_complete_ = Clock::now();
  for (const size_t bucket : actions.reduce) reduce(bucket);
  if (!step.used_map.empty()) share_used(step.used_map);
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
  wait_for_used();  // a rank that did not need the map waits too
  std::fill(kept_.begin(), kept_.end(), at::Tensor());
  const MutexLock lock(mutex_);
  core_.finished();
  failure_ = not_finite_one;
  ++passes_;
  times_.backward = gradients_complete_ - backward_began_;
  times_.communication = reduced - reduction_began_;
  times_.overlap = waited > reduction_began_ ? waited - reduction_began_ : Clock::duration::zero();
  // The pass is over on all ranks. If the program catches this, it may skip the step and go on.
  if (!failure_.empty()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: ", failure_));
  }
}

void Reducer::shadow_pass() {
  const at::NoGradGuard no_grad;
  for (size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    if (bucket.sparse) {
      write_sparse(bucket.parameters.front(), at::Tensor(), bucket);
    } else {
      bucket.buffer.zero_();
    }
    reduce(index);
  }
  for (size_t index = 0; index < buckets_.size(); ++index) wait_for(buckets_[index], index);
  if (core_.others_share_used()) {
    used_map_ = at::zeros(
        {static_cast<int64_t>(parameters_.size())},
        at::TensorOptions().dtype(at::kInt).device(parameters_.front().variable.device()));
    used_work_ = group_->all_reduce_async(used_map_);
    wait_for_used();
  }
  // For an optimizer on this rank that goes on with its shard of the parameters.
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

}  // namespace weft::ddp_internal
