// Lets the trainers of a job act as one: they average tensors and agree on who is still alive.
//
// Every exchange is a round of the server's ParameterAverager. A trainer adds its position and a
// table to its own tensors. In the table it fills its own column: that it takes part, the number of
// its last step, and a flag. If the average of the first entry is above 0, that trainer took part.
//
// All participants of a round see the same result. So they agree on the leading trainer without a
// further message, also after one of them has died. A trainer that gets the result of a round
// without having taken part learns where all stand.
//
// Rounds outlive the server. Each trainer keeps the results that another trainer may still need,
// and gives them to the restarted server.
//
// Thread safety: belongs to one thread. Blocking: every method waits for all live trainers.
// Errors: RpcError (the server died, a trainer hangs).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/dist_optim/parameter_averager.h"
#include "weft/examples/parameter_server/position.h"
#include "weft/rref/rref.h"

namespace weft::examples {

class TrainerGroup {
 public:
  // Called with the names of trainers that did not come to a round.
  using OnLoss = std::function<void(const std::vector<std::string>& lost)>;
  // A round that has completed.
  struct Round {
    Position position;  // where the trainers stood when they gave their values
    std::vector<at::Tensor> average;
    bool flag = false;               // true if any trainer set its flag
    std::optional<uint64_t> number;  // this trainer's last step at that time, if it took part
  };

  // `names`: all trainers, the same list everywhere; `self` is one of them.
  TrainerGroup(std::vector<std::string> names, std::string self, OnLoss on_loss);

  // Call it first, and again when the server has come back. The trainer has completed `round`. It
  // gives the server the results that it keeps of this round and earlier ones.
  void connect(RRef<ParameterAverager> averager, int64_t round);
  // Returns the average of what the present trainers give to the round after `position`. If that
  // round had completed before the server died, it may have completed with values from another
  // position. The trainer then continues from there.
  Round average(const Position& position, uint64_t number, std::vector<at::Tensor> values,
                bool flag = false);
  // For a restarted trainer: returns the newest completed round, or waits for the next one. Nullopt
  // if no trainer is left that knows one.
  std::optional<Round> enter();

  // Drops results that are no longer needed, because the server will not go back before `round`.
  void forget_before(int64_t round);

  // The trainers that took part in the last round.
  const std::vector<std::string>& present() const { return present_; }
  size_t place() const;  // index of this trainer in present()
  bool leads() const { return place() == 0; }
  // This trainer takes part in no further round, so the others do not wait for it.
  void leave();

 private:
  Round read(int64_t number, std::vector<at::Tensor> average);

  RRef<ParameterAverager> averager_;
  const std::vector<std::string> names_;
  const std::string self_;
  const OnLoss on_loss_;
  std::vector<std::string> present_;
  std::map<int64_t, std::vector<at::Tensor>> ended_;  // by round number, as the server gave them
};

}  // namespace weft::examples
