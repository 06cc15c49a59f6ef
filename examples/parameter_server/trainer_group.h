// How the trainers of a job act as one: averages, and who is still there.
//
// Everything is a round of the server's ParameterAverager. Each trainer adds a row of flags to the
// tensors it gives, its own place set: where the average is above 0, a trainer took part. All who
// take part in a round see the same result, so they agree without a further message on who shares
// the work and who leads it, also after one of them has died.
//
// Thread safety: belongs to one thread. Blocking: every method waits for all live trainers.
// Errors: RpcError (the server died, a trainer hangs).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/dist_optim/parameter_averager.h"
#include "weft/rref/rref.h"

namespace weft::examples {

class TrainerGroup {
 public:
  // Told of trainers that have not come to a round, by name.
  using OnLoss = std::function<void(const std::vector<std::string>& lost)>;

  // `names`: all trainers, the same list everywhere; `self` is one of them.
  TrainerGroup(RRef<ParameterAverager> averager, std::vector<std::string> names, std::string self,
               OnLoss on_loss);

  // The average of what the present trainers give.
  std::vector<at::Tensor> average(std::vector<at::Tensor> values);
  // Waits for the others. True if any of them says so.
  bool meet(bool flag = false);

  // As the last round saw it.
  const std::vector<std::string>& present() const { return present_; }
  size_t place() const;  // of this trainer among them
  bool leads() const { return place() == 0; }
  // This trainer takes part in no further round: nobody waits for it.
  void leave();

 private:
  void note_present(const at::Tensor& flags);

  const RRef<ParameterAverager> averager_;
  const std::vector<std::string> names_;
  const std::string self_;
  const OnLoss on_loss_;
  std::vector<std::string> present_;
  int64_t round_ = 0;
};

}  // namespace weft::examples
