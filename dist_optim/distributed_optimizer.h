// Updates parameters that live on many workers: one optimizer for the program, and each owner
// updates its own part.
//
//   weft::DistributedOptimizer<torch::optim::SGD> optimizer(  // #include <torch/optim/sgd.h>
//       {head.parameters()}, torch::optim::SGDOptions(0.05));
//   weft::dist_autograd::Context context;
//   context.backward({loss_of(batch)});
//   optimizer.step(context);
//
// Mode locked (the default): all owners prepare a step. Then all that are still alive commit it, or
// none does. Forwards keep the version that they read. Mode hogwild: each owner gets one message
// and applies it in place when it arrives. There is no all-or-none and no clipping. The optimizer's
// state lives with the parameters. It belongs to this object, or to all optimizers with the same
// shared_name.
//
// Thread safety: one step at a time. Between steps, the other methods may be called from any
// thread.
// Lifetime: keeps its worker's runtime weakly, and references to the parameters.
// Blocking: step, resume, and the methods that save or load state wait for owners. So does
// construction, in mode locked over several sets.
// Errors: RpcError. If the outcome is NotApplied, the code is FailedPrecondition, InvalidArgument,
// Unavailable and so on (Aborted: no owner applied a hogwild step). DataLoss has two reasons. In
// one, an owner may or may not have applied what others did. In the other, an owner came back from
// a checkpoint (docs/durable_steps.md); then every step is DataLoss until resume().
// StepResult::status tells which. If an owner refuses the options, the first step fails, or
// construction in mode locked over several sets. Exceptions of C++: std::invalid_argument (no
// parameters, or options of another optimizer) and std::out_of_range (no such group or set).
// Protocol: docs/optimizer_protocol.md, docs/durable_steps.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/async/future.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/internal/optimizer_shard.h"
#include "weft/dist_optim/lr_scheduler.h"
#include "weft/dist_optim/optimizer_settings.h"
#include "weft/dist_optim/parameter_set.h"
#include "weft/dist_optim/steps/step_result.h"
#include "weft/rref/rref.h"

namespace torch::optim {
class SGD;
class Adam;
class AdamW;
class Adagrad;
class RMSprop;
}  // namespace torch::optim

namespace weft {

struct OptimizerOptions {
  UpdateMode mode = UpdateMode::kLocked;
  // If it is not empty: optimizers of this name share their state on each owner. Their groups and
  // options must be equal, except the learning rates. Those on workers of one name, also after a
  // restart, form one step sequence: one steps at a time, and they number their steps together.
  std::string shared_name = {};
};

struct StepOptions {
  // For all groups. If it is not set: each group's own rate, times the schedule's factor.
  // InvalidArgument: below 0, or not finite.
  std::optional<double> lr = {};
  // Clips by the norm of all gradients on all owners. 0: no clipping. Not in mode hogwild. If a
  // gradient has a NaN or an infinity, there is no factor to clip by. Then every owner refuses the
  // step with InvalidArgument, which names the owner and the parameter. LibTorch's clip_grad_norm_
  // does so with error_if_nonfinite. Without clipping such a gradient is applied, as LibTorch's
  // optimizers do, and StepResult::gradient_norm shows it.
  double max_norm = 0;
  // For each owner's answer. If it is not set: the worker's default, and 60 s for decisions. After
  // that the step is DataLoss, but goes on. Until it is decided, other steps are refused.
  Timeout timeout = {};
};

// Parameters that share their options. If `names` is empty: all parameters of each set.
struct ParameterGroup {
  std::vector<RRef<ParameterSet>> sets;
  std::vector<std::string> names = {};
  OptimizerSettings settings;
};

namespace dist_optim_internal {

class StepCaller;

// The options of Opt. The program itself includes LibTorch's headers.
template <class Opt>
struct OptionsOf;
template <>
struct OptionsOf<torch::optim::SGD> {
  using Type = torch::optim::SGDOptions;
};
template <>
struct OptionsOf<torch::optim::Adam> {
  using Type = torch::optim::AdamOptions;
};
template <>
struct OptionsOf<torch::optim::AdamW> {
  using Type = torch::optim::AdamWOptions;
};
template <>
struct OptionsOf<torch::optim::Adagrad> {
  using Type = torch::optim::AdagradOptions;
};
template <>
struct OptionsOf<torch::optim::RMSprop> {
  using Type = torch::optim::RMSpropOptions;
};

}  // namespace dist_optim_internal

// The part that does not depend on the kind of optimizer.
class DistributedOptimizerBase {
 public:
  DistributedOptimizerBase(std::vector<ParameterGroup> groups, OptimizerOptions options);
  ~DistributedOptimizerBase();
  DistributedOptimizerBase(DistributedOptimizerBase&&) noexcept;
  DistributedOptimizerBase& operator=(DistributedOptimizerBase&&) noexcept;

