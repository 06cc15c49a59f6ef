// A trainer's whole run: epochs, averages, evaluation, checkpoints, and going on without the dead.
//
// The leader, the first trainer that is still alive, evaluates, saves and reports while the others
// wait. If it dies meanwhile, the next one does it again.
//
// With a server that keeps itself (--checkpoint-every, --durable every-step) every process may die
// and be started again. All trainers wait for the server and go back, with their data, to the last
// step of theirs that it has; a trainer enters at a round of averages and goes on behind the last
// step of its earlier life. What an epoch was evaluated to and saved as then stays, also if some of
// its steps come again. docs/durable_steps.md has the argument.
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
  // `restarted`: this trainer was started again while the others went on.
  TrainingJob(const Worker& worker, const JobOptions& options, Clock& clock,
              bool restarted = false);

  // The last line, if this trainer led at the end.
  std::optional<std::string> run();

  // This run has saved its last epoch: there is nothing left to do for a process of it.
  static bool is_over(const JobOptions& options);

 private:
  using Next = Position::Next;

  // ---- from one position to the next
  void advance();
  void train_step();
  // The leader does its work, then one round; again if it has died meanwhile.
  void meet(void (TrainingJob::*work)());
  // One round; `done`: this trainer has done the leader's work.
  void take_part(bool done);
  void make_folder();
  void evaluate_and_save();

  // ---- the first step, and those after a loss
  void connect();
  void begin();
  void enter();
  void restore();
  // Rethrows what a server's next life does not mend.
  void survive(const RpcError& error);

  void look_at_folder();
  // Of the epoch that begins, or runs.
  ShardedSampler& share();
  void name_the_lost(const std::vector<std::string>& lost) const;

  const Worker& worker_;
  const JobOptions options_;
  Clock& clock_;
  const bool restarted_;
  FashionMnist data_;
  const CheckpointFolder checkpoints_;
  bool old_folder_ = false;  // holds checkpoints of an earlier run, which this one clears
  TrainerGroup group_;
  std::unique_ptr<Trainer> trainer_;  // once connected
  Report report_;
  Position position_;
  std::optional<ShardedSampler> sampler_;
  WorkerId server_;     // the life that this trainer works with
  bool begun_ = false;  // trainer and position are the job's
  bool connected_ = false;
  std::optional<TimePoint> trouble_;  // since when nothing succeeds
  double accuracy_ = 0;
};

}  // namespace weft::examples
