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
// The master fails if the RMSE is not most of the way from the means to the noise. README.md says
// which file shows what.
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
#include "weft/weft.h"

namespace weft::examples {

constexpr int64_t kWidth = 8, kHidden = 32;  // of an embedding, of the dense part
constexpr size_t kBatch = 100;

// An embedding table on a parameter server. A backward pass that looked up 100 rows has a gradient
// of 100 rows, and the optimizer changes only these rows.
class Table : public torch::nn::Module {
 public:
  Table(int64_t rows, uint64_t seed) {
    rows_ = register_module(
        "rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(rows, kWidth).sparse(true)));
    const torch::NoGradGuard no_grad;
    rows_->weight.normal_(0, 0.1, at::detail::createCPUGenerator(seed));
  }
  at::Tensor forward(const at::Tensor& indices) { return rows_(indices); }

 private:
  torch::nn::Embedding rows_ = nullptr;
};
WEFT_REGISTER_MODULE(Table, int64_t, uint64_t);

// The dense part, on every trainer. All replicas start with the weights of rank 0.
class Dense : public torch::nn::Module {
 public:
  Dense() {
    hidden_ = register_module("hidden", torch::nn::Linear(3 * kWidth, kHidden));
    output_ = register_module("output", torch::nn::Linear(kHidden, 1));
  }
  at::Tensor forward(const at::Tensor& users, const at::Tensor& items) {
    const at::Tensor pairs = torch::cat({users, items, users * items}, 1);
    return output_(torch::relu(hidden_(pairs))).squeeze(1);
  }

 private:
  torch::nn::Linear hidden_ = nullptr, output_ = nullptr;
};

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
  at::Tensor predicted;  // ratings of the test set
  at::Tensor weights;    // all weights of the replica
  friend auto weft_fields(Outcome& outcome) { return std::tie(outcome.predicted, outcome.weights); }
};

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
  for (int64_t epoch = 0; epoch < job.epochs; ++epoch) {
    sampler.set_epoch(static_cast<uint64_t>(epoch));
    while (const auto indices = sampler.next(kBatch)) {
      const std::vector<int64_t> chosen(indices->begin(), indices->end());
      const Ratings batch = ratings.train.pick(torch::tensor(chosen));
      const dist_autograd::Context context;
      const at::Tensor loss = torch::mse_loss(predict(job, dense, batch), batch.stars);
      context.backward({loss});  // through the replica, over the group, then to the tables
      optimizer.step(context);
    }
  }
  group->barrier();  // after this no trainer changes the tables
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> weights;
  for (const at::Tensor& one : dense.parameters()) weights.push_back(one.flatten());
  return {predict(job, dense, ratings.test), torch::cat(weights)};
}
WEFT_REGISTER_FUNCTION(train);

// Returns true if the trainers have learned most of what the data holds.
bool drive(Job job, int64_t last_server) {
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
  const bool learned = !is_master || drive(std::move(job), servers - 1);
  worker.shutdown();  // serves until all ranks have called it
  if (!learned) throw std::runtime_error("the trainers have not learned what there is to learn");
  return 0;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
