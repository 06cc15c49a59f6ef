#include "weft/dist_optim/distributed_optimizer.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <stdexcept>

#include <ATen/ops/full.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/dist_optim/internal/step_caller.h"

namespace weft {
namespace {

using dist_optim_internal::OptimizerShard;
using dist_optim_internal::SequenceStanding;
using dist_optim_internal::ShardGroup;
using dist_optim_internal::StepCaller;

// The number must be distinct only among optimizers of one incarnation of one worker.
uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

DistributedOptimizerBase::DistributedOptimizerBase(std::vector<ParameterGroup> groups,
                                                   OptimizerOptions options) {
  absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = rpc_internal::current_runtime();
  if (!runtime.ok()) throw RpcError(runtime.status());
  StepCaller::Options steps;
  steps.runtime = *runtime;
  steps.id = {(*runtime)->id(), next_number()};
  steps.mode = options.mode;
  // The name stays the same when this worker or an owner is restarted.
  if (!options.shared_name.empty()) {
    steps.sequence = absl::StrCat(options.shared_name, "@", (*runtime)->name());
  }
  // Each set has one shard, with its groups in their order.
  std::vector<std::pair<RRef<ParameterSet>, std::vector<ShardGroup>>> sets;
  for (size_t g = 0; g < groups.size(); ++g) {
    steps.rates.push_back(learning_rate_of(groups[g].settings));
    for (const RRef<ParameterSet>& set : groups[g].sets) {
      size_t place = 0;
      while (place < sets.size() && !(sets[place].first == set)) ++place;
      if (place == sets.size()) {
        sets.emplace_back(set, std::vector<ShardGroup>());
        steps.shards.emplace_back();
      }
      sets[place].second.push_back({groups[g].names, groups[g].settings});
      steps.shards[place].groups.push_back(g);
    }
  }
  if (sets.empty()) throw std::invalid_argument("an optimizer without parameters");
  for (size_t i = 0; i < sets.size(); ++i) {
    steps.shards[i].rref = sets[i].first.remote(&dist_optim_internal::make_optimizer_shard,
                                                sets[i].second, options.mode, options.shared_name);
  }
  steps_ = std::make_shared<StepCaller>(std::move(steps));
  wait_all(steps_->introduce_shards());
}

DistributedOptimizerBase::DistributedOptimizerBase(DistributedOptimizerBase&&) noexcept = default;
DistributedOptimizerBase& DistributedOptimizerBase::operator=(DistributedOptimizerBase&&) noexcept =
    default;

DistributedOptimizerBase::~DistributedOptimizerBase() = default;

Future<StepResult> DistributedOptimizerBase::step_async(const dist_autograd::Context& context,
                                                        StepOptions options) {
  return steps_->start(context.id(), options);
}

StepResult DistributedOptimizerBase::step(const dist_autograd::Context& context,
                                          StepOptions options) {
  StepResult result = step_async(context, options).wait();
  if (result.outcome == StepResult::Outcome::kApplied) return result;
  const std::string step = result.number == 0 ? "the step" : absl::StrCat("step ", result.number);
  throw RpcError(prepend(result.outcome == StepResult::Outcome::kNotApplied
                             ? absl::StrCat(step, " was not applied: ")
                             : absl::StrCat(step, " is lost on an owner: "),
                         result.status));
}

void DistributedOptimizerBase::set_learning_rate(size_t group, double lr) {
  steps_->set_learning_rate(group, lr);
}
double DistributedOptimizerBase::learning_rate(size_t group) const {
  return steps_->learning_rate(group);
}
void DistributedOptimizerBase::set_schedule(LrSchedule schedule) {
  steps_->set_schedule(std::move(schedule));
}
int64_t DistributedOptimizerBase::finished_steps() const { return steps_->finished(); }

uint64_t DistributedOptimizerBase::resume(std::optional<uint64_t> number) {
  const StepCaller::Options& options = steps_->options();
  if (options.sequence.empty()) {
    throw RpcError(absl::FailedPreconditionError(
        "an optimizer without a shared_name has no steps that outlive it"));
  }
  std::vector<SequenceStanding> standings;
  for (const StepCaller::Shard& shard : options.shards) {
    standings.push_back(
        shard.rref.rpc_sync(&OptimizerShard::join, options.id.number, options.sequence));
  }
  // The newest step that every restored owner holds. If none is restored: the newest step of all.
  std::optional<uint64_t> held;
  uint64_t furthest = 0;
  for (const SequenceStanding& standing : standings) {
    furthest = std::max(furthest, standing.applied);
    if (standing.restored) held = std::min(held.value_or(standing.applied), standing.applied);
  }
  const uint64_t target = number.value_or(held.value_or(furthest));
  // All owners go back before one resumes. So if one cannot go back, steps stay refused everywhere.
  for (const StepCaller::Shard& shard : options.shards) {
    shard.rref.rpc_sync(&OptimizerShard::go_back, options.id.number, options.sequence, target);
  }
  for (const StepCaller::Shard& shard : options.shards) {
    shard.rref.rpc_sync(&OptimizerShard::resume, options.id.number, target);
  }
  const absl::Status resumed = steps_->resumed(target);
  if (!resumed.ok()) throw RpcError(resumed);
  return target;
}

TensorMap DistributedOptimizerBase::set_state(size_t set) const {
  return steps_->shard(set).rpc_sync(&OptimizerShard::state);
}
void DistributedOptimizerBase::load_set_state(size_t set, const TensorMap& state) {
  steps_->shard(set).rpc_sync(&OptimizerShard::load_state, state);
}

TensorMap DistributedOptimizerBase::state_dict() const {
  const StepCaller& steps = *steps_;
  TensorMap state;
  for (size_t i = 0; i < steps.size(); ++i) {
    for (auto& [name, tensor] : set_state(i)) {
      state[absl::StrCat(i, "/", name)] = tensor;
    }
  }
  state["steps"] = at::full({}, finished_steps(), at::TensorOptions().dtype(at::kLong));
  return state;
}

void DistributedOptimizerBase::load_state_dict(const TensorMap& state) {
  const StepCaller& steps = *steps_;
  const auto entry = state.find("steps");
  if (entry == state.end() || !entry->second.defined() || entry->second.numel() != 1 ||
      entry->second.scalar_type() != at::kLong || entry->second.item<int64_t>() < 0) {
    throw RpcError(
        absl::InvalidArgumentError("the optimizer's state lacks \"steps\", one int64 from 0"));
  }
  const int64_t finished = entry->second.item<int64_t>();
  std::vector<TensorMap> parts(steps.size());
  for (const auto& [name, tensor] : state) {
    if (name == "steps") continue;
    const size_t slash = std::min(name.find('/'), name.size());
    size_t place = 0;
    if (!absl::SimpleAtoi(name.substr(0, slash), &place) || place >= parts.size() ||
        absl::StrCat(place) != name.substr(0, slash)) {
      throw RpcError(absl::InvalidArgumentError(absl::StrCat(
          "the state has ", name, ", and the optimizer has ", parts.size(), " parameter sets")));
    }
    parts[place][name.substr(std::min(slash + 1, name.size()))] = tensor;
  }
  // All owners check the state before one of them loads it. A single owner checks it by itself.
  if (parts.size() > 1) {
    for (size_t i = 0; i < parts.size(); ++i) {
      steps.shard(i).rpc_sync(&OptimizerShard::check_state, parts[i]);
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    steps.shard(i).rpc_sync(&OptimizerShard::load_state, std::move(parts[i]));
  }
  steps_->set_finished(finished);
}

namespace dist_optim_internal {

std::vector<RRef<ParameterSet>> group_by_owner(const std::vector<RRef<at::Tensor>>& leaves) {
  std::map<WorkerId, std::vector<RRef<at::Tensor>>> by_owner;
  for (const RRef<at::Tensor>& leaf : leaves) by_owner[leaf.owner()].push_back(leaf);
  std::vector<RRef<ParameterSet>> sets;
  for (auto& [owner, group] : by_owner) {
    sets.push_back(remote(owner, &leaves_as_set, std::move(group)));
  }
  return sets;
}

}  // namespace dist_optim_internal
}  // namespace weft
