// A recommender whose embeddings live on parameter servers and whose dense part is replicated on
// trainers. One backward pass uses DistributedDataParallel and distributed autograd.
//
//   weft_launch -n 4 -- ddp_rpc_hybrid                     (or torchrun --no-python)
//
// The last rank is the parameter server. With five or more ranks, the last two are: one has the
// table of the users, the other that of the items. The rank before them is the master. It makes the
// tables and tells all other ranks, the trainers, to train. At the end it prints, in one line,
//
//   test RMSE 0.351 (noise alone 0.300, means of users and items 1.055): 2 trainers, 1 server,
//   replicas equal
//
// The master fails if the RMSE is not most of the way from the means to the noise. After SIGTERM to
// a trainer, all stop after the same step. README.md says which file shows what.
#include <atomic>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "weft/comm/process_group.h"
#include "weft/ddp/dist_autograd_bridge.h"
#include "weft/ddp/distributed_data_parallel.h"
#include "weft/ddp/distributed_sampler.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/dist_optim/hosted_module.h"
#include "weft/examples/ddp_rpc_hybrid/ratings.h"
#include "weft/examples/ddp_rpc_hybrid/recommender.h"
#include "weft/weft.h"

namespace weft::examples {

constexpr size_t kBatch = 100;

// The master's order to a trainer. References to the tables travel like any other value.
struct Job {
  HostedModule<Table> users, items;
  int64_t rank = 0, trainers = 1, epochs = 0;
  uint64_t seed = 0;
  friend auto weft_fields(Job& job) {
    return std::tie(job.users, job.items, job.rank, job.trainers, job.epochs, job.seed);
  }
};

// The trainer's answer.
struct Outcome {
  at::Tensor predicted;  // ratings of the test set; undefined if the trainers have stopped
  at::Tensor weights;    // all weights of the replica
  int64_t steps = 0;     // that each trainer has made
  bool stopped = false;  // a trainer was asked to stop before the last step
  friend auto weft_fields(Outcome& outcome) {
    return std::tie(outcome.predicted, outcome.weights, outcome.steps, outcome.stopped);
  }
};

// Set in every process of a job that has stopped before its last step.
std::atomic<bool> job_has_stopped{false};
void note_stop() { job_has_stopped = true; }
WEFT_REGISTER_FUNCTION(note_stop);

// The gradients of this process's worker: here DistributedDataParallel takes part in the backward
// pass.
const std::shared_ptr<DdpGradients>& ddp_gradients() {
  static const auto gradients = std::make_shared<DdpGradients>();
  return gradients;
}

at::Tensor predict(const Job& job, DistributedDataParallel<Dense>& dense, const Ratings& ratings) {
  const Future<at::Tensor> users = job.users.forward_async(ratings.users);
  const Future<at::Tensor> items = job.items.forward_async(ratings.items);
  return dense(users.wait(), items.wait());
}

// Whether a trainer was asked to stop. All must leave after the same step.
bool agree_to_stop(ProcessGroup& group) {
  const at::Tensor asked = at::scalar_tensor(stop_requested() ? 1 : 0, at::kInt);
  group.all_reduce(asked, ProcessGroup::Op::MAX);
  return asked.item<int>() != 0;
}

Outcome train(const Job& job) {
  const PlantedRatings ratings = plant_ratings(job.seed);
  const auto group = init_process_group({.rank = static_cast<int>(job.rank),
                                         .world_size = static_cast<int>(job.trainers),
                                         .name = "trainers"});
  DistributedDataParallel<Dense> dense(std::make_shared<Dense>(), group,
                                       {.distributed_gradients = ddp_gradients()});
  // One optimizer for all parameters: each owner updates what it holds, with the gradients that the
  // context left there. Gradients of the replica are averages, so all replicas take the same step.
  // Gradients of table rows come from the ratings of this trainer alone. The trainers share
  // Adagrad's state of the rows.
  DistributedOptimizer<torch::optim::Adagrad> optimizer(
      {{{make_rref(ParameterSet::of(dense))}, {}, settings_of(torch::optim::AdagradOptions(0.1))},
       {{job.users.parameters(), job.items.parameters()},
        {},
        settings_of(torch::optim::AdagradOptions(0.3))}},
      {.shared_name = "adagrad"});

  DistributedSampler sampler(static_cast<size_t>(ratings.train.size()),
                             {.num_replicas = job.trainers, .rank = job.rank, .seed = job.seed});
  const int64_t all_steps = job.epochs * static_cast<int64_t>(sampler.batches(kBatch));
  Outcome outcome;
  for (int64_t epoch = 0; epoch < job.epochs && !outcome.stopped; ++epoch) {
    if (epoch > 0 && job.rank == 0) {
      std::cout << absl::StrCat("epoch ", epoch, " of ", job.epochs, "\n") << std::flush;
    }
    sampler.set_epoch(static_cast<uint64_t>(epoch));
    while (const auto indices = sampler.next(kBatch)) {
      const std::vector<int64_t> chosen(indices->begin(), indices->end());
      const Ratings batch = ratings.train.pick(torch::tensor(chosen));
      const dist_autograd::Context context;
      const at::Tensor loss = torch::mse_loss(predict(job, dense, batch), batch.stars);
      context.backward({loss});  // through the replica, over the group, then to the tables
      optimizer.step(context);
      ++outcome.steps;
      outcome.stopped = agree_to_stop(*group) && outcome.steps < all_steps;
      if (outcome.stopped) break;
    }
  }
  group->barrier();  // after this no trainer changes the tables
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  for (const at::Tensor& one : dense.parameters()) weights.push_back(one.flatten());
  outcome.weights = torch::cat(weights);
  if (!outcome.stopped) outcome.predicted = predict(job, dense, ratings.test);
  return outcome;
}
WEFT_REGISTER_FUNCTION(train);

// Tells all processes of a stop. False: the trainers have not learned most of what the data holds.
bool drive(const Worker& worker, Job job, int64_t last_server) {
  job.users = HostedModule<Table>("ps0", kUsers, job.seed + 1);
  job.items = HostedModule<Table>(absl::StrCat("ps", last_server), kItems, job.seed + 2);
  const int servers = job.users.owner() == job.items.owner() ? 1 : 2;  // servers that have a table
  std::vector<Future<Outcome>> running;
  for (job.rank = 0; job.rank < job.trainers; ++job.rank) {
    const std::string trainer = absl::StrCat("trainer", job.rank);
    running.push_back(rpc_async({trainer, {.timeout = absl::InfiniteDuration()}}, train, job));
  }
  const PlantedRatings ratings = plant_ratings(job.seed);
  const Outcome first = running.front().wait();
  bool equal = true;
  for (const Future<Outcome>& one : running) equal &= first.weights.equal(one.wait().weights);
  if (first.stopped) {
    std::cout << "stopped after step " << first.steps << std::endl;
    for (const WorkerInfo& info : worker.workers()) rpc_sync(info.id, note_stop);
    return true;
  }
  const Score reached = score(first.predicted, ratings);
  const auto count = [](int64_t n, const char* what) {
    return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
  };
  std::cout << reached.text() << ": " << count(job.trainers, "trainer") << ", "
            << count(servers, "server") << ", replicas " << (equal ? "equal" : "DIFFER")
            << std::endl;
  return equal && reached.has_learned();
}

int run(int argc, char** argv) {
  Job job;
  job.epochs = 10;
  CLI::App app("A recommender with embeddings on parameter servers and a replicated dense part");
  app.add_option("--epochs", job.epochs, "passes over the ratings")->capture_default_str();
  app.add_option("--seed", job.seed, "of the ratings and of the embeddings")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  WorkerOptions options = WorkerOptions::from_env();
  const int64_t rank = options.place.rank;
  const int64_t servers = options.place.world_size >= 5 ? 2 : 1;
  job.trainers = options.place.world_size - 1 - servers;
  if (job.trainers < 1) {
    throw RpcError(absl::InvalidArgumentError(
        "a trainer, the master and a parameter server are three processes at least: start them "
        "with weft_launch -n 4 -- ddp_rpc_hybrid"));
  }
  const bool is_master = rank == job.trainers;
  options.name = rank < job.trainers ? absl::StrCat("trainer", rank)
                 : is_master         ? "master"
                                     : absl::StrCat("ps", rank - job.trainers - 1);
  if (rank < job.trainers) options.leaf_observer = ddp_gradients();
  torch::manual_seed(job.seed);

  Worker worker = Worker::join(std::move(options));
  expect_stop_requests();  // the trainers look; the others serve on
  const bool learned = !is_master || drive(worker, std::move(job), servers - 1);
  worker.shutdown();  // serves until all ranks have called it
  if (!learned) throw std::runtime_error("the trainers have not learned what there is to learn");
  return job_has_stopped ? kStoppedExitCode : 0;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
