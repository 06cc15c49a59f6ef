#include "weft/examples/parameter_server/training_job.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>
#include <utility>

#include <ATen/ops/zeros.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/examples/support/must.h"
#include "weft/rpc/verbs.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

// How long a server may take to come back, and the server waits for a trainer.
constexpr auto kPatience = std::chrono::seconds(60);
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr auto kAgain = std::chrono::milliseconds(50);  // before a refused call is repeated

// How far the server may go back: one checkpoint interval is lost with it, and more if its disk has
// failed. With durable steps only the step under way is lost.
uint64_t reach_of(const JobOptions& options) {
  return options.every_step_durable ? 2 : 2 * static_cast<uint64_t>(options.checkpoint_every);
}

TensorMap parameters_of(const torch::nn::Module& layers) {
  TensorMap values;
  for (const auto& item : layers.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

JobState first_state(const JobOptions& options) {
  return {parameters_of(FeatureLayers(options.seed)),
          parameters_of(ClassifierLayers(options.seed)),
          {{"steps", at::zeros({}, at::kLong)}}};
}

}  // namespace

std::string worker_name(uint32_t rank) {
  return rank == 0 ? kServerName : absl::StrCat("trainer", rank);
}

std::vector<std::string> trainer_names(uint32_t world_size) {
  std::vector<std::string> names;
  for (uint32_t rank = 1; rank < world_size; ++rank) names.push_back(worker_name(rank));
  return names;
}

WorkerOptions launched_worker(JobOptions& options) {
  WorkerOptions worker = WorkerOptions::from_env();
  if (worker.place.world_size < 2) {
    throw RpcError(absl::InvalidArgumentError(
        "the job needs a server and at least one trainer, and WORLD_SIZE is 1; start it "
        "with tools/train.sh, or with weft_launch -n 3 -- parameter_server"));
  }
  worker.name = worker_name(worker.place.rank);
  options.run = worker.place.run_id;
  return worker;
}

Worker join_job(WorkerOptions options) {
  Worker worker = Worker::join(std::move(options));
  expect_stop_requests();
  return worker;
}

RpcError error_of_trainer(const Worker& trainer, const RpcError& error) {
  // Trainers call only the server.
  const char* lost = error.code() == absl::StatusCode::kUnavailable ? "lost worker 'ps': " : "";
  return RpcError(absl::Status(error.code(),
                               absl::StrCat(trainer.name(), ": ", lost, error.status().message())));
}

void clear_server_folder(const JobOptions& options) {
  if (options.server_keeps_itself()) std::filesystem::remove_all(options.server_folder());
}

std::unique_ptr<Checkpointer> save_server(const JobOptions& options,
                                          const RRef<ParameterSet>& parameters) {
  if (!options.server_keeps_itself()) return nullptr;
  CheckpointerOptions how{.folder = options.server_folder()};
  if (options.checkpoint_every > 0) how.every = static_cast<uint64_t>(options.checkpoint_every);
  if (options.every_step_durable) how.durability = Durability::kEveryStep;
  return must(Checkpointer::open(parameters.local_value().shared_from_this(), how));
}

void serve_until_over(Worker& worker, const JobOptions& options, const JobStop& stop) {
  worker.serve();
  if (!options.server_keeps_itself()) return;
  must(worker.standing());
  const JobCheckpoints checkpoints(options);
  const MemberEvents events = worker.member_events();
  std::set<WorkerId> trainers;  // all that live
  auto seen = std::chrono::steady_clock::now();
  while (!stop.stopped() && !checkpoints.is_over() &&
         std::chrono::steady_clock::now() - seen < kPatience) {
    if (const auto event = events.next(kLook)) {
      if (event->change == MemberChange::kJoined) {
        trainers.insert(event->worker.id);
      } else {
        trainers.erase(event->worker.id);
      }
    } else if (trainers.empty() && stop_requested()) {
      return;  // the launcher that asked restarts no trainer
    }
    must(worker.standing());  // a worker that was declared dead hears of no more members
    if (!trainers.empty()) seen = std::chrono::steady_clock::now();
  }
}

std::vector<at::Tensor> JobTrainer::own_layers() const {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : own_parameters()) values.push_back(parameter.detach());
  return values;
}

void JobTrainer::set_own_layers(const std::vector<at::Tensor>& values) {
  const std::vector<at::Tensor> own = own_layers();
  for (size_t i = 0; i < own.size(); ++i) own[i].copy_(values.at(i));
}

