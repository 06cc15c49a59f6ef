// Defines what the caller and the owners of an optimizer's step share: ids, messages, and the
// actions that their state machines ask for.
//
// In mode locked, all owners prepare a step. Then all owners that are still alive commit it, or
// none does. StepCallerCore decides for the caller, StepOwnerCore for an owner. Both take events
// and return actions. The driver locks, calls one method, and carries out the actions in order. It
// sends messages to other workers after it has unlocked.
//
// Thread safety: these are plain values.
// Protocol: docs/optimizer_protocol.md; docs/durable_steps.md for step sequences and restarts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/ids.h"
#include "weft/dist_optim/steps/step_result.h"

namespace weft::dist_optim_internal {

struct StepId {
  OptimizerId optimizer;
  uint64_t number = 0;  // from 1
  std::string to_string() const { return absl::StrCat(optimizer.to_string(), " step ", number); }
  bool operator==(const StepId&) const = default;
};
inline auto weft_fields(StepId& s) {
  return std::tie(s.optimizer.creator.index, s.optimizer.creator.incarnation, s.optimizer.number,
                  s.number);
}

struct StepUpdate {
  std::vector<double> learning_rates;  // one for each parameter group
  double clip = 1.0;                   // the factor for every gradient
};
inline auto weft_fields(StepUpdate& u) { return std::tie(u.learning_rates, u.clip); }

enum class StepOutcome : uint8_t {
  kUnknown = 0,   // this owner has never seen the step
  kPrepared = 1,  // this owner has not decided the step
  kApplied = 2,
  kAborted = 3,
  kForgotten = 4,  // decided, but this owner no longer remembers how
};

// An owner's answer about a step (`Answer` in docs/optimizer_protocol.md).
struct StepDecision {
  StepOutcome outcome = StepOutcome::kUnknown;
  double clip = 1;   // the factor with which it was applied
  double norm2 = 0;  // of this owner's gradients, if it was applied
};
inline auto weft_fields(StepDecision& v) { return std::tie(v.outcome, v.clip, v.norm2); }

// How far a step sequence is on one owner (docs/durable_steps.md).
struct SequenceStanding {
  uint64_t applied = 0;   // the newest applied step
  bool restored = false;  // the owner came back from a checkpoint, and the program has not resumed
};
inline auto weft_fields(SequenceStanding& s) { return std::tie(s.applied, s.restored); }

// The newest step in an owner's newest checkpoint, and why a newer one could not be written.
struct StepDurable {
  uint64_t number = 0;
  int32_t code = 0;  // absl::StatusCode of the last failed write; 0 if a later write succeeded
  std::string why = {};
  bool keeps = false;  // the owner has a StepKeeper; false: the fields above mean nothing
  absl::Status status() const { return absl::Status(static_cast<absl::StatusCode>(code), why); }
};
inline auto weft_fields(StepDurable& d) { return std::tie(d.number, d.code, d.why, d.keeps); }

// The answer to FINISH: the squared norm of all gradients, and the factor by which they were
// clipped.
struct StepSummary {
  double norm2 = 0;
  double clip = 1;
  StepDurable durable = {};
};
inline auto weft_fields(StepSummary& s) { return std::tie(s.norm2, s.clip, s.durable); }

// As in LibTorch's clip_grad_norm_. `norm2` must have passed check_norm.
double clip_factor(double norm2, double max_norm);
// InvalidArgument: gradients are to be clipped (max_norm is above 0), but their norm is not finite,
// because they hold a NaN or an infinity or are too large. LibTorch's clip_grad_norm_ does the same
// with error_if_nonfinite. The message names the gradients by `whose`.
absl::Status check_norm(double norm2, double max_norm, const std::string& whose);

// Other rooms' cores have actions of the same names, so these have a namespace of their own.
namespace step {

// ---- actions of an owner

// The driver changes the parameters before it passes in any other event. If that fails half-way, it
// calls on_damage.
struct Apply {
  StepId step;
  StepUpdate update;
};
// The driver drops what PREPARE brought.
struct Drop {
  StepId step;
};
// The driver asks another owner of the optimizer. `other` is its index in the list of `meet`. The
// message carries `dead`. The answer goes to on_answer, with `round`. If the owner lives and does
// not answer, the driver asks it again.
struct Ask {
  StepId step;
  size_t other = 0;
  std::vector<WorkerId> dead;
  uint64_t round = 0;
};

// ---- actions of the caller. Each sends a message to one owner. One event brings its answer.

struct Join {
  size_t owner = 0;
};
struct Prepare {
  size_t owner = 0;
};
// PREPARE and COMMIT in one message.
struct Finish {
  size_t owner = 0;
  double others_norm2 = 0;
};
struct Settle {
  size_t owner = 0;
};
struct Commit {
  size_t owner = 0;
  double clip = 1;
};
struct Abort {
  size_t owner = 0;
};
// Mode hogwild: the owner applies the step when this arrives.
struct ApplyAlone {
  size_t owner = 0;
};
// From now on the driver may call on_late once, when the program has waited long enough. The step
// goes on.
struct LimitWait {};
struct Tell {
  StepResult result;
};
// The step is over, and the next one may begin.
struct End {};

}  // namespace step

using OwnerAction = std::variant<step::Apply, step::Drop, step::Ask>;
using OwnerActions = std::vector<OwnerAction>;
using CallerAction =
    std::variant<step::Join, step::Prepare, step::Finish, step::Settle, step::Commit, step::Abort,
                 step::ApplyAlone, step::LimitWait, step::Tell, step::End>;
using CallerActions = std::vector<CallerAction>;

}  // namespace weft::dist_optim_internal
