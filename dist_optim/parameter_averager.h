// Averages the parameters that several trainers hold, each its own copy: one object on a server,
// one round for each number, and the same average for every trainer.
//
//   weft::RRef<weft::ParameterAverager> averager =
//       weft::remote<weft::ParameterAverager>("server", names_of_trainers, 30.0);
//   values = averager.rpc_sync(&weft::ParameterAverager::average, round, values);
//
// A round waits for every participant that is alive, has not left and has not reached a later
// round. It does not wait for a participant that dies or leaves while the round is open, and it
// drops the values of the dead. Values are added in the order of the participants' names. So the
// average does not depend on the order of arrival. The newest eight rounds are kept for
// participants that come late.
//
// A restarted trainer takes over its name's entry. Rounds do not wait for it until it calls
// `average`, `enter` or `restore`. A call waits for its round, so its own timeout must be longer
// than the round's.
//
// A restarted server knows no rounds. Participants tell it the rounds that they remember
// (`restore`). No round completes before every live participant has told rounds or given values.
//
// Thread safety: all methods may be called from any thread.
// Blocking: never; results are futures.
// Errors: InvalidArgument (not a participant, or shapes that differ from the round's);
// FailedPrecondition (the round is too old); DeadlineExceeded (the round's time is up; the text
// names the missing participants); Unavailable (every participant of the round is gone). `enter`
// also fails with NotFound (nobody knows a round).
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

// A complete round.
struct AveragedRound {
  int64_t number = 0;
  std::vector<at::Tensor> average;
};
inline auto weft_fields(AveragedRound& r) { return std::tie(r.number, r.average); }

class ParameterAverager {
 public:
  // The services that it needs from its worker; tests bring their own.
  struct Surroundings {
    Clock& clock;
    Executor& executor;
    std::function<bool(WorkerId)> is_live;
    std::function<absl::StatusOr<WorkerId>(const std::string&)> resolve;
  };

  // `participants` are worker names. `round_timeout_s` is in seconds and counts from a round's
  // first values.
  ParameterAverager(std::vector<std::string> participants, double round_timeout_s);
  ParameterAverager(std::vector<std::string> participants, double round_timeout_s,
                    Surroundings surroundings);
  // The futures of open rounds complete with Cancelled.
  ~ParameterAverager();

  // The average of each tensor over the round's participants. A participant gives values once for
  // each round. If it calls again, it gets the same result.
  Future<std::vector<at::Tensor>> average(CallContext& caller, int64_t round,
                                          std::vector<at::Tensor> values);
  // For a participant that was started again and does not know which round the others have reached.
  // Returns the newest complete round, or the next one that completes. Rounds wait for the
  // participant from then on. NotFound: no other participant is alive, or all wait in `enter`.
  // DeadlineExceeded: no round completed in time. After an error, rounds wait for the participant
  // as well.
  Future<AveragedRound> enter(CallContext& caller);
  // Tells the rounds that completed on an averager that is lost. A participant that gives values
  // for one of them gets this average. The first report of a round counts.
  void restore(CallContext& caller, std::vector<AveragedRound> rounds);
  // The caller takes part in no further round, until it calls the averager again.
  void leave(CallContext& caller);

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with timers, which hold it weakly
};
WEFT_DECLARE_CLASS(ParameterAverager, weft::constructor<std::vector<std::string>, double>(),
                   &ParameterAverager::average, &ParameterAverager::enter,
                   &ParameterAverager::restore, &ParameterAverager::leave);

}  // namespace weft
