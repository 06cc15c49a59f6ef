// Averages the parameters that several trainers hold each for itself: one object on a server, one
// round per number, the same average for everyone.
//
//   weft::RRef<weft::ParameterAverager> averager =
//       weft::remote<weft::ParameterAverager>("server", names_of_trainers, 30.0);
//   values = averager.rpc_sync(&weft::ParameterAverager::average, round, values);
//
// A round waits for every participant that is alive and has not left; who dies or leaves while it
// is open is not waited for, and the values of the dead are not counted. Sums go in the order of
// the participants' names, so the average does not depend on who came first. The newest four
// finished rounds are kept for participants that come late. A restarted trainer takes its name's
// place. A call waits for its round, so its own timeout must be longer than the round's.
//
// Thread safety: all methods may be called from any thread. Nothing blocks.
// Errors: InvalidArgument (not a participant, other shapes than the round's), FailedPrecondition
// (the round is too old), DeadlineExceeded (names who was missing when the round's time was up),
// Unavailable (every participant is gone).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/base/future.h"
#include "weft/rpc/call_scope.h"
#include "weft/rpc/class.h"

namespace weft {

class ParameterAverager {
 public:
  // What it needs of its worker; tests bring their own.
  struct Surroundings {
    Clock& clock;
    Executor& executor;
    std::function<bool(WorkerId)> is_live;
    std::function<absl::StatusOr<WorkerId>(const std::string&)> resolve;
  };

  // `participants` by worker name. `round_timeout_s` counts from a round's first values.
  ParameterAverager(std::vector<std::string> participants, double round_timeout_s);
  ParameterAverager(std::vector<std::string> participants, double round_timeout_s,
                    Surroundings surroundings);
  // Open rounds end with Cancelled.
  ~ParameterAverager();

  // The average over the round's participants of each tensor. Once per participant and round; the
  // same again gives the same result.
  Future<std::vector<at::Tensor>> average(CallContext& caller, int64_t round,
                                          std::vector<at::Tensor> values);
  // The caller takes part in no further round (until it calls `average` again).
  void leave(CallContext& caller);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with timers, which hold it weakly
};
WEFT_REGISTER_CLASS(ParameterAverager, weft::constructor<std::vector<std::string>, double>(),
                    &ParameterAverager::average, &ParameterAverager::leave);

}  // namespace weft
