// One parameter server and N trainers learn Fashion-MNIST together: tools/train.sh --trainers 2
//
// The model has two halves (model.h). Every trainer has its own FeatureLayers; the ClassifierLayers
// are on the server. In a step, a trainer runs both halves forward and backward, and one optimizer
// updates the parameters of both where they are. Every 20 steps the trainers average their own
// halves. The leading trainer evaluates and saves after each epoch. At the end it prints
//
//   test accuracy 0.9031 after 3 epochs, 3 workers, 61.2 s
//
// training_job.h decides what comes next, also after deaths and SIGTERM. README.md has the rest.
#include <cmath>
#include <iostream>
#include <numbers>

#include <ATen/ops/nll_loss.h>
#include <torch/optim/adam.h>

#include "weft/base/mutex.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/dist_optim/hosted_module.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/examples/parameter_server/training_job.h"
#include "weft/examples/support/must.h"
#include "weft/weft.h"

namespace weft::examples {
using Classifier = HostedModule<ClassifierLayers>;
WEFT_REGISTER_MODULE(ClassifierLayers, uint64_t, double);
const Function<Classifier()> kFindClassifier{"parameter_server/classifier"};
const Function<RRef<ParameterAverager>()> kFindAverager{"parameter_server/averager"};

// ---- rank 0: makes its objects when the first trainer asks, and gives all trainers the same ones.
class ServerObjects {
 public:
  explicit ServerObjects(const JobOptions& options) : options_(options) {}
  // Call it before the server joins. Handlers run with the server as the current worker, so the
  // objects that they make live there. This object must outlive the worker.
  void offer(WorkerOptions& worker) {
    worker.registry.add("parameter_server/classifier", [this] {
      MutexLock lock(mutex_);
      if (!classifier_) {
        Classifier made(kServerName, options_.seed, options_.dropout);
        checkpointer_ = save_server(options_, made.parameters());
        classifier_ = std::move(made);
      }
      return *classifier_;
    });
    stop_.offer(worker);
    worker.registry.add("parameter_server/averager", [this, n = worker.place.world_size] {
      MutexLock lock(mutex_);
      // A trainer may keep the others waiting for 120 s; AveragingGroup waits a minute longer.
      if (!averager_) averager_ = remote<ParameterAverager>(kServerName, trainer_names(n), 120.0);
      return averager_;
    });
  }
  const JobStop& stop() const { return stop_; }
  void clear() {  // before the server shuts down
    MutexLock lock(mutex_);
    checkpointer_.reset();
    classifier_.reset();
    averager_ = {};
  }

 protected:
  const JobOptions options_;
  JobStop stop_;
  Mutex mutex_;
  std::optional<Classifier> classifier_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Checkpointer> checkpointer_ ABSL_GUARDED_BY(mutex_);
  RRef<ParameterAverager> averager_ ABSL_GUARDED_BY(mutex_);
};

// ---- all other ranks
class Trainer : public JobTrainer {
 public:
  Trainer(const Worker& worker, const JobOptions& options)
      : scope_(worker),
        layers_(options.seed),
        own_(ParameterSet::of(layers_)),
        learning_rate_(options.learning_rate(worker.workers().size() - 1)) {}

  RRef<ParameterAverager> connect() override {
    optimizer_.reset();
    classifier_ = rpc_sync(kServerName, kFindClassifier);
    optimizer_.emplace(std::vector{make_rref(own_), classifier_->parameters()},
                       torch::optim::AdamOptions(learning_rate_),
                       // All trainers share Adam's state of the server's half.
                       OptimizerOptions{.shared_name = "adam"});
    return rpc_sync(kServerName, kFindAverager);
  }

