// Runs the steps of an optimizer on the caller: sends the owners what a StepCallerCore decides, and
// feeds it their answers.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shared with the answers that it waits for. Keeps its worker's runtime weakly.
// Blocking: never.
// Errors: in the StepResult. set_learning_rate and learning_rate throw std::out_of_range,
// introduce_shards throws RpcError.
// Protocol: dist_optim/steps/step_caller_core.h; docs/optimizer_protocol.md, "The caller".
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/async/future.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/dist_optim/internal/optimizer_shard.h"
#include "weft/dist_optim/steps/step_caller_core.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rref/rref.h"

namespace weft::dist_optim_internal {

class StepCaller : public std::enable_shared_from_this<StepCaller> {
 public:
  struct Shard {
    RRef<OptimizerShard> rref;
    std::vector<size_t> groups;  // indices of this optimizer's groups, in the shard's order
  };
  struct Options {
    std::weak_ptr<RpcRuntime> runtime;  // weak: an optimizer may outlive its worker
    OptimizerId id;
    UpdateMode mode = UpdateMode::kLocked;
    std::string sequence = {};
    std::vector<Shard> shards;
    std::vector<double> rates;  // by group
  };
  explicit StepCaller(Options options);
  ~StepCaller();  // sends PART to the shards, without waiting

  // Call it before the first step. It asks every shard how far the step sequence is, if there is
  // one. In mode locked with two or more shards it also sends MEET, so that each shard can ask the
  // others. No step may begin before all futures have completed.
  std::vector<Future<void>> introduce_shards() ABSL_LOCKS_EXCLUDED(mutex_);
  Future<StepResult> start(const ContextId& context, const StepOptions& options)
      ABSL_LOCKS_EXCLUDED(mutex_);

  void set_learning_rate(size_t group, double lr) ABSL_LOCKS_EXCLUDED(mutex_);
  double learning_rate(size_t group) const ABSL_LOCKS_EXCLUDED(mutex_);
  void set_schedule(LrSchedule schedule) ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t finished() const ABSL_LOCKS_EXCLUDED(mutex_);
  void set_finished(int64_t steps) ABSL_LOCKS_EXCLUDED(mutex_);
  // The owners and the program are at this step of the sequence.
  absl::Status resumed(uint64_t number) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options& options() const { return options_; }
  // std::out_of_range: there is no shard with this index.
  const RRef<OptimizerShard>& shard(size_t place) const { return options_.shards.at(place).rref; }
  size_t size() const { return options_.shards.size(); }

 private:
  struct Step;
  using StepPtr = std::shared_ptr<Step>;  // shared by pending answers

  absl::Status check(Step& step) ABSL_LOCKS_EXCLUDED(mutex_);
  void carry_out(const StepPtr& step, CallerActions actions) ABSL_LOCKS_EXCLUDED(mutex_);
  void carry_out(const StepPtr& step, const CallerAction& action) ABSL_LOCKS_EXCLUDED(mutex_);
  StepUpdate update_for(size_t place, const Step& step, double clip) const;
  StepRequest request_for(size_t place, Step& step, double others_norm2)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Future<SequenceStanding> standing(size_t place, const Step& step) ABSL_LOCKS_EXCLUDED(mutex_);
  void limit_wait(const StepPtr& step) ABSL_LOCKS_EXCLUDED(mutex_);

  template <class R, class Argument, class Method, class Event>
  void call(size_t place, const StepPtr& step, Method method, Argument argument, Event event);
  template <class R, class Method, class Event, class... Argument>
  void decide(size_t place, const StepPtr& step, Timeout limit, Method method, Event event,
              Argument... argument);
  template <class R, class Event>
  void await(const StepPtr& step, const Future<R>& answer, Event event) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  // Set by introduce_shards(), before any step: MEET was sent, so the shards hold references to
  // each other.
  bool introduced_ = false;
  mutable Mutex mutex_;
  StepCallerCore core_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> rates_ ABSL_GUARDED_BY(mutex_);
  LrSchedule schedule_ ABSL_GUARDED_BY(mutex_) = constant_lr();
  bool checking_ ABSL_GUARDED_BY(mutex_) = false;          // a step is running the user's schedule
  const Step* current_ ABSL_GUARDED_BY(mutex_) = nullptr;  // only compared
  std::map<size_t, Future<SequenceStanding>> standings_ ABSL_GUARDED_BY(mutex_);  // the first JOINs
};

}  // namespace weft::dist_optim_internal
