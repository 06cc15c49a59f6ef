#include "weft/dist_optim/checkpointer.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/async/future.h"
#include "weft/async/serial_thread.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/checkpoint/step_snapshot.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/dist_optim/internal/shard_stepper.h"
#include "weft/dist_optim/steps/step_keeper.h"

namespace weft {
namespace {

using checkpoint_internal::SavedOptimizer;
using checkpoint_internal::StepSnapshot;
using dist_optim_internal::ShardStepper;
using dist_optim_internal::StepDurable;
using dist_optim_internal::StepId;

using Sequences = std::map<std::string, uint64_t>;

// The newest applied step of each step sequence, and of each optimizer, at one moment.
struct Reach {
  Sequences sequences;
  std::map<OptimizerId, uint64_t> newest;

  uint64_t of(const StepId& step, const std::string& sequence) const {
    if (sequence.empty()) {
      const auto found = newest.find(step.optimizer);
      return found == newest.end() ? 0 : found->second;
    }
    const auto found = sequences.find(sequence);
    return found == sequences.end() ? 0 : found->second;
  }
};

Nanoseconds since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now() - begun);
}

absl::Status check(const CheckpointerOptions& options) {
  if (options.folder.empty()) return absl::InvalidArgumentError("a checkpointer without folder");
  if (options.every == 0) return absl::InvalidArgumentError("checkpoints every 0 steps");
  if (options.keep < 1) return absl::InvalidArgumentError("a checkpointer that keeps none");
  return absl::OkStatus();
}

}  // namespace

// Lock order: disk_mutex_, optimizers_mutex_, the steppers' locks, the set's lock. mutex_ comes
// after disk_mutex_ and is never held together with a stepper's lock.
class Checkpointer::Core final : public dist_optim_internal::StepKeeper {
 public:
  Core(std::shared_ptr<ParameterSet> set, CheckpointerOptions options)
      : set_(std::move(set)),
        options_(std::move(options)),
        folder_(options_.folder,
                {.keep = options_.keep, .calls = options_.calls, .lock_wait = options_.lock_wait}) {
  }
  ~Core() override { stop(); }

  absl::Status load() ABSL_LOCKS_EXCLUDED(disk_mutex_, optimizers_mutex_, mutex_);
  absl::Status start() { return writer_.start(); }
  void stop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status add(const std::string& shared_name,
                   const std::shared_ptr<ShardStepper>& stepper) override
      ABSL_LOCKS_EXCLUDED(optimizers_mutex_);
  Future<StepDurable> after_step(const StepId& step, const std::string& sequence) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status go_back(const std::string& sequence, uint64_t number) override
      ABSL_LOCKS_EXCLUDED(disk_mutex_, optimizers_mutex_, mutex_);

  Future<StepDurable> save() override ABSL_LOCKS_EXCLUDED(mutex_);
  Cost cost() const ABSL_LOCKS_EXCLUDED(mutex_);
  const std::optional<Sequences>& restored() const { return restored_; }

 private:
  // A copy of one moment: the values to be written, and the newest step of every optimizer in them.
  struct Copy {
    StepSnapshot snapshot;
    Reach reach;
  };
  struct Waiter {
    StepId step;
    std::string sequence;
    bool until_written = false;
    Promise<StepDurable> promise{nullptr};
  };