  // Trains on one batch. The learning rate falls to 0 along half a cosine.
  TrainerStep step(const Batch& batch, double progress) {
    dist_autograd::Context context;
    const at::Tensor features = layers_.forward(batch.images);
    const at::Tensor answer = classifier_->forward(features);  // on the server
    const at::Tensor loss = at::nll_loss(answer, batch.labels);
    context.backward({loss});  // through both halves
    const double rate = learning_rate_ * (1 + std::cos(std::numbers::pi * progress)) / 2;
    const StepResult result = optimizer_->step(context, {.lr = rate});  // on both, or on none
    return {loss.item<double>(), result};
  }

  // Returns the fraction of right answers. No trainer may train meanwhile.
  double evaluate(const LabelledImages& test) {
    const auto answer = [this](const auto& x) { return classifier_->forward(layers_.forward(x)); };
    classifier_->eval();
    const double right = accuracy(test, answer);
    classifier_->train();
    return right;
  }

  // ---- what the job averages, saves and brings back
  std::vector<at::Tensor> own_parameters() const override { return layers_.parameters(); }
  JobState state() const override {
    return {own_->state(), classifier_->state(), optimizer_->state_dict()};
  }
  void load_state(const JobState& state) override {
    must(own_->load_state(state.trainer));
    classifier_->load_state(state.server);
    optimizer_->load_state_dict(state.optimizer);
  }
  uint64_t resume() override { return optimizer_->resume(); }
  Memory memory() const override { return {own_->state(), optimizer_->set_state(0)}; }
  void set_memory(const Memory& memory) override {
    must(own_->load_state(memory.layers));
    optimizer_->load_set_state(0, memory.optimizer);
  }

 private:
  const WorkerScope scope_;  // makes the worker the current one of this thread
  FeatureLayers layers_;
  const std::shared_ptr<ParameterSet> own_;  // shared with the optimizer's shard here
  const double learning_rate_;
  std::optional<Classifier> classifier_;
  std::optional<DistributedOptimizer<torch::optim::Adam>> optimizer_;
};

template <class OneTrainer>
TrainingJob::End train(const Worker& worker, const JobOptions& options, bool restarted) {
  OneTrainer trainer(worker, options);
  TrainingJob job(worker, options, trainer, restarted);
  while (!job.done()) {
    job.attempt([&](Position::Next next) {
      switch (next) {
        case Position::Next::kBegin:
          return job.begin();
        case Position::Next::kStep: {
          const auto [batch, progress] = job.next_batch();
          return job.stepped(trainer.step(batch, progress));
        }
        case Position::Next::kAverage:
        case Position::Next::kLastAverage:
          return job.average();
        case Position::Next::kEvaluate:
        case Position::Next::kSave:
          return job.save([&](const auto& test) { return trainer.evaluate(test); });
        case Position::Next::kDone:
          return;
      }
    });
  }
  return job.finish();
}

// Tests run it with parts that keep a ledger: tests/examples/parameter_server/step_ledger.h.
template <class Server, class OneTrainer>
int run(int argc, char** argv) {
  JobCommandLine command = parse_job_options(argc, argv);
  if (!command.options) return command.print();
  JobOptions& job = *command.options;
  WorkerOptions options = launched_worker(job);
  if (options.place.restarted() && JobCheckpoints(job).is_over()) return 0;
  if (options.place.rank == 0) {
    if (!options.place.restarted()) clear_server_folder(job);
    Server objects(job);
    objects.offer(options);
    Worker worker = join_job(std::move(options));
    serve_until_over(worker, job, objects.stop());
    objects.clear();
    worker.shutdown();
    return objects.stop().exit_code();
  }
  Worker worker = join_job(std::move(options));
  try {
    const TrainingJob::End end = train<OneTrainer>(worker, job, worker.restarted());
    worker.shutdown();
    if (end.last_line) std::cout << *end.last_line << std::endl;
    return end.exit_code;
  } catch (const RpcError& error) {
    throw error_of_trainer(worker, error);
  }
}

}  // namespace weft::examples

int main(int argc, char** argv) {
  using namespace weft::examples;
  return weft::run_main(argc, argv, run<ServerObjects, Trainer>);
}
