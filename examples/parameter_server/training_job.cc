#include "weft/examples/parameter_server/training_job.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/support/sharded_sampler.h"

namespace weft::examples {
namespace {

constexpr int64_t kAverageEvery = 20;  // steps
constexpr const char* kTrainerShard = "trainer";
constexpr const char* kServerShard = "server";
constexpr const char* kOptimizerShard = "optimizer";

template <class T>
T must(absl::StatusOr<T> result) {
  if (!result.ok()) throw RpcError(result.status());
  return *std::move(result);
}

void keep_first(LabelledImages& part, int64_t limit) {
  if (limit == 0 || limit >= part.size()) return;
  part.images = part.images.narrow(0, 0, limit);
  part.labels = part.labels.narrow(0, 0, limit);
}

FashionMnist load_data(const JobOptions& options) {
  FashionMnist data = must(load_fashion_mnist(options.data));
  keep_first(data.train, options.limit);
  keep_first(data.test, options.limit);
  return data;
}

uint32_t world_size(const Worker& worker) { return static_cast<uint32_t>(worker.workers().size()); }

}  // namespace

TrainingJob::TrainingJob(const Worker& worker, const JobOptions& options, Clock& clock)
    : worker_(worker),
      options_(options),
      data_(load_data(options)),
      checkpoints_(options.checkpoint_folder()),
      group_(find_averager(worker.to(kServerName)), trainer_names(world_size(worker)),
             worker.name(), [this](const auto& lost) { name_the_lost(lost); }),
      trainer_(worker, options, world_size(worker) - 1),
      report_(options, data_.train.size(), clock) {}

std::optional<std::string> TrainingJob::run() {
  begin();
  if (epoch_ == options_.epochs) finish_epoch();  // resumed behind the end: only evaluated
  while (epoch_ < options_.epochs) {
    train_epoch();
    finish_epoch();
  }
  report_.finish_progress();
  group_.leave();
  if (!group_.leads()) return std::nullopt;
  return report_.last_line(accuracy_, world_size(worker_));
}

void TrainingJob::begin() {
  // All look at the folder before one of them changes it, so that all refuse it or none.
  const std::vector<int64_t> saved = must(checkpoints_.steps());
  if (options_.resume) {
    restore();
  } else if (!saved.empty() && !options_.checkpoint.empty()) {
    throw RpcError(absl::AlreadyExistsError(
        absl::StrCat("folder ", checkpoints_.root(),
                     " holds the checkpoints of another run; go on from them with --resume, or "
                     "choose an empty folder")));
  }
  group_.meet();
  if (!options_.resume && !saved.empty() && group_.leads()) {
    std::filesystem::remove_all(checkpoints_.root());
  }
}

void TrainingJob::restore() {
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
  trainer_.load_state(state);  // every trainer loads the same into the server
  epoch_ = checkpoint.info.epoch;
  step_ = checkpoint.info.step;
  report_.resume(step_, epoch_);
}

void TrainingJob::train_epoch() {
  const ShardedSampler::Options shares{.size = data_.train.size(),
                                       .shard = static_cast<int64_t>(group_.place()),
                                       .shards = static_cast<int64_t>(group_.present().size()),
                                       .batch = options_.batch,
                                       .seed = options_.seed};
  if (absl::Status status = shares.validate(); !status.ok()) throw RpcError(status);
  ShardedSampler sampler(shares);
  sampler.seek({.epoch = epoch_, .step = 0});
  const int64_t steps = sampler.steps_per_epoch();
  for (int64_t step = 0; step < steps; ++step) {
    const auto epochs = [&](int64_t done) {
      return static_cast<double>(epoch_) + static_cast<double>(done) / static_cast<double>(steps);
    };
    const double loss = trainer_.step(make_batch(data_.train, sampler.next()),
                                      epochs(step) / static_cast<double>(options_.epochs));
    report_.note_step(++step_, epochs(step + 1), loss, group_.leads());
    if ((step + 1) % kAverageEvery == 0) average_own_layers();
  }
  ++epoch_;
}

void TrainingJob::finish_epoch() {
  average_own_layers();
  bool done = false;
  while (!done) {
    const bool mine = group_.leads();
    if (mine) evaluate_and_save();
    done = group_.meet(mine);
  }
}

void TrainingJob::evaluate_and_save() {
  if (epoch_ % options_.eval_every == 0 || epoch_ == options_.epochs) {
    accuracy_ = trainer_.evaluate(data_.test);
    report_.note_accuracy(step_, static_cast<double>(epoch_), accuracy_);
  }
  report_.write_curves();
  const std::vector<int64_t> saved = must(checkpoints_.steps());
  if (std::find(saved.begin(), saved.end(), step_) != saved.end()) return;
  const Trainer::State state = trainer_.state();
  const absl::Status status =
      checkpoints_.save({.step = step_,
                         .epoch = epoch_,
                         .world_size = static_cast<int64_t>(world_size(worker_)),
                         .seed = options_.seed},
                        {{kTrainerShard, state.trainer},
                         {kServerShard, state.server},
                         {kOptimizerShard, state.optimizer}});
  if (!status.ok()) throw RpcError(status);
}

void TrainingJob::average_own_layers() {
  trainer_.set_own_layers(group_.average(trainer_.own_layers()));
}

void TrainingJob::name_the_lost(const std::vector<std::string>& lost) const {
  if (!group_.leads()) return;
  std::cerr << absl::StrCat(absl::StrJoin(lost, ", "), lost.size() == 1 ? " has" : " have",
                            " died; training goes on with ", absl::StrJoin(group_.present(), ", "),
                            "\n");
}

}  // namespace weft::examples