TrainingJob::TrainingJob(const Worker& worker, const JobOptions& options, JobTrainer& trainer,
                         bool restarted)
    : worker_(worker),
      options_(options),
      trainer_(trainer),
      restarted_(restarted),
      data_(must(load_fashion_mnist(options.data, options.limit))),
      checkpoints_(options),
      group_({.names = trainer_names(static_cast<uint32_t>(worker.workers().size())),
              .self = worker.name(),
              .on_loss = [this](const auto& lost) { name_the_lost(lost); }}),
      history_(reach_of(options)),
      report_({.title = "Fashion-MNIST, parameter server",
               .folder = options.out,
               .epochs = options.epochs,
               .pictures = data_.train.size()},
              clock_) {
  // All trainers look at the folder before one of them changes it. So either all refuse it or none.
  if (!restarted) must_clear_ = checkpoints_.must_clear();
}

void TrainingJob::attempt(const std::function<void(Next)>& work) {
  try {
    if (!connected_) connect();
    work(position_.next);
    trouble_.reset();
  } catch (const RpcError& error) {
    survive(error);
  }
}

TrainingJob::End TrainingJob::finish() {
  const bool stopped = position_.stopped(options_.epochs);
  End end{.exit_code = stopped ? kStoppedExitCode : 0};
  report_.finish_progress();
  try {
    if (stopped) say_job_has_stopped(worker_.to(kServerName));
    group_.leave();
  } catch (const RpcError&) {  // the server has died, so it waits for no trainer
    if (!options_.server_keeps_itself() && !stopped) throw;
  }
  if (!group_.leads()) return end;
  if (stopped) {
    end.last_line = absl::StrCat("stopped after step ", position_.steps);
    return end;
  }
  if (checkpoints_.is_over()) {  // another trainer may have led during the evaluation
    accuracy_ = checkpoints_.last_accuracy().value_or(accuracy_);
  }
  end.last_line = report_.last_line(accuracy_, workers());
  return end;
}

// ---- from one position to the next

void TrainingJob::begin() {
  meet([this] {
    if (must_clear_) checkpoints_.clear();
  });
}

TrainingJob::NextBatch TrainingJob::next_batch() {
  const auto batch = static_cast<size_t>(options_.batch);
  const auto step = static_cast<size_t>(position_.step);
  sampler().seek(static_cast<uint64_t>(position_.epoch), step * batch);
  const auto indices = sampler().next(batch);
  expected_ = position_.after_step(steps_per_epoch());
  history_.expect(expected_);
  return {make_batch(data_.train, indices.value()),
          epochs_done() / static_cast<double>(options_.epochs)};
}

void TrainingJob::stepped(const TrainerStep& step) {
  number_ = step.result.number;
  if (options_.server_keeps_itself()) history_.keep(number_, trainer_.memory());
  const double epoch =
      static_cast<double>(position_.epoch) +
      static_cast<double>(position_.step + 1) / static_cast<double>(steps_per_epoch());
  report_.note_step(expected_.steps, epoch, step.loss, group_.leads());
  position_ = expected_;
  group_.forget_before(options_.server_keeps_itself() ? history_.earliest().round
                                                      : position_.round);
}

void TrainingJob::average() { take_part(job_is_asked_to_stop(worker_.to(kServerName))); }

void TrainingJob::save(const std::function<double(const LabelledImages&)>& evaluate) {
  meet([&] {
    const bool ended = position_.next == Next::kEvaluate;  // the epoch
    if (ended &&
        (position_.epoch % options_.eval_every == 0 || position_.epoch == options_.epochs)) {
      const std::optional<double> known = checkpoints_.accuracy(position_.steps);
      accuracy_ = known ? *known : evaluate(data_.test);
      report_.note_accuracy(position_.steps, static_cast<double>(position_.epoch), accuracy_);
    }
    if (ended) report_.write_curves();
    if (!checkpoints_.holds(position_.steps)) {
      checkpoints_.save({.step = position_.steps,
                         .epoch = position_.epoch,
                         .pictures = position_.step * pictures_per_step(),
                         .state = trainer_.state()},
                        ended ? std::optional(accuracy_) : std::nullopt, workers());
    }
    if (!ended) report_.write_curves();  // the time before SIGKILL is short
  });
}

void TrainingJob::meet(const std::function<void()>& work) {
  const bool mine = group_.leads();
  if (mine) work();
  take_part(mine);
}

// In all rounds the trainers give their own layers, so a restarted trainer can enter at any round.
void TrainingJob::take_part(bool flag) {
  const AveragingGroup::Round round =
      group_.average(position_.round + 1, {.position = position_.numbers(),
                                           .step = number_,
                                           .values = trainer_.own_layers(),
                                           .flag = flag});
  const Position then = Position::of(round.position);
  position_ = then.after_round(round.flag, steps_per_epoch(), options_.epochs);
  if (then.next == Next::kAverage || then.next == Next::kLastAverage) {
    trainer_.set_own_layers(round.average);
  } else if (then.next != Next::kSave && !options_.server_keeps_itself()) {
    sampler_.reset();  // the live trainers divide the next epoch
  }
}

