#include "weft/examples/parameter_server/training_job.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include <ATen/ops/zeros.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/support/must.h"

namespace weft::examples {
namespace {

constexpr const char* kRun = "run";            // metadata of a checkpoint: the run that saved it
constexpr const char* kAccuracy = "accuracy";  // and the accuracy that it had
// How long a server may take to come back, and the pause before a refused call is repeated.
constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kAgain = std::chrono::milliseconds(50);
constexpr const char* kTrainerShard = "trainer";
constexpr const char* kServerShard = "server";
constexpr const char* kOptimizerShard = "optimizer";

uint32_t world_size(const Worker& worker) { return static_cast<uint32_t>(worker.workers().size()); }

TensorMap parameters_of(const torch::nn::Module& layers) {
  TensorMap values;
  for (const auto& item : layers.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

Trainer::State first_state(const JobOptions& options) {
  return {parameters_of(FeatureLayers(options.seed)),
          parameters_of(ClassifierLayers(options.seed)),
          {{"steps", at::zeros({}, at::kLong)}}};
}

}  // namespace

TrainingJob::TrainingJob(const Worker& worker, const JobOptions& options, Clock& clock,
                         bool restarted)
    : worker_(worker),
      options_(options),
      clock_(clock),
      restarted_(restarted),
      data_(must(load_fashion_mnist(options.data, options.limit))),
      checkpoints_(options.checkpoint_folder()),
      group_(trainer_names(world_size(worker)), worker.name(),
             [this](const auto& lost) { name_the_lost(lost); }),
      report_(options, data_.train.size(), clock) {
  if (!restarted) look_at_folder();
}

std::optional<std::string> TrainingJob::run() {
  while (position_.next != Next::kDone) {
    try {
      if (!connected_) connect();
      advance();
      trouble_.reset();
    } catch (const RpcError& error) {
      survive(error);
    }
  }
  report_.finish_progress();
  try {
    group_.leave();
  } catch (const RpcError&) {  // the server has died, so it waits for no trainer
    if (!options_.server_keeps_itself()) throw;
  }
  if (!group_.leads()) return std::nullopt;
  if (is_over(options_)) {  // another trainer may have led during the evaluation
    CheckpointInfo last = must(checkpoints_.info(must(checkpoints_.steps()).back()));
    (void)absl::SimpleAtod(last.metadata[kAccuracy], &accuracy_);
  }
  return report_.last_line(accuracy_, world_size(worker_));
}

// ---- from one position to the next

void TrainingJob::advance() {
  switch (position_.next) {
    case Next::kBegin:
      return meet(&TrainingJob::make_folder);
    case Next::kStep:
      return train_step();
    case Next::kAverage:
    case Next::kLastAverage:
      return take_part(false);
    case Next::kEvaluate:
      return meet(&TrainingJob::evaluate_and_save);
    case Next::kDone:
      return;
  }
}

void TrainingJob::train_step() {
  ShardedSampler& sampler = share();
  if (sampler.position() != ShardedSampler::Position{position_.epoch, position_.step}) {
    sampler.seek({.epoch = position_.epoch, .step = position_.step});
  }
  const int64_t length = sampler.steps_per_epoch();
  const auto epochs = [&](int64_t done) {
    return static_cast<double>(position_.epoch) +
           static_cast<double>(done) / static_cast<double>(length);
  };
  const Position then = position_.after_step(length);
  const double loss =
      trainer_->step(make_batch(data_.train, sampler.next()),
                     epochs(position_.step) / static_cast<double>(options_.epochs), then);
  report_.note_step(then.steps, epochs(position_.step + 1), loss, group_.leads());
  position_ = then;
  if (options_.server_keeps_itself()) group_.forget_before(trainer_->earliest().round);
}

void TrainingJob::meet(void (TrainingJob::*work)()) {
  const bool mine = group_.leads();
  if (mine) (this->*work)();
  take_part(mine);
}

// In all rounds the trainers give their own layers, so a restarted trainer can enter at any round.
void TrainingJob::take_part(bool done) {
  const TrainerGroup::Round round =
      group_.average(position_, trainer_->number(), trainer_->own_layers(), done);
  const Next was = round.position.next;
  position_ = round.position.after_round(round.flag, share().steps_per_epoch(), options_.epochs);
  if (was == Next::kAverage || was == Next::kLastAverage) {
    trainer_->set_own_layers(round.average);
  } else if (!options_.server_keeps_itself()) {
    sampler_.reset();  // the live trainers share the next epoch
  }
}

void TrainingJob::make_folder() {
  if (old_folder_) std::filesystem::remove_all(checkpoints_.root());
}

void TrainingJob::evaluate_and_save() {
  const std::vector<int64_t> saved = must(checkpoints_.steps());
  const bool is_saved = std::find(saved.begin(), saved.end(), position_.steps) != saved.end();
  CheckpointInfo info;
  if (is_saved) info = must(checkpoints_.info(position_.steps));
  if (position_.epoch % options_.eval_every == 0 || position_.epoch == options_.epochs) {
    const bool known = is_saved && info.metadata[kRun] == options_.run &&
                       absl::SimpleAtod(info.metadata[kAccuracy], &accuracy_);
    if (!known) accuracy_ = trainer_->evaluate(data_.test);
    report_.note_accuracy(position_.steps, static_cast<double>(position_.epoch), accuracy_);
  }
  report_.write_curves();
  if (is_saved) return;
  info = {.step = position_.steps,
          .epoch = position_.epoch,
          .world_size = static_cast<int64_t>(world_size(worker_)),
          .seed = options_.seed,
          .metadata = {{kRun, options_.run}, {kAccuracy, absl::StrCat(accuracy_)}}};
  const Trainer::State state = trainer_->state();
  must(checkpoints_.save(info, {{kTrainerShard, state.trainer},
                                {kServerShard, state.server},
                                {kOptimizerShard, state.optimizer}}));
}

ShardedSampler& TrainingJob::share() {
  if (sampler_) return *sampler_;
  ShardedSampler::Options shares{
      .size = data_.train.size(), .batch = options_.batch, .seed = options_.seed};
  if (options_.server_keeps_itself()) {  // a trainer that dies comes back to its own shard
    shares.shard = static_cast<int64_t>(worker_.id().index) - 1;
    shares.shards = static_cast<int64_t>(world_size(worker_)) - 1;
  } else {
    shares.shard = static_cast<int64_t>(group_.place());
    shares.shards = static_cast<int64_t>(group_.present().size());
  }
  must(shares.validate());
  return sampler_.emplace(shares);
}

// ---- the first step, and those after a loss

void TrainingJob::connect() {
  server_ = worker_.wait_for(kServerName, kPatience).id;
  const RRef<ParameterAverager> averager = find_averager(worker_.to(kServerName));
  if (begun_) {
    position_ = trainer_->reconnect();
    group_.connect(averager, position_.round);
    report_.go_back(position_.steps);
  } else {
    trainer_.reset();  // its WorkerScope must close before a new one opens on this thread
    trainer_ = std::make_unique<Trainer>(worker_, options_, world_size(worker_) - 1);
    group_.connect(averager, 0);
    if (restarted_) {
      enter();
    } else if (options_.resume) {
      restore();
    }
    trainer_->stand_at(position_);
    begun_ = true;
  }
  connected_ = true;
}

void TrainingJob::enter() {
  trainer_->come_back();
  const std::optional<TrainerGroup::Round> round = group_.enter();
  if (!round) return restore();  // no trainer knows more than the last checkpoint
  trainer_->set_own_layers(round->average);
  const int64_t length = share().steps_per_epoch();
  position_ = round->position.after_round(round->flag, length, options_.epochs);
  // The steps of its earlier incarnation after that round are done, so they are not repeated.
  const uint64_t trained = trainer_->number() - round->number.value_or(trainer_->number());
  for (uint64_t n = 0; n < trained && position_.next == Next::kStep; ++n) {
    position_ = position_.after_step(length);
  }
  report_.resume(position_.steps, position_.epoch);
}

void TrainingJob::restore() {
  if (restarted_ && must(checkpoints_.steps()).empty()) {
    return trainer_->load_state(first_state(options_));
  }
  const Checkpoint checkpoint = must(checkpoints_.load_newest());
  if (checkpoint.info.seed != options_.seed) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("the checkpoint in ", checkpoints_.root(), " was made with --seed ",
                     checkpoint.info.seed, ", not ", options_.seed)));
  }
  if (checkpoint.info.epoch > options_.epochs) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("the checkpoint in ", checkpoints_.root(), " is of epoch ",
                     checkpoint.info.epoch, ", behind --epochs ", options_.epochs)));
  }
  Trainer::State state;
  for (auto [name, tensors] :
       {std::pair{kTrainerShard, &state.trainer}, std::pair{kServerShard, &state.server},
        std::pair{kOptimizerShard, &state.optimizer}}) {
    const auto shard = checkpoint.shards.find(name);
    if (shard == checkpoint.shards.end()) {
      throw RpcError(absl::DataLossError(
          absl::StrCat("the checkpoint in ", checkpoints_.root(), " has no shard ", name)));
    }
    *tensors = shard->second.tensors;
  }
  trainer_->load_state(state);  // every trainer loads the same into the server
  position_ = {.epoch = checkpoint.info.epoch, .steps = checkpoint.info.step};
  report_.resume(position_.steps, position_.epoch);
}

