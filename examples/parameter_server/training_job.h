// Runs the whole job of a trainer: epochs, averages, evaluation and checkpoints. It goes on when
// other trainers die.
//
// The leading trainer is the first one that is still alive. It evaluates, saves and reports while
// the others wait. If it dies meanwhile, the next trainer does this again.
//
// With a server that saves itself (--checkpoint-every, --durable every-step) every process may die
// and be restarted. If the server restarts, all trainers wait for it. Then they go back, with their
// data, to the last of their steps that the server has. A restarted trainer enters at a round of
// averages and continues after the last step of its earlier incarnation. The accuracy and the
// checkpoint of an epoch stay as they are, even if some steps of that epoch are repeated.
// docs/durable_steps.md has the argument.
//
// Thread safety: belongs to one thread. Lifetime: worker and clock outlive it.
// Errors: RpcError naming the file, the worker or the option.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "weft/checkpoint/checkpoint.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/position.h"
#include "weft/examples/parameter_server/report.h"
#include "weft/examples/parameter_server/trainer.h"
#include "weft/examples/parameter_server/trainer_group.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/sharded_sampler.h"
#include "weft/worker/worker.h"

namespace weft::examples {

class TrainingJob {
 public:
  // `restarted`: this trainer was restarted while the others went on.
  TrainingJob(const Worker& worker, const JobOptions& options, Clock& clock,
              bool restarted = false);

  // Returns the last line of the run, if this trainer led at the end.
  std::optional<std::string> run();

  // True if this run has saved its last epoch. A restarted process of it then has nothing to do.
  static bool is_over(const JobOptions& options);

 private:
  using Next = Position::Next;

  // ---- from one position to the next
  void advance();
  void train_step();
  // The leading trainer runs `work`, then all take part in one round. If it dies meanwhile, they
  // stay at this position and the next one runs `work`.
  void meet(void (TrainingJob::*work)());
  // Takes part in one round. `done`: this trainer led and has done the work.
  void take_part(bool done);
  void make_folder();
  void evaluate_and_save();

  // ---- the first step, and those after a loss
  void connect();
  void begin();
  void enter();
  void restore();
  // Rethrows an error that a restart of the server does not repair.
  void survive(const RpcError& error);

  void look_at_folder();
  // The shard of the epoch that begins, or runs.
  ShardedSampler& share();
  void name_the_lost(const std::vector<std::string>& lost) const;

  const Worker& worker_;
  const JobOptions options_;
  Clock& clock_;
  const bool restarted_;
  FashionMnist data_;
  const CheckpointFolder checkpoints_;
  bool old_folder_ = false;  // the folder holds checkpoints of an earlier run
  TrainerGroup group_;
  std::unique_ptr<Trainer> trainer_;  // once connected
  Report report_;
  Position position_;
  std::optional<ShardedSampler> sampler_;
  WorkerId server_;     // the incarnation of the server that this trainer uses
  bool begun_ = false;  // trainer_ and position_ are those of the job
  bool connected_ = false;
  std::optional<TimePoint> trouble_;  // since when every attempt has failed
  double accuracy_ = 0;
};

}  // namespace weft::examples
