// The caller's half of an optimizer's step: prepares it on every owner, decides once, tells all.
//
// All owners prepare, then all commit. With one remote owner PREPARE and COMMIT are one message to
// it, after the local ones are prepared: its answer decides, and a lost answer is asked for. What
// an owner says late still counts; only whoever waits for the step may have been told DataLoss by
// then. An owner that dies does not count: before the decision the step is not applied; after it
// the others apply it and the result is DataLoss, naming the dead one.
//
// Mode hogwild: one message per owner, each on its own.
//
// A caller that has a line (docs/durable_steps.md) asks the owners how far they are before its
// first step, and goes on behind the furthest. If one came back from a checkpoint, every step is
// DataLoss until `resumed`.
//
// Thread safety: none; step it under the driver's lock. Deterministic: same events, same actions.
// Errors: FailedPrecondition (a step is under way). All others are told in the StepResult.
// Protocol: docs/design.md, "Parameters and steps".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/dist_optim/steps/step_core.h"

namespace weft::dist_optim_internal {

class StepCallerCore {
 public:
  struct Owner {
    std::string name;
    bool local = false;  // dies with the caller
  };
  struct Options {
    OptimizerId optimizer;
    std::vector<Owner> owners;  // by place
    bool hogwild = false;
    std::string line = {};  // empty: this optimizer's steps are its own
  };
  explicit StepCallerCore(Options options);

  absl::Status begin(double max_norm, CallerActions& out);

  // ---- answers. A status says why there is none; whether it ran is in it (base/status.h).
  void on_joined(size_t owner, absl::StatusOr<LineStanding> answer, CallerActions& out);
  void on_prepared(size_t owner, absl::StatusOr<double> norm2, CallerActions& out);
  void on_finished(size_t owner, const absl::StatusOr<StepSummary>& answer, CallerActions& out);
  void on_settled(size_t owner, const absl::StatusOr<StepDecision>& answer, CallerActions& out);
  void on_committed(size_t owner, const absl::StatusOr<StepDurable>& answer, CallerActions& out);
  void on_aborted(size_t owner, CallerActions& out);
  void on_applied_alone(size_t owner, absl::StatusOr<StepDurable> answer, CallerActions& out);
  // After LimitWait: whoever waits is told so; the step goes on.
  void on_late(const std::string& why, CallerActions& out);

  // The owners stand at this step of the line, and so does the program. FailedPrecondition: a step
  // is under way.
  absl::Status resumed(uint64_t number);

  bool stepping() const { return phase_ != Phase::kIdle; }
  StepId step() const { return {options_.optimizer, number_}; }  // the last that was begun
  int64_t finished() const { return finished_; }
  void set_finished(int64_t steps) { finished_ = steps; }

 private:
  using Outcome = StepResult::Outcome;
  enum class Phase {
    kIdle,
    kJoining,
    kPreparing,
    kFinishing,
    kSettling,
    kCommitting,
    kAborting,
    kAlone
  };

  void prepare(CallerActions& out);
  void prepared(CallerActions& out);
  void joined(CallerActions& out);
  void commit(CallerActions& out);
  void abort(Outcome outcome, absl::Status why, CallerActions& out);
  void applied_alone(CallerActions& out);
  void limit_wait(std::vector<size_t> asked, CallerActions& out);
  absl::Status unknown_at(const std::vector<size_t>& asked, const std::string& why) const;
  void note_durable(size_t owner, const StepDurable& durable);
  absl::Status of_owner(size_t owner, const absl::Status& status) const;
  void tell(StepResult result, CallerActions& out);
  void end(CallerActions& out);
  bool one_less() { return --open_ == 0; }

  const Options options_;
  uint64_t number_ = 0;
  int64_t finished_ = 0;
  bool joined_ = false;
  std::vector<StepDurable> durable_;  // what each owner said last

  // ---- of the step under way
  Phase phase_ = Phase::kIdle;
  double max_norm_ = 0;
  StepResult result_;
  std::vector<size_t> places_;  // owners that prepare; hogwild: all
  std::optional<size_t> last_;  // who decides
  size_t open_ = 0;             // answers to come
  std::vector<std::optional<absl::StatusOr<LineStanding>>> standings_;  // by owner
  std::vector<std::optional<absl::StatusOr<double>>> norms_;            // by owner
  std::vector<std::optional<absl::StatusOr<StepDurable>>> alone_;       // by owner
  double norm2_ = 0;
  absl::Status failure_;  // of the one that decides
  bool committed_ = false;
  std::optional<std::vector<size_t>> late_;  // LimitWait was asked for; whose answers are missing
  bool told_ = false;
};

}  // namespace weft::dist_optim_internal