  // Applies the gradients that the context's passes have left. A parameter without a gradient does
  // not change, as in LibTorch. Throws unless the outcome is Applied.
  StepResult step(const dist_autograd::Context& context, StepOptions options = {});
  // Completes with the result, whatever its outcome is. The context must outlive the future.
  Future<StepResult> step_async(const dist_autograd::Context& context, StepOptions options = {});

  // Groups are numbered in the given order.
  void set_learning_rate(size_t group, double lr);
  double learning_rate(size_t group) const;  // without the schedule's factor
  void set_schedule(LrSchedule schedule);
  int64_t finished_steps() const;

  // Call it between steps, for an optimizer with a shared_name: the program has gone back to step
  // `number`, and the next step follows it. If `number` is not set, it is the smallest step that an
  // owner which came back from a checkpoint holds. If no owner came back, it is the newest step
  // that an owner knows. Owners that keep checkpoints and are at another step go back too. The
  // program itself must have brought the others there. Returns the step. RpcError NotFound: an
  // owner has no checkpoint of it.
  uint64_t resume(std::optional<uint64_t> number = {});

  // The state that one owner keeps, named "<parameter>/<field>". `set` is the index of the
  // parameter set, in the order of the groups.
  TensorMap set_state(size_t set) const;
  void load_set_state(size_t set, const TensorMap& state);
  // The state of all owners, and the position of the schedule: "<index of the
  // set>/<parameter>/<field>" and "steps".
  TensorMap state_dict() const;
  // A parameter without entries starts anew. InvalidArgument: an entry is misshapen, unknown, or
  // missing although others are there. The text names it, and no owner has changed anything. If an
  // owner dies or is late meanwhile, the others may be loaded already: load again.
  void load_state_dict(const TensorMap& state);

 private:
  std::shared_ptr<dist_optim_internal::StepCaller> steps_;  // shared with the answers to a step
};

template <class Opt>
class DistributedOptimizer : public DistributedOptimizerBase {
 public:
  using Options = typename dist_optim_internal::OptionsOf<Opt>::Type;

  DistributedOptimizer(std::vector<RRef<ParameterSet>> sets, const Options& options,
                       OptimizerOptions more = {})
      : DistributedOptimizerBase({{std::move(sets), {}, settings_of(options)}}, std::move(more)) {}
  // Leaves that their owners use directly. A step makes the graphs of earlier forwards fail
  // (parameter_set.h).
  DistributedOptimizer(const std::vector<RRef<at::Tensor>>& leaves, const Options& options,
                       OptimizerOptions more = {})
      : DistributedOptimizer(sets_of(leaves), options, std::move(more)) {}
  // The settings of a group are those of settings_of(Options).
  explicit DistributedOptimizer(std::vector<ParameterGroup> groups, OptimizerOptions more = {})
      : DistributedOptimizerBase(of_this_kind(std::move(groups)), std::move(more)) {}

 private:
  static std::vector<ParameterGroup> of_this_kind(std::vector<ParameterGroup> groups) {
    const size_t kind = settings_of(Options(0.0)).index();
    for (const ParameterGroup& group : groups) {
      if (group.settings.index() == kind) continue;
      throw std::invalid_argument("a parameter group has the options of another optimizer");
    }
    return groups;
  }
  // Makes one set for each owner.
  static std::vector<RRef<ParameterSet>> sets_of(const std::vector<RRef<at::Tensor>>& leaves);
};

namespace dist_optim_internal {
std::vector<RRef<ParameterSet>> group_by_owner(const std::vector<RRef<at::Tensor>>& leaves);
}

template <class Opt>
std::vector<RRef<ParameterSet>> DistributedOptimizer<Opt>::sets_of(
    const std::vector<RRef<at::Tensor>>& leaves) {
  return dist_optim_internal::group_by_owner(leaves);
}

}  // namespace weft
