// What the two state machines of an optimizer's step share: ids, messages, and what they ask their
// drivers to do.
//
// A step of mode locked is prepared on every owner and then committed on all or none of those that
// outlive it. The caller's half is StepCallerCore, each owner's is StepOwnerCore. Both are events
// in, actions out: the driver holds its lock, calls one method, and carries out the actions in
// their order, those that reach other workers after it has unlocked.
//
// Thread safety: plain values. Protocol: docs/durable_steps.md for lines, restarts and durability.
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
  std::vector<double> learning_rates;  // one per group
  double clip = 1.0;                   // times each gradient
};
inline auto weft_fields(StepUpdate& u) { return std::tie(u.learning_rates, u.clip); }

enum class StepOutcome : uint8_t {
  kUnknown = 0,   // never heard of
  kPrepared = 1,  // undecided here
  kApplied = 2,
  kAborted = 3,
  kForgotten = 4,  // decided too long ago
};

// What an owner says of a step.
struct StepDecision {
  StepOutcome outcome = StepOutcome::kUnknown;
  double clip = 1;   // it was applied with
  double norm2 = 0;  // of this owner's gradients then
};
inline auto weft_fields(StepDecision& v) { return std::tie(v.outcome, v.clip, v.norm2); }

// How far an owner is with a line of steps (docs/durable_steps.md).
struct LineStanding {
  uint64_t applied = 0;   // the newest applied step
  bool restored = false;  // it came back from a checkpoint there, and nobody has resumed yet
};
inline auto weft_fields(LineStanding& s) { return std::tie(s.applied, s.restored); }

// Which steps of an optimizer an owner's newest checkpoint holds, and why it has no newer one.
struct StepDurable {
  uint64_t number = 0;
  int32_t code = 0;  // absl::StatusCode of the last failure, 0 once a later one was written
  std::string why = {};
  bool keeps = false;  // the owner has a keeper, and this is not merely nothing
  absl::Status status() const { return absl::Status(static_cast<absl::StatusCode>(code), why); }
};
inline auto weft_fields(StepDurable& d) { return std::tie(d.number, d.code, d.why, d.keeps); }

// What PREPARE and COMMIT in one say: the norm of all gradients and the factor they were clipped
// by.
struct StepSummary {
  double norm2 = 0;
  double clip = 1;
  StepDurable durable = {};
};
inline auto weft_fields(StepSummary& s) { return std::tie(s.norm2, s.clip, s.durable); }

// As LibTorch's clip_grad_norm_. `norm2` has passed check_norm.
double clip_factor(double norm2, double max_norm);
// InvalidArgument if gradients are to be clipped (max_norm is above 0) whose norm is not finite:
// they hold a NaN or an infinity, or are too large. As LibTorch's clip_grad_norm_ with
// error_if_nonfinite. `whose` says in the message which gradients these are.
absl::Status check_norm(double norm2, double max_norm, const std::string& whose);

// A namespace of their own: other rooms' cores have actions of these names too.
namespace step {

// ---- of an owner

// Changes the parameters, before any other event; if that fails half-way, on_damage.
struct Apply {
  StepId step;
  StepUpdate update;
};
// What its PREPARE brought is not needed any more.
struct Drop {
  StepId step;
};
// Asks the optimizer's other owner at this place (as given to meet) with `dead`; its death record
// goes to on_answer with `round`. While it lives and does not answer: ask again.
struct Ask {
  StepId step;
  size_t other = 0;
  std::vector<WorkerId> dead;
  uint64_t round = 0;
};

// ---- of the caller: messages to the owner at a place, each answered by one event

struct Join {
  size_t owner = 0;
};
struct Prepare {
  size_t owner = 0;
};
// PREPARE and COMMIT in one.
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
// hogwild: applied as it comes.
struct ApplyAlone {
  size_t owner = 0;
};
// The decision is made: from now on on_late may be called, once, when the caller should not wait
// any longer. The step goes on.
struct LimitWait {};
struct Tell {
  StepResult result;
};
// After this the next step may begin.
struct End {};

}  // namespace step

using OwnerAction = std::variant<step::Apply, step::Drop, step::Ask>;
using OwnerActions = std::vector<OwnerAction>;
using CallerAction =
    std::variant<step::Join, step::Prepare, step::Finish, step::Settle, step::Commit, step::Abort,
                 step::ApplyAlone, step::LimitWait, step::Tell, step::End>;
using CallerActions = std::vector<CallerAction>;

}  // namespace weft::dist_optim_internal