void TrainingJob::survive(const RpcError& error) {
  const Future<WorkerInfo> server = worker_.wait_for_async(kServerName, kPatience);
  const bool lives = server.done() && server.result().ok() && server.result()->id == server_;
  const bool again = !lives || error.code() == absl::StatusCode::kUnavailable ||
                     error.code() == absl::StatusCode::kDataLoss;
  if (!options_.server_keeps_itself() || !worker_.standing().ok()) throw;
  if (is_over(options_)) {
    position_.next = Next::kDone;
    return;
  }
  if (!trouble_) trouble_ = clock_.now();
  if (!again || clock_.now() - *trouble_ > kPatience) throw;
  connected_ = false;
  if (lives) std::this_thread::sleep_for(kAgain);
}

bool TrainingJob::is_over(const JobOptions& options) {
  const CheckpointFolder folder(options.checkpoint_folder());
  const std::vector<int64_t> saved = must(folder.steps());
  if (saved.empty()) return false;
  CheckpointInfo info = must(folder.info(saved.back()));
  return info.epoch == options.epochs && info.metadata[kRun] == options.run;
}

void TrainingJob::look_at_folder() {
  // All trainers look at the folder before one of them changes it. So either all refuse it or none.
  old_folder_ = !options_.resume && !must(checkpoints_.steps()).empty();
  if (old_folder_ && !options_.checkpoint.empty()) {
    throw RpcError(absl::AlreadyExistsError(
        absl::StrCat("folder ", checkpoints_.root(),
                     " holds the checkpoints of another run; go on from them with --resume, or "
                     "choose an empty folder")));
  }
}

void TrainingJob::name_the_lost(const std::vector<std::string>& lost) const {
  if (!group_.leads()) return;
  std::cerr << absl::StrCat(absl::StrJoin(lost, ", "), lost.size() == 1 ? " has" : " have",
                            " died; training goes on with ", absl::StrJoin(group_.present(), ", "),
                            "\n");
}

}  // namespace weft::examples