  // Makes a checkpoint for all that wait.
  void write_for_waiters() ABSL_LOCKS_EXCLUDED(disk_mutex_, optimizers_mutex_, mutex_);
  absl::StatusOr<Copy> copy() ABSL_LOCKS_EXCLUDED(optimizers_mutex_, mutex_);
  // Records the result in written_, failure_ and cost_.
  absl::Status write(absl::StatusOr<Copy> copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mutex_)
      ABSL_LOCKS_EXCLUDED(mutex_);
  StepDurable durable(const StepId& step, const std::string& sequence) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Future<StepDurable> wait(Waiter waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::shared_ptr<ShardStepper>> steppers() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(optimizers_mutex_);
  absl::Status replace(StepSnapshot snapshot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(optimizers_mutex_);

  const std::shared_ptr<ParameterSet> set_;  // shared with its module
  const CheckpointerOptions options_;
  Mutex disk_mutex_;  // held while a thread writes a checkpoint or goes back to one
  CheckpointFolder folder_ ABSL_GUARDED_BY(disk_mutex_);  // claimed by load
  std::optional<Sequences> restored_;  // set by load before open() returns; unchanged after that
  mutable Mutex optimizers_mutex_;
  std::map<std::string, std::shared_ptr<ShardStepper>> named_ ABSL_GUARDED_BY(optimizers_mutex_);
  std::vector<std::weak_ptr<ShardStepper>> unnamed_ ABSL_GUARDED_BY(optimizers_mutex_);
  // Loaded from a checkpoint, for optimizers that have not been added yet.
  std::map<std::string, SavedOptimizer> to_come_ ABSL_GUARDED_BY(optimizers_mutex_);
  bool set_back_ ABSL_GUARDED_BY(optimizers_mutex_) = false;  // a checkpoint was loaded
  mutable Mutex mutex_;
  std::vector<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  Reach copied_ ABSL_GUARDED_BY(mutex_);          // in the newest copy
  Reach written_ ABSL_GUARDED_BY(mutex_);         // in the newest checkpoint
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the last checkpoint
  Cost cost_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  SerialThread writer_{SerialThread::StartLater{}, SerialThread::AtEnd::kRun, "a checkpointer"};
};

// ---- steps

StepDurable Checkpointer::Core::durable(const StepId& step, const std::string& sequence) const {
  StepDurable durable;
  durable.keeps = true;
  durable.number = written_.of(step, sequence);
  durable.code = static_cast<int32_t>(failure_.code());
  durable.why = std::string(failure_.message());
  return durable;
}

Future<StepDurable> Checkpointer::Core::wait(Waiter waiter) {
  Future<StepDurable> future = waiter.promise.future();
  if (waiters_.empty()) writer_.run([this] { write_for_waiters(); });  // it takes all that wait
  waiters_.push_back(std::move(waiter));
  return future;
}

Future<StepDurable> Checkpointer::Core::after_step(const StepId& step,
                                                   const std::string& sequence) {
  MutexLock lock(mutex_);
  if (stopping_) return Future<StepDurable>::ready(durable(step, sequence));
  if (options_.durability == Durability::kEveryStep) return wait({step, sequence, true});
  // The next copy is made only when the previous one is written. So with two copies in `every`
  // steps, a crash loses at most `every` steps. The comparison of quotients also works if the step
  // that is the multiple was not applied.
  const uint64_t period = (options_.every + 1) / 2;
  if (step.number / period > copied_.of(step, sequence) / period)
    return wait({step, sequence, false});
  return Future<StepDurable>::ready(durable(step, sequence));
}

Future<StepDurable> Checkpointer::Core::save() {
  MutexLock lock(mutex_);
  if (stopping_) return Future<StepDurable>::ready(durable({}, {}));
  return wait({{}, {}, true});
}

void Checkpointer::Core::write_for_waiters() {
  MutexLock disk(disk_mutex_);
  std::vector<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    waiters.swap(waiters_);
  }
  const auto tell = [&](bool written) {
    for (Waiter& waiter : waiters) {
      if (waiter.until_written != written) continue;
      std::optional<StepDurable> answer;
      {
        MutexLock lock(mutex_);
        answer = durable(waiter.step, waiter.sequence);
      }
      waiter.promise.set(*std::move(answer));
    }
  };
  absl::StatusOr<Copy> moment = copy();
  tell(false);
  (void)write(std::move(moment));
  tell(true);
}

void Checkpointer::Core::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  writer_.stop();
}

// ---- copies and files

