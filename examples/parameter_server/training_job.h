// Keeps a job together. It knows where the job stands and who takes part, saves checkpoints, and
// continues when processes die. main.cc has the method and asks this class what comes next.
//
// The leading trainer is the first one that is still alive. It evaluates, saves and reports while
// the others wait. If it dies meanwhile, the next trainer does this again.
//
// With a server that saves itself (--checkpoint-every, --durable every-step) every process may die
// and be restarted. If the server restarts, all trainers wait for it. Then they go back, with their
// data, to the last of their steps that the server has. A restarted trainer enters at a round of
// averages and continues after the last step of its earlier incarnation. docs/durable_steps.md has
// the argument.
//
// If a process of the job is asked to stop (worker/stop_request.h), all trainers stop after the
// same round of averages, when the leading one has saved. A resumed job goes on there.
//
// Thread safety: belongs to one thread.
// Lifetime: worker and trainer outlive it.
// Blocking: all methods but done() and next_batch() wait for the server or for other trainers.
// Errors: RpcError naming the file, the worker or the option.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/clock.h"
#include "weft/base/rpc_error.h"
#include "weft/ddp/distributed_sampler.h"
#include "weft/dist_optim/averaging_group.h"
#include "weft/dist_optim/checkpointer.h"
#include "weft/dist_optim/steps/step_history.h"
#include "weft/dist_optim/steps/step_result.h"
#include "weft/examples/parameter_server/checkpoints.h"
#include "weft/examples/parameter_server/job_stop.h"
#include "weft/examples/parameter_server/options.h"
#include "weft/examples/parameter_server/position.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/training_report.h"
#include "weft/launcher/launch_environment.h"
#include "weft/worker/worker.h"

namespace weft::examples {

inline constexpr const char* kServerName = "ps";

// Rank 0 is "ps", rank n is "trainer<n>".
std::string worker_name(uint32_t rank);
std::vector<std::string> trainer_names(uint32_t world_size);

// The options of this process, which a launcher started. Sets JobOptions::run. InvalidArgument:
// there is no trainer.
WorkerOptions launched_worker(JobOptions& options);
// From when this returns, SIGTERM only asks the job to stop. Earlier it ends the process, because a
// process that waits for the others to join cannot stop in order.
Worker join_job(WorkerOptions options);
// The error of a trainer, which names the trainer: all write to one terminal.
RpcError error_of_trainer(const Worker& trainer, const RpcError& error);

// Call it on a server that was not restarted. A restarted one loads what it has saved.
void clear_server_folder(const JobOptions& options);
// Makes the server save itself. Null if the options do not say so.
std::unique_ptr<Checkpointer> save_server(const JobOptions& options,
                                          const RRef<ParameterSet>& parameters);
// Serves until all trainers have ended. If the launcher restarts processes, all trainers may be
// dead at once and come back. So the server then waits for the job to finish or stop, but not
// longer than a minute without a live trainer, and not at all after SIGTERM.
void serve_until_over(Worker& worker, const JobOptions& options, const JobStop& stop);

// The result of one training step.
struct TrainerStep {
  double loss;
  StepResult result;
};

// The parts of a trainer that the job saves, averages and brings back.
class JobTrainer {
 public:
  virtual ~JobTrainer() = default;
  // Finds the objects of the server, or of its next incarnation. Returns the averager.
  virtual RRef<ParameterAverager> connect() = 0;
  // Continues the step sequence of an earlier incarnation, of the server or of this trainer.
  // Returns the step that it continues after. Unavailable: one of those steps is still undecided.
  virtual uint64_t resume() = 0;

  // The parameters of this trainer's own layers, which the trainers average.
  virtual std::vector<at::Tensor> own_parameters() const = 0;
  // The same without gradients; they share the storage.
  std::vector<at::Tensor> own_layers() const;
  void set_own_layers(const std::vector<at::Tensor>& values);
  // The state that is lost with this trainer: its own layers, and the optimizer's state of them.
  struct Memory {
    TensorMap layers;
    TensorMap optimizer;
  };
  virtual Memory memory() const = 0;
  virtual void set_memory(const Memory& memory) = 0;
  virtual JobState state() const = 0;
  virtual void load_state(const JobState& state) = 0;
};

class TrainingJob {
 public:
  using Next = Position::Next;

  // `restarted`: this trainer was restarted while the others went on.
  TrainingJob(const Worker& worker, const JobOptions& options, JobTrainer& trainer,
              bool restarted = false);

  bool done() const { return position_.next == Next::kDone; }
  // Connects if necessary, and calls `work` with what comes next. If the server dies meanwhile and
  // will come back, this returns, and the next attempt continues with the next incarnation.
  void attempt(const std::function<void(Next)>& work);

  // ---- for `work`, by the value of Next
  // kBegin: all have looked at the folders, and one of them clears old checkpoints.
  void begin();
  // kStep: `progress`, from 0 to 1, says how much of the run is done.
  struct NextBatch {
    Batch batch;
    double progress;
  };
  NextBatch next_batch();
  void stepped(const TrainerStep& step);
  // kAverage, kLastAverage: the trainers' own layers become their mean, and the trainers agree
  // whether to stop.
  void average();
  // kEvaluate, kSave: the leading trainer saves, in kEvaluate with the accuracy; then all meet.
  // An accuracy and a checkpoint that this run has saved already stay as they are.
  void save(const std::function<double(const LabelledImages& test)>& evaluate);

  struct End {
    std::optional<std::string> last_line = {};  // of the run, if this trainer led at the end
    int exit_code = 0;                          // kStoppedExitCode: the job goes on with --resume
  };
  End finish();

 private:
  // The leading trainer runs `work`, then all take part in one round. If it dies meanwhile, they
  // stay at this position and the next one runs `work`.
  void meet(const std::function<void()>& work);
  // Takes part in one round. Position::after_round says what the flag means.
  void take_part(bool flag);

  void connect();
  void enter();
  void restore();
  // Rethrows an error that a restart of the server does not repair. Nothing needs repair if the job
  // has saved its last checkpoint.
  void survive(const RpcError& error);

  size_t workers() const { return worker_.workers().size(); }
  // The part of the data that this trainer trains on, in the epoch that begins, or runs.
  DistributedSampler& sampler();
  int64_t steps_per_epoch();
  int64_t pictures_per_step();  // of all trainers together
  double epochs_done();         // 1.5 in the middle of the second epoch
  void name_the_lost(const std::vector<std::string>& lost) const;

  const Worker& worker_;
  const JobOptions options_;
  JobTrainer& trainer_;
  SystemClock clock_;
  const bool restarted_;
  FashionMnist data_;
  const JobCheckpoints checkpoints_;
  bool must_clear_ = false;
  AveragingGroup group_;
  StepHistory<Position, JobTrainer::Memory> history_;
  TrainingReport report_;
  Position position_;
  Position expected_;    // after the step under way
  uint64_t number_ = 0;  // of this trainer's last step, over all incarnations
  std::optional<DistributedSampler> sampler_;
  int64_t parts_ = 0;   // into which the sampler divides the data
  WorkerId server_;     // the incarnation of the server that this trainer uses
  bool begun_ = false;  // trainer_ and position_ are those of the job
  bool connected_ = false;
  std::optional<TimePoint> trouble_;  // since when every attempt has failed
  double accuracy_ = 0;
};

}  // namespace weft::examples
