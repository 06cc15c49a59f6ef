#include "weft/ddp/reducer/reducer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
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

int64_t kind_of(const at::Tensor& variable) {
  return (static_cast<int64_t>(variable.scalar_type()) << 32) |
         (static_cast<int64_t>(variable.device().type()) << 16) |
         static_cast<int64_t>(variable.device().index() + 1);
}

std::vector<ParameterSize> sizes_of(const std::vector<ReducerParameter>& parameters) {
  std::vector<ParameterSize> sizes;
  for (const ReducerParameter& one : parameters) {
    sizes.push_back({one.variable.nbytes(), kind_of(one.variable), one.sparse});
  }
  return sizes;
}

std::vector<std::string> names_of(const std::vector<ReducerParameter>& parameters) {
  std::vector<std::string> names;
  for (const ReducerParameter& one : parameters) names.push_back(one.name);
  return names;
}

std::string text_of(const std::exception& failed) {
  const auto* const error = dynamic_cast<const c10::Error*>(&failed);
  return error != nullptr ? error->what_without_backtrace() : failed.what();
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
      options_(std::move(options)),
      local_(std::make_unique<LocalHome>(parameters_, options_.gradient_as_bucket_view)),
      order_(names_of(parameters_), {.find_unused = options_.find_unused,
                                     .static_graph = options_.static_graph,
                                     .whole_gradients = options_.whole_gradients}),
      buckets_(parameters_, std::move(group), options_.check_nans) {
  const Buckets first = assign_buckets(sizes_of(parameters_), options_.first_limits);
  order_.set_buckets(first);
  buckets_.allocate(first);
  install_hooks();
}

Reducer::~Reducer() {
  for (size_t i = 0; i < accumulators_.size(); ++i) accumulators_[i]->del_post_hook(hooks_[i]);
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

void Reducer::set_group(std::shared_ptr<ProcessGroup> group) {
  give_up("the group is exchanged");
  buckets_.set_group(std::move(group));
  // Some ranks may have rebuilt their buckets, or have begun to, when other ranks were lost.
  const Buckets first = assign_buckets(sizes_of(parameters_), options_.first_limits);
  order_.start_over(first);
  rebuilt_ = false;
  buckets_.allocate(first);
  clear_failure();
}

bool Reducer::rebuild_buckets() {
  const std::vector<size_t> order = order_.take_order_to_build();
  if (order.empty()) return false;
  const std::vector<size_t> agreed = order_of_rank_zero(order);
  set_failure("there was no memory for the buckets", /*broken=*/true);  // stays if this throws
  const Buckets built = assign_buckets_in_order(sizes_of(parameters_), agreed, options_.limits);
  order_.set_buckets(built);
  buckets_.allocate(built);
  clear_failure();
  rebuilt_ = true;
  return true;
}

// Gradients may arrive in another order on each rank, so rank 0's order holds for all.
std::vector<size_t> Reducer::order_of_rank_zero(const std::vector<size_t>& mine) {
  at::Tensor shared = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), shared.data_ptr<int64_t>());
  if (!device().is_cpu()) shared = shared.to(device());
  group()->broadcast(shared, 0);
  shared = shared.to(at::kCPU);
  return {shared.data_ptr<int64_t>(), shared.data_ptr<int64_t>() + shared.numel()};
}

void Reducer::check_whole() const {
  if (!broken_) return;
  C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: the pass before failed, and the "
                                      "ranks with it (update_process_group begins anew): ",
                                      failure()));
}

void Reducer::prepare(const std::vector<at::Tensor>& outputs) {
  std::vector<size_t> unused;
  if (order_.needs_unused()) {
    unused = find_unused(outputs, accumulators_);
    unused_count_ = unused.size();
  }
  if (order_.cancel_unseen()) {
    C10_THROW_ERROR(Error,
                    "DistributedDataParallel: the gradients of a pass of distributed autograd were "
                    "not averaged: set WorkerOptions::leaf_observer to the DdpGradients of "
                    "DdpOptions::distributed_gradients");
  }
  // Gradients that arrive from now on wait until the rest of this function has run.
  const Turns::Turn turn = order_.turn();
  if (const absl::Status status = order_.begin(std::move(unused)); !status.ok()) {
    fail(status, /*broken=*/false);
  }
  if (!options_.static_graph) used_.forget();
  buckets_.begin_pass();
  reduction_began_ = gradients_complete_ = {};
  const MutexLock lock(mutex_);
  times_.forward = Clock::now() - forward_began_;
}

void Reducer::prepare_to_accumulate() {
  if (const absl::Status status = order_.cancel(); !status.ok()) fail(status, /*broken=*/false);
}

void Reducer::give_up(const std::string& reason) {
  const Turns::Turn turn = order_.turn();
  set_first_failure(reason);
  order_.reset();
  used_.forget();
  buckets_.drop();
}

void Reducer::local_gradient(size_t parameter) {
  // A pass of distributed autograd runs the same hooks, perhaps inside a pass of LibTorch's engine.
  // It keeps its gradients elsewhere.
  if (torch::autograd::get_current_node() != accumulators_[parameter]) {
    return gradient_elsewhere(parameter);
  }
  const ReductionOrder::Step step = arrive(parameter, *local_);
  if (step.actions.last) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish(*local_); });
  }
  // The sink has usually done this before. It has not if the pass begins behind the outputs of
  // forward.
  if (step.queue_end) queue_end();
}

// Reports a gradient that no GradientHome shows to this reducer: it would not be averaged, without
// any notice.
void Reducer::gradient_elsewhere(size_t parameter) {
  if (!order_.elsewhere() || options_.whole_gradients) return;
  C10_THROW_ERROR(Error,
                  absl::StrCat("DistributedDataParallel: '", parameters_[parameter].name,
                               "' got a gradient in a pass of distributed autograd, which "
                               "would not be averaged: set DdpOptions::distributed_gradients "
                               "and WorkerOptions::leaf_observer to one DdpGradients"));
}