std::vector<std::shared_ptr<ShardStepper>> Checkpointer::Core::steppers() const {
  std::vector<std::shared_ptr<ShardStepper>> all;
  for (const auto& [name, stepper] : named_) all.push_back(stepper);
  for (const auto& weak : unnamed_) {
    if (auto stepper = weak.lock()) all.push_back(std::move(stepper));
  }
  return all;
}

absl::StatusOr<Checkpointer::Core::Copy> Checkpointer::Core::copy() {
  const auto begun = std::chrono::steady_clock::now();
  Copy copy;
  try {
    MutexLock lock(optimizers_mutex_);
    const std::vector<std::shared_ptr<ShardStepper>> all = steppers();
    std::vector<std::unique_lock<Mutex>> held;
    for (const auto& stepper : all) {
      held.push_back(stepper->hold());
      stepper->assume_held();
      WEFT_RETURN_IF_ERROR(stepper->damage_while_held());
    }
    copy.snapshot.optimizers = to_come_;
    for (const auto& [name, stepper] : named_) {
      stepper->assume_held();
      copy.snapshot.optimizers[name] = {stepper->state_while_held(), stepper->lines_while_held()};
    }
    for (const auto& stepper : all) {
      stepper->assume_held();
      copy.reach.newest.merge(stepper->newest_while_held());
    }
    copy.snapshot.parameters = set_->state();
    for (const auto& [name, optimizer] : copy.snapshot.optimizers) {
      copy.reach.sequences.insert(optimizer.sequences.begin(), optimizer.sequences.end());
    }
  } catch (const std::exception&) {  // out of memory
    return absl::ResourceExhaustedError(dist_autograd_internal::text_of_current_exception());
  }
  const Nanoseconds took = since(begun);
  MutexLock lock(mutex_);
  cost_.copying += took;
  cost_.longest_copy = std::max(cost_.longest_copy, took);
  copied_ = copy.reach;
  return copy;
}

absl::Status Checkpointer::Core::write(absl::StatusOr<Copy> copy) {
  const auto begun = std::chrono::steady_clock::now();
  absl::Status written = copy.status();
  try {
    if (copy.ok()) written = checkpoint_internal::write_snapshot(folder_, copy->snapshot).status();
  } catch (const std::exception&) {  // out of memory for a contiguous copy
    written = absl::ResourceExhaustedError(dist_autograd_internal::text_of_current_exception());
  }
  const Nanoseconds took = since(begun);
  MutexLock lock(mutex_);
  cost_.writing += took;
  ++(written.ok() ? cost_.written : cost_.failed);
  if (written.ok()) written_ = std::move(copy->reach);
  failure_ = written;
  return written;
}

absl::Status Checkpointer::Core::load() {
  MutexLock disk(disk_mutex_);
  // Claim first: after this, earlier incarnations write nothing more into the folder.
  WEFT_RETURN_IF_ERROR(folder_.claim());
  WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> complete, folder_.steps());
  if (complete.empty()) {
    return write(copy());  // so that a crash before the next checkpoint is noticed too
  }
  WEFT_ASSIGN_OR_RETURN(StepSnapshot snapshot,
                        checkpoint_internal::read_snapshot(folder_, complete.back()));
  Sequences sequences;
  for (const auto& [name, optimizer] : snapshot.optimizers) {
    sequences.insert(optimizer.sequences.begin(), optimizer.sequences.end());
  }
  restored_ = sequences;
  {
    MutexLock lock(mutex_);
    written_.sequences = std::move(sequences);
    copied_ = written_;
  }
  MutexLock lock(optimizers_mutex_);
  return replace(std::move(snapshot));
}

