// A trainer's whole run: epochs, averages, evaluation, checkpoints, and going on without the dead.
//
// The leader, the first trainer that is still alive, evaluates, saves and reports while the others
// wait. If it dies meanwhile, the next one does it again.
//
// Thread safety: belongs to one thread. Lifetime: worker and clock outlive it.
// Errors: RpcError naming the file, the worker or the option.
#pragma once

#include <optional>
#include <string>

#include "weft/dist_optim/checkpoint.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/report.h"
#include "weft/examples/parameter_server/trainer.h"
#include "weft/examples/parameter_server/trainer_group.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/worker/worker.h"

namespace weft::examples {

class TrainingJob {
 public:
  TrainingJob(const Worker& worker, const JobOptions& options, Clock& clock);

  // The last line, if this trainer led at the end.
  std::optional<std::string> run();

 private:
  void begin();
  void restore();
  void train_epoch();
  // Brings all trainers to the same weights, and has one of them evaluate and save.
  void finish_epoch();
  void evaluate_and_save();
  void average_own_layers();
  void name_the_lost(const std::vector<std::string>& lost) const;

  const Worker& worker_;
  const JobOptions options_;
  FashionMnist data_;
  const CheckpointFolder checkpoints_;
  TrainerGroup group_;
  Trainer trainer_;
  Report report_;
  int64_t epoch_ = 0;  // finished ones
  int64_t step_ = 0;   // finished ones of this trainer, in all epochs
  double accuracy_ = 0;
};

}  // namespace weft::examples