DistributedSampler& TrainingJob::sampler() {
  if (sampler_) return *sampler_;
  DistributedSamplerOptions part{.seed = options_.seed, .drop_last = true};
  if (options_.server_keeps_itself()) {  // a trainer that dies comes back to its own part
    part.rank = static_cast<int64_t>(worker_.id().index) - 1;
    part.num_replicas = static_cast<int64_t>(workers()) - 1;
  } else {
    part.rank = static_cast<int64_t>(group_.place());
    part.num_replicas = static_cast<int64_t>(group_.present().size());
  }
  parts_ = part.num_replicas;
  if (data_.train.size() < parts_) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat(data_.train.size(), " pictures are too few for ", parts_, " trainers")));
  }
  return sampler_.emplace(static_cast<size_t>(data_.train.size()), part);
}

int64_t TrainingJob::steps_per_epoch() {
  return static_cast<int64_t>(sampler().batches(static_cast<size_t>(options_.batch)));
}

int64_t TrainingJob::pictures_per_step() {
  sampler();  // sets parts_
  return options_.batch * parts_;
}

double TrainingJob::epochs_done() {
  return static_cast<double>(position_.epoch) +
         static_cast<double>(position_.step) / static_cast<double>(steps_per_epoch());
}

// ---- the first step, and those after a loss

void TrainingJob::connect() {
  // After SIGTERM no launcher restarts the server.
  server_ = worker_.wait_for(kServerName, stop_requested() ? kAgain : kPatience).id;
  const RRef<ParameterAverager> averager = trainer_.connect();
  if (begun_) {
    number_ = trainer_.resume();
    const auto moment = must(history_.go_back(number_));
    trainer_.set_memory(moment.state);
    position_ = moment.position;
    group_.connect(averager, position_.round);
    report_.go_back(position_.steps);
  } else {
    group_.connect(averager, 0);
    if (restarted_) {
      enter();
    } else if (options_.resume) {
      restore();
    }
    if (options_.server_keeps_itself()) history_.begin(number_, position_, trainer_.memory());
    begun_ = true;
  }
  connected_ = true;
}

void TrainingJob::enter() {
  number_ = trainer_.resume();
  const std::optional<AveragingGroup::Round> round = group_.enter();
  if (!round) return restore();  // no trainer knows more than the last checkpoint
  trainer_.set_own_layers(round->average);
  const int64_t length = steps_per_epoch();
  position_ = Position::of(round->position).after_round(round->flag, length, options_.epochs);
  // The steps of its earlier incarnation after that round are done, so they are not repeated.
  const uint64_t trained = number_ - round->step.value_or(number_);
  for (uint64_t n = 0; n < trained && position_.next == Next::kStep; ++n) {
    position_ = position_.after_step(length);
  }
  report_.resume(position_.steps, epochs_done());
}

void TrainingJob::restore() {
  if (restarted_ && checkpoints_.empty()) return trainer_.load_state(first_state(options_));
  const JobCheckpoints::Moment saved = checkpoints_.load_newest();
  trainer_.load_state(saved.state);  // every trainer loads the same into the server
  position_ = {.epoch = saved.epoch,
               .step = Position::step_after(saved.pictures, pictures_per_step(), steps_per_epoch()),
               .steps = saved.step};
  report_.resume(position_.steps, epochs_done());
}

void TrainingJob::survive(const RpcError& error) {
  const Future<WorkerInfo> server = worker_.wait_for_async(kServerName, kPatience);
  const bool there = server.done() && server.result().ok();  // this incarnation or the next one
  const bool lives = there && server.result()->id == server_;
  const bool again = !lives || error.code() == absl::StatusCode::kUnavailable ||
                     error.code() == absl::StatusCode::kDataLoss;
  if (!worker_.standing().ok()) throw;
  const bool has_stopped = position_.stop && checkpoints_.holds(position_.steps);
  if (!has_stopped && !options_.server_keeps_itself()) throw;
  if (has_stopped || checkpoints_.is_over()) {
    position_.next = Next::kDone;
    return;
  }
  if (!there && stop_requested()) throw;  // nobody restarts the server
  if (!trouble_) trouble_ = clock_.now();
  if (!again || clock_.now() - *trouble_ > kPatience) throw;
  connected_ = false;
  if (lives) std::this_thread::sleep_for(kAgain);
}

void TrainingJob::name_the_lost(const std::vector<std::string>& lost) const {
  if (!group_.leads()) return;
  std::cerr << absl::StrCat(absl::StrJoin(lost, ", "), lost.size() == 1 ? " has" : " have",
                            " died; training goes on with ", absl::StrJoin(group_.present(), ", "),
                            "\n");
}

}  // namespace weft::examples