// Checks everything before it changes anything.
absl::Status Checkpointer::Core::replace(StepSnapshot snapshot) {
  const std::vector<std::shared_ptr<ShardStepper>> all = steppers();
  std::vector<std::unique_lock<Mutex>> held;
  for (const auto& stepper : all) held.push_back(stepper->hold());
  for (const auto& [name, stepper] : named_) {
    WEFT_RETURN_IF_ERROR(stepper->check_state(snapshot.optimizers[name].state));
  }
  WEFT_RETURN_IF_ERROR(set_->load_state(snapshot.parameters));
  for (const auto& weak : unnamed_) {
    if (const auto stepper = weak.lock()) {
      stepper->assume_held();
      stepper->restore_while_held({}, {});
    }
  }
  for (const auto& [name, stepper] : named_) {
    stepper->assume_held();
    const SavedOptimizer& saved = snapshot.optimizers[name];
    stepper->restore_while_held(saved.state, saved.sequences);
    snapshot.optimizers.erase(name);
  }
  to_come_ = std::move(snapshot.optimizers);
  set_back_ = true;
  return absl::OkStatus();
}

absl::Status Checkpointer::Core::go_back(const std::string& sequence, uint64_t number) {
  MutexLock disk(disk_mutex_);
  WEFT_RETURN_IF_ERROR(folder_.check_claim());  // else write() would fail
  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> complete, folder_.steps());
  std::reverse(complete.begin(), complete.end());
  for (const int64_t step : complete) {
    WEFT_ASSIGN_OR_RETURN(StepSnapshot snapshot, checkpoint_internal::read_snapshot(folder_, step));
    uint64_t there = 0;
    for (const auto& [name, optimizer] : snapshot.optimizers) {
      const auto found = optimizer.sequences.find(sequence);
      if (found != optimizer.sequences.end()) there = found->second;
    }
    if (there != number) continue;
    {
      MutexLock lock(optimizers_mutex_);
      WEFT_RETURN_IF_ERROR(replace(std::move(snapshot)));
    }
    // Write a new checkpoint at once: the newest one must not hold the steps that were undone.
    return write(copy());
  }
  return absl::NotFoundError(absl::StrCat("no checkpoint in ", options_.folder, " holds ", sequence,
                                          " up to step ", number, " and no further"));
}

absl::Status Checkpointer::Core::add(const std::string& shared_name,
                                     const std::shared_ptr<ShardStepper>& stepper) {
  MutexLock lock(optimizers_mutex_);
  std::erase_if(unnamed_, [](const auto& weak) { return weak.expired(); });
  if (shared_name.empty()) {
    unnamed_.push_back(stepper);
    return absl::OkStatus();
  }
  const auto saved = to_come_.find(shared_name);
  if (saved != to_come_.end()) {
    const std::unique_lock<Mutex> held = stepper->hold();
    stepper->assume_held();
    WEFT_RETURN_IF_ERROR(stepper->check_state(saved->second.state));
    stepper->restore_while_held(saved->second.state, saved->second.sequences);
    to_come_.erase(saved);
  } else if (set_back_) {  // its state was in no checkpoint
    const std::unique_lock<Mutex> held = stepper->hold();
    stepper->assume_held();
    stepper->restore_while_held({}, {});
  }
  named_[shared_name] = stepper;
  return absl::OkStatus();
}

Checkpointer::Cost Checkpointer::Core::cost() const {
  MutexLock lock(mutex_);
  return cost_;
}

// ---- the public class

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::open(std::shared_ptr<ParameterSet> set,
                                                                 CheckpointerOptions options) {
  WEFT_RETURN_IF_ERROR(check(options));
  const auto core = std::make_shared<Core>(set, std::move(options));
  WEFT_RETURN_IF_ERROR(set->keep_steps(core));
  WEFT_RETURN_IF_ERROR(core->start());  // first: without a thread, the folder must not be claimed
  WEFT_RETURN_IF_ERROR(core->load());
  return std::unique_ptr<Checkpointer>(new Checkpointer(core));
}

Checkpointer::Checkpointer(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Checkpointer::~Checkpointer() { core_->stop(); }

bool Checkpointer::restored() const { return core_->restored().has_value(); }
std::map<std::string, uint64_t> Checkpointer::restored_lines() const {
  return core_->restored().value_or(Sequences());
}
absl::Status Checkpointer::save() { return core_->save().wait().status(); }
Checkpointer::Cost Checkpointer::cost() const { return core_->cost(); }

}  // namespace weft
