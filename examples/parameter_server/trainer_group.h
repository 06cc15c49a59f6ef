// How the trainers of a job act as one: averages, and who is still there.
//
// Everything is a round of the server's ParameterAverager. To the tensors that a trainer gives it
// adds where it stands, and a table with its own column set: that it takes part, the number of its
// last step, and a flag. Where the average of the first is above 0, a trainer took part. All who
// take part in a round see the same result, so they agree without a further message on who leads,
// also after one of them has died; and who gets a round's result without having taken part knows
// where all stand.
//
// Rounds outlive the server: each trainer keeps the results of those that another may yet need, and
// tells them to the server's next life.
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
  // Told of trainers that have not come to a round, by name.
  using OnLoss = std::function<void(const std::vector<std::string>& lost)>;
  // One that has ended.
  struct Round {
    Position position;  // where the trainers stood when they gave their values
    std::vector<at::Tensor> average;
    bool flag = false;               // any of them said so
    std::optional<uint64_t> number;  // this trainer's last step then, if it took part
  };

  // `names`: all trainers, the same list everywhere; `self` is one of them.
  TrainerGroup(std::vector<std::string> names, std::string self, OnLoss on_loss);

  // At first, and when the server has come back: the trainer stands behind this round, and tells
  // the server what it knows of it and those before.
  void connect(RRef<ParameterAverager> averager, int64_t round);
  // The average of what the present trainers give to the round after `position`. A round that had
  // ended before the server died may have been given elsewhere: the trainer goes on from there.
  Round average(const Position& position, uint64_t number, std::vector<at::Tensor> values,
                bool flag = false);
  // For a trainer that was started again: the newest round that has ended, or the next. Nullopt:
  // nobody is left who knows one.
  std::optional<Round> enter();

  // The server will not go back to rounds before this one.
  void forget_before(int64_t round);

  // As the last round saw it.
  const std::vector<std::string>& present() const { return present_; }
  size_t place() const;  // of this trainer among them
  bool leads() const { return place() == 0; }
  // This trainer takes part in no further round: nobody waits for it.
  void leave();

 private:
  Round read(int64_t number, std::vector<at::Tensor> average);

  RRef<ParameterAverager> averager_;
  const std::vector<std::string> names_;
  const std::string self_;
  const OnLoss on_loss_;
  std::vector<std::string> present_;
  std::map<int64_t, std::vector<at::Tensor>> ended_;  // as the server gave them
};

}  // namespace weft::examples
