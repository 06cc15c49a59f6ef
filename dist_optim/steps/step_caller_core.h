// Runs the caller's side of an optimizer's step: every owner prepares, the caller decides once, and
// tells all owners.
//
// If exactly one owner is remote, the caller prepares the local owners first. Then it sends PREPARE
// and COMMIT to the remote owner in one message (FINISH). The answer to FINISH is the decision. If
// it is lost, the caller asks for it (SETTLE). A late answer of an owner still counts, but by then
// the program may have been told DataLoss.
//
// An owner that dies does not count. If it dies before the decision, the step is not applied. If it
// dies after the decision, the other owners apply the step, and the result is DataLoss and names
// the dead owner.
//
// In mode hogwild the caller sends one message to each owner, and each owner applies the step on
// its own.
//
// A caller with a step sequence (docs/durable_steps.md) asks all owners how far it is,
// before its first step. It goes on behind the furthest owner. If an owner came back from a
// checkpoint, every step is DataLoss until `resumed`.
//
// Thread safety: none; call all methods under the driver's lock.
// Determinism: the same events give the same actions.
// Errors: FailedPrecondition (a step is under way). The StepResult holds all other errors.
// Protocol: docs/optimizer_protocol.md, "The caller".
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
    std::vector<Owner> owners;  // by owner index; in the events and actions, `owner` is this index
    bool hogwild = false;
    std::string sequence = {};  // name of the step sequence; empty: there is none
  };
  explicit StepCallerCore(Options options);

  absl::Status begin(double max_norm, CallerActions& out);

  // ---- answers. If the status is not OK, it tells why there is no answer and whether the owner
  // executed the call (`ran`, base/status.h).
  void on_joined(size_t owner, absl::StatusOr<SequenceStanding> answer, CallerActions& out);
  void on_prepared(size_t owner, absl::StatusOr<double> norm2, CallerActions& out);
  void on_finished(size_t owner, const absl::StatusOr<StepSummary>& answer, CallerActions& out);
  void on_settled(size_t owner, const absl::StatusOr<StepDecision>& answer, CallerActions& out);
  void on_committed(size_t owner, const absl::StatusOr<StepDurable>& answer, CallerActions& out);
  void on_aborted(size_t owner, CallerActions& out);
  void on_applied_alone(size_t owner, absl::StatusOr<StepDurable> answer, CallerActions& out);
  // The wait that began with LimitWait is over: tells the program DataLoss. The step goes on.
  void on_late(const std::string& why, CallerActions& out);

  // All owners and the program are at step `number` of the step sequence. FailedPrecondition: a
  // step is under way.
  absl::Status resumed(uint64_t number);

  bool stepping() const { return phase_ != Phase::kIdle; }
  StepId step() const { return {options_.optimizer, number_}; }  // the one that began last
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
  std::vector<StepDurable> durable_;  // the last answer of each owner

  // ---- the step under way
  Phase phase_ = Phase::kIdle;
  double max_norm_ = 0;
  StepResult result_;
  std::vector<size_t> places_;  // owners that get PREPARE; hogwild: all
  std::optional<size_t> last_;  // the owner that gets FINISH
  size_t open_ = 0;             // answers that are still missing
  std::vector<std::optional<absl::StatusOr<SequenceStanding>>> standings_;  // by owner
  std::vector<std::optional<absl::StatusOr<double>>> norms_;                // by owner
  std::vector<std::optional<absl::StatusOr<StepDurable>>> alone_;           // by owner
  double norm2_ = 0;
  absl::Status failure_;  // the owner's error in answer to FINISH
  bool committed_ = false;
  std::optional<std::vector<size_t>> late_;  // the owners that LimitWait is about
  bool told_ = false;
};

}  // namespace weft::dist_optim_internal
