// Lets the trainers of a job act as one: they average tensors and agree on who is still alive.
//
//   weft::AveragingGroup group({.names = trainers, .self = worker.name()});
//   group.connect(averager, 0);
//   weft::AveragingGroup::Round round = group.average(1, {.position = {epoch}, .values = values});
//   if (group.leads()) ...  // one trainer evaluates, saves and reports
//
// Every exchange is a round of a ParameterAverager, which lives on a server. A member adds its
// position and a table to its own tensors. The position is a few whole numbers that only the
// program understands, as many from each member. In the table the member fills its own column: that
// it takes part, the number of its last step, and a flag. If the average of the first entry is
// above 0, that member took part.
//
// All participants of a round see the same result. So they agree on the leading member without a
// further message, also after one of them has died. A member that gets the result of a round
// without having taken part learns where all stand. For this, all participants of a round must give
// equal positions: the mean of equal whole numbers is exact, up to 2^53 divided by the number of
// members.
//
// Rounds outlive the server. Each member keeps the results that another member may still need, and
// gives them to the restarted server.
//
// Thread safety: belongs to one thread.
// Blocking: every method that needs the averager waits for it; `average` and `enter` wait for all
// live members.
// Errors: RpcError with the codes of ParameterAverager and of calls to its worker (the server died,
// a member hangs). std::invalid_argument (self is none of the names).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/base/clock.h"
#include "weft/dist_optim/parameter_averager.h"
#include "weft/rref/rref.h"

namespace weft {

class AveragingGroup {
 public:
  using Position = std::vector<int64_t>;
  struct Options {
    std::vector<std::string> names;  // all members, the same list everywhere
    std::string self;                // one of them
    // Called with the names of other members that did not come to a round.
    std::function<void(const std::vector<std::string>& lost)> on_loss = nullptr;
    // Longer than the averager's own limit, so that the averager completes a round first.
    Timeout call_timeout = std::chrono::seconds(180);
  };
  struct Contribution {
    Position position = {};
    uint64_t step = 0;  // the number of this member's last step
    std::vector<at::Tensor> values = {};
    bool flag = false;
  };
  // A round that has completed.
  struct Round {
    int64_t number = 0;
    Position position = {};  // where the members stood when they gave their values
    std::vector<at::Tensor> average = {};
    bool flag = false;                  // true if any member set its flag
    std::optional<uint64_t> step = {};  // this member's last step at that time, if it took part
  };

  explicit AveragingGroup(Options options);

  // Call it first, and again when the server has come back. The member has completed `round`. It
  // gives the server the results that it keeps of this round and earlier ones.
  void connect(RRef<ParameterAverager> averager, int64_t round);
  // Returns the average of what the present members give to round `number`. If that round had
  // completed before the server died, it may have completed with values from another position. The
  // member then continues from there.
  Round average(int64_t number, Contribution mine);
  // For a restarted member: returns the newest completed round, or waits for the next one. Nullopt
  // if no member is left that knows one.
  std::optional<Round> enter();
  // Drops results that are no longer needed, because the server will not go back before `round`.
  // Call it regularly: until then the results of all rounds are kept, each as large as the values.
  void forget_before(int64_t round);

  // The members that took part in the last round; all of them before the first one.
  const std::vector<std::string>& present() const { return present_; }
  // The index of this member in present(); present().size() if it took no part in that round.
  size_t place() const;
  bool leads() const { return place() == 0; }
  // This member takes part in no further round, so the others do not wait for it.
  void leave();

 private:
  Round read(int64_t number, std::vector<at::Tensor> average);

  const Options options_;
  RRef<ParameterAverager> averager_;
  std::vector<std::string> present_;
  std::map<int64_t, std::vector<at::Tensor>> ended_;  // by round number, as the server gave them
};

}  // namespace weft
