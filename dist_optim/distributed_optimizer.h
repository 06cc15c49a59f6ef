// One optimizer over parameters that live on many workers: each owner updates its own.
//
//   weft::DistributedOptimizer<torch::optim::SGD> optimizer(  // #include <torch/optim/sgd.h>
//       {head.parameters()}, torch::optim::SGDOptions(0.05));
//   weft::dist_autograd::Context context;
//   context.backward({loss_of(batch)});
//   optimizer.step(context);
//
// Mode locked (the default): a step is prepared on every owner and then committed on all or none of
// those that outlive it; forwards keep the version they read. Mode hogwild: one message per owner,
// applied in place as it comes; not all-or-none, no clipping. The optimizer's state lives with the
// parameters and belongs to this object, or to everybody who gives the same shared_name.
//
// Thread safety: one step at a time; other methods from any thread between steps.
// Lifetime: keeps its worker's runtime weakly, the parameters by reference.
// Blocking: construction in mode locked over several sets, step, state_dict, load_state_dict.
// Errors: RpcError: FailedPrecondition, InvalidArgument, Unavailable and so on with the outcome
// NotApplied (Aborted: no owner applied a hogwild step); DataLoss if an owner may or may not have
// applied what others did, or came back from a checkpoint (docs/durable_steps.md): then every step
// until resume(). StepResult says which. An owner that refuses the options says so at the
// first step, or in mode locked over several sets at construction. std::invalid_argument: no
// parameters, options of another optimizer. std::out_of_range: a group's number.
// Protocol: internal/step_caller_core.h, internal/step_owner_core.h, docs/durable_steps.md.
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
  // Not empty: instances of this name share state on each owner. Their groups and options must be
  // equal, but for learning rates. Those of one worker name, also of its later incarnations, follow
  // each other (one at a time) and number their steps in one line.
  std::string shared_name = {};
};

struct StepOptions {
  // For all groups; else each group's own, times the schedule. InvalidArgument: below 0, not
  // finite.
  std::optional<double> lr = {};
  // 0: no clipping. Of all gradients on all owners together; not in mode hogwild. If a gradient has
  // a NaN or an infinity, there is no factor to clip by: the step is refused on every owner, with
  // InvalidArgument that names the owner and the parameter (LibTorch's clip_grad_norm_ does so with
  // error_if_nonfinite). Without clipping such a gradient is applied, as LibTorch's optimizers do;
  // StepResult::gradient_norm shows it.
  double max_norm = 0;
  // For each owner's answer. Unset: the worker's default, and 60 s for decisions. After that the
  // step says DataLoss, but goes on: until it is decided, other steps are refused.
  Timeout timeout = {};
};

// Some parameters with their own options. `names` empty: all of each set.
struct ParameterGroup {
  std::vector<RRef<ParameterSet>> sets;
  std::vector<std::string> names = {};
  OptimizerSettings settings;
};

namespace dist_optim_internal {

class StepCaller;

// Opt's options. LibTorch's headers are the user's to include.
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

// What does not depend on the kind of optimizer.
class DistributedOptimizerBase {
 public:
  DistributedOptimizerBase(std::vector<ParameterGroup> groups, OptimizerOptions options);
  ~DistributedOptimizerBase();
  DistributedOptimizerBase(DistributedOptimizerBase&&) noexcept;
  DistributedOptimizerBase& operator=(DistributedOptimizerBase&&) noexcept;

  // Applies the gradients that the context's passes left; where they left none, nothing changes, as
  // in LibTorch. Throws unless it was applied.
  StepResult step(const dist_autograd::Context& context, StepOptions options = {});
  // Completes with the result, whichever it is. The context must outlive the future.
  Future<StepResult> step_async(const dist_autograd::Context& context, StepOptions options = {});

  // Groups in the order given.
  void set_learning_rate(size_t group, double lr);
  double learning_rate(size_t group) const;  // without the schedule
  void set_schedule(LrSchedule schedule);
  int64_t finished_steps() const;

  // For an optimizer with a shared_name, between steps: the program has gone back to this step, and
  // the next one is the one after it. Not set: the last step that every owner which came back from
  // a checkpoint holds; if none did, the last one known. Owners that keep checkpoints and are
  // elsewhere go back too; those that keep none the program has brought there itself. Returns the
  // step. RpcError, NotFound: an owner has no checkpoint of it.
  uint64_t resume(std::optional<uint64_t> number = {});

  // What the owner of the parameter set at this place, in the order of the groups, remembers:
  // "<parameter>/<field>".
  TensorMap set_state(size_t set) const;
  void load_set_state(size_t set, const TensorMap& state);
  // Everything that the owners remember, and where the schedule stands:
  // "<set's place>/<parameter>/<field>", "steps".
  TensorMap state_dict() const;
  // A parameter without entries starts anew. InvalidArgument, and nothing has changed on any owner:
  // an entry is misshapen, unknown or missing beside others, and is named. An owner that dies or is
  // late meanwhile leaves the others loaded: load again.
  void load_state_dict(const TensorMap& state);

 private:
  std::shared_ptr<dist_optim_internal::StepCaller> steps_;  // shared with the answers of a step
};

template <class Opt>
class DistributedOptimizer : public DistributedOptimizerBase {
 public:
  using Options = typename dist_optim_internal::OptionsOf<Opt>::Type;

  DistributedOptimizer(std::vector<RRef<ParameterSet>> sets, const Options& options,
                       OptimizerOptions more = {})
      : DistributedOptimizerBase({{std::move(sets), {}, settings_of(options)}}, std::move(more)) {}
  // Leaves that their owners use directly: a step makes earlier graphs fail (parameter_set.h).
  DistributedOptimizer(const std::vector<RRef<at::Tensor>>& leaves, const Options& options,
                       OptimizerOptions more = {})
      : DistributedOptimizer(sets_of(leaves), options, std::move(more)) {}
  // The groups' settings: settings_of(Options).
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
  // One set per owner.
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
