// The messages between callers and owners of optimizers in the simulator. Calls carry them.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/dist_optim/steps/step_core.h"

namespace weft::sim {

struct StepRequest {
  enum class Kind {
    kMeet,
    kJoin,
    kPrepare,
    kFinish,
    kSettle,
    kCommit,
    kAbort,
    kInquire,
    kPart,
    kGoBack,
    kResume,
  } kind = Kind::kJoin;
  dist_optim_internal::StepId step;  // for kinds without a step: only the optimizer
  std::string sequence;              // join, go back: name of the step sequence
  std::vector<WorkerId> workers;     // meet: the other owners; inquire: the dead ones
  double max_norm = 0, others_norm2 = 0, clip = 1;
  uint64_t number = 0;  // go back, resume
};

// The kind of the request says which of these is set.
struct StepReply {
  absl::Status status;
  dist_optim_internal::SequenceStanding standing;
  double norm2 = 0;
  dist_optim_internal::StepSummary summary;
  dist_optim_internal::StepDecision decision;
  dist_optim_internal::StepDurable durable;
};

}  // namespace weft::sim
