// Averages the parameters that several trainers hold each for itself: one object on a server, one
// round per number, the same average for everyone.
//
//   weft::RRef<weft::ParameterAverager> averager =
//       weft::remote<weft::ParameterAverager>("server", names_of_trainers, 30.0);
//   values = averager.rpc_sync(&weft::ParameterAverager::average, round, values);
//
// A round waits for every participant that is alive, has not left and has not come to a later one;
// who dies or leaves while it is open is not waited for, and the values of the dead are not
// counted. Sums go in the order of the participants' names, so the average does not depend on who
// came first. The newest eight finished rounds are kept for participants that come late. A
// restarted trainer takes its name's place, and nobody waits for it until it gives values or
// enters. A call waits for its round, so its own timeout must be longer than the round's.
//
// A restarted server begins without memory: participants tell it the rounds that they remember
// (`restore`), and none ends before all that are alive have spoken.
//
// Thread safety: all methods may be called from any thread. Nothing blocks.
// Errors: InvalidArgument (not a participant, other shapes than the round's), FailedPrecondition
// (the round is too old), DeadlineExceeded (names who was missing when the round's time was up),
// Unavailable (every participant of the round is gone), NotFound (enter: nobody knows a round).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/async/future.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/call_scope.h"

namespace weft {

// A round that has ended.
struct AveragedRound {
  int64_t number = 0;
  std::vector<at::Tensor> average;
};
inline auto weft_fields(AveragedRound& r) { return std::tie(r.number, r.average); }

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
  // For a participant that was started again and does not know where the others are: the newest
  // round that has ended, or the next one that does. From then on it is waited for. NotFound:
  // nobody else is alive, or all wait here; again they are waited for from then on.
  Future<AveragedRound> enter(CallContext& caller);
  // These rounds have ended so on an averager that is lost: whoever gives values for one gets this
  // average. The first to tell of a round is believed.
  void restore(CallContext& caller, std::vector<AveragedRound> rounds);
  // The caller takes part in no further round (until it calls `average` or `enter` again).
  void leave(CallContext& caller);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with timers, which hold it weakly
};
WEFT_REGISTER_CLASS(ParameterAverager, weft::constructor<std::vector<std::string>, double>(),
                    &ParameterAverager::average, &ParameterAverager::enter,
                    &ParameterAverager::restore, &ParameterAverager::leave);

}  // namespace weft