void Reducer::backward_begins() {
  if (torch::autograd::get_current_graph_task_id() < 0) return;
  if (order_.claim_end()) queue_end();
}

void Reducer::queue_end() {
  torch::autograd::Engine::get_default_engine().queue_callback([this] {
    act(order_.at_end(), *local_);
    finish(*local_);
  });
}

bool Reducer::gradient_ready(size_t parameter, GradientHome& home) {
  return arrive(parameter, home).actions.last;
}

ReductionOrder::Step Reducer::arrive(size_t parameter, GradientHome& home) {
  const at::NoGradGuard no_grad;
  absl::StatusOr<ReductionOrder::Step> step =
      order_.arrived(parameter, home.gradient(parameter).defined());
  if (!step.ok()) fail(step.status(), /*broken=*/true);
  if (step->has_work()) act(*step, home);
  return *std::move(step);
}

void Reducer::act(const ReductionOrder::Step& step, GradientHome& home) {
  const Turns::Turn turn = order_.turn(step);
  const at::NoGradGuard no_grad;
  const ReducerCore::Actions& actions = step.actions;
  for (size_t i = 0; i < actions.write.size(); ++i) {
    buckets_.write(actions.write[i], step.used[i], home);
  }
  if (actions.last) gradients_complete_ = Clock::now();
  if (!actions.reduce.empty() && reduction_began_ == Clock::time_point()) {
    reduction_began_ = Clock::now();
  }
  for (const size_t bucket : actions.reduce) start(bucket);
  if (!step.used_map.empty()) used_.share(*group(), step.used_map, device());
}

void Reducer::start(size_t bucket) {
  try {
    buckets_.start(bucket);
  } catch (const std::exception& failed) {
    const std::string named = absl::StrCat("bucket ", bucket, " (", buckets_.names_in(bucket), ")");
    fail_reduction(has_hook() ? absl::StrCat("the communication hook failed for ", named)
                              : absl::StrCat(named, " could not be reduced"),
                   failed);
  }
}

void Reducer::wait_for_buckets() {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    try {
      buckets_.wait(bucket);
    } catch (const std::exception& failed) {
      fail_reduction(absl::StrCat("bucket ", bucket, " (", buckets_.names_in(bucket),
                                  ") could not be reduced"),
                     failed);
    }
  }
}

void Reducer::wait_for_used() {
  try {
    used_.wait();
  } catch (const std::exception& failed) {
    fail_reduction("ranks could not tell each other which parameters they used", failed);
  }
}

void Reducer::put_back(GradientHome& home) {
  const ReductionOrder::Used used = order_.used();
  const bool shared = used.shared || used_.known();
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const size_t parameter : buckets_.parameters_in(bucket)) {
      bool nowhere = false;
      if (shared && !used.here[parameter]) {
        wait_for_used();  // only now, so that the averages before need not wait
        nowhere = used_.nowhere(parameter);
      }
      buckets_.put(parameter, nowhere, home);
    }
  }
}

void Reducer::finish(GradientHome& home) {
  const at::NoGradGuard no_grad;
  const Clock::time_point waited = Clock::now();
  wait_for_buckets();
  const Clock::time_point reduced = Clock::now();
  const std::string not_finite = options_.check_nans ? buckets_.not_finite() : "";
  put_back(home);
  wait_for_used();  // a rank that did not need the map waits too
  const Clock::time_point backward_began = order_.finished();
  {
    const MutexLock lock(mutex_);
    failure_ = not_finite;
    times_.backward = gradients_complete_ - backward_began;
    times_.communication = reduced - reduction_began_;
    times_.overlap = std::max(waited - reduction_began_, Clock::duration::zero());
  }
  // The pass is over on all ranks. If the program catches this, it may skip the step and go on.
  if (!not_finite.empty()) {
    C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: ", not_finite));
  }
}

void Reducer::shadow_pass() {
  const at::NoGradGuard no_grad;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    buckets_.write_zeros(bucket);
    start(bucket);
  }
  wait_for_buckets();
  if (order_.others_share_used()) {
    used_.share(*group(), std::vector<int32_t>(parameters_.size(), 0), device());
    wait_for_used();
  }
  // For an optimizer on this rank that goes on with its shard of the parameters.
  if (!options_.whole_gradients) put_back(*local_);
  order_.shadowed();
}

Reducer::Times Reducer::times() const {
  const MutexLock lock(mutex_);
  return times_;
}

std::string Reducer::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void Reducer::set_failure(std::string failure, bool broken) {
  const MutexLock lock(mutex_);
  failure_ = std::move(failure);
  if (broken) broken_ = true;
}

void Reducer::set_first_failure(std::string failure) {
  const MutexLock lock(mutex_);
  if (broken_) return;
  failure_ = std::move(failure);
  broken_ = true;
}

void Reducer::clear_failure() {
  const MutexLock lock(mutex_);
  failure_.clear();
  broken_ = false;
}

void Reducer::fail(const absl::Status& status, bool broken) {
  const std::string failure(status.message());
  set_failure(failure, broken);
  C10_THROW_ERROR(Error, absl::StrCat("DistributedDataParallel: ", failure));
}

void Reducer::fail_reduction(const std::string& what, const std::exception& why) {
  const std::string failure = absl::StrCat(what, ": ", text_of(why));
  set_failure(failure, /*broken=*/true);
  C10_THROW_ERROR(DistBackendError, absl::StrCat("DistributedDataParallel: ", failure));
}

}  // namespace weft::ddp_internal
