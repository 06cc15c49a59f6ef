// A parameter server that waits for all of its trainers and gives all of them the same new model.
// It follows PyTorch's tutorial "Implementing Batch RPC Processing Using Asynchronous Executions".
// It also runs two servers that wait for no trainer, for comparison.
//
//   weft_launch -n 4 --on-failure continue -- batched_parameter_server   (or torchrun --no-python)
//
// Rank 0 is the server, all others are trainers. Each trainer has a copy of the model and a shard
// of Fashion-MNIST. It sends the gradients of a batch and continues with the model that comes back.
// The server alone decides what an update waits for (update_server.h). It prints a line for each
// mode:
//
//   batched  test accuracy 0.8630, 7,456 pictures/s, 625 steps of 3.0 updates
//
// The server does not wait for a trainer that has died or failed. README.md has the table.
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/batched_parameter_server/trainer.h"
#include "weft/examples/batched_parameter_server/update_server.h"
#include "weft/examples/support/command_line.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/examples/support/progress.h"
#include "weft/rref/rref.h"
#include "weft/worker/run_main.h"
#include "weft/worker/stop_request.h"
#include "weft/worker/worker.h"

namespace weft::examples {

// Rank 0 trains one model in each mode and prints the results.
class Comparison {
 public:
  explicit Comparison(Job job)
      : job_(std::move(job)), test_(must(load_fashion_mnist_part(job_.data, /*train=*/false))) {
    for (int64_t rank = 1; rank <= job_.trainers; ++rank) trainers_[absl::StrCat("trainer", rank)];
    int64_t shard = 0;
    for (const std::string& trainer : names_of_trainers()) {
      try {
        trainers_[trainer] = remote<DataParallelTrainer>(trainer, job_, shard++);
      } catch (const RpcError& error) {  // it has died already
        drop(trainer, error.status());
      }
    }
  }

  // Trains a new model in this mode and prints its line. False: the server was asked to stop before
  // the last step.
  bool train(const std::string& name, ServerMode mode) {
    for (const std::string& trainer : names_of_trainers()) {  // waits until its data is read
      try {
        trainers_.at(trainer).rpc_sync(&DataParallelTrainer::pictures);
      } catch (const RpcError& error) {
        drop(trainer, error.status());
      }
    }
    const RRef<UpdateServer> server = make_rref(
        std::make_unique<UpdateServer>(mode, trainers_.size(), job_.learning_rate, job_.seed));
    UpdateServer& local = server.local_value();
    std::cout << absl::StreamFormat("%s: %d trainers learn\n", name, trainers_.size())
              << std::flush;
    const auto begun = std::chrono::steady_clock::now();
    std::map<std::string, Future<int64_t>> running;
    for (const auto& [trainer, object] : trainers_) {
      auto& result = running[trainer] = object.with({.timeout = std::chrono::seconds(job_.seconds)})
                                            .rpc_async(&DataParallelTrainer::train, server);
      (void)result.then([&local, server](const Future<int64_t>&) { local.one_trainer_less(); });
    }
    int64_t learned = 0;
    for (const auto& [trainer, result] : running) {
      const auto count = result.result();
      if (count.ok()) {
        learned += *count;
      } else {
        drop(trainer, count.status());
      }
    }
    const UpdateServer::Counts counts = local.counts();
    if (counts.stopped) {
      std::cout << name << ": stopped after " << counts.steps << " steps" << std::endl;
      return false;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    PictureNet net(job_.seed);
    net.use(local.fetch_model());
    const double rate = static_cast<double>(learned) / seconds.count();
    std::cout << absl::StreamFormat(
                     "%-8s test accuracy %.4f, %s pictures/s, %s steps of %.1f updates\n", name,
                     accuracy(test_, [&net](const at::Tensor& x) { return net.forward(x); }),
                     with_commas(static_cast<int64_t>(rate)),
                     with_commas(static_cast<int64_t>(counts.steps)),
                     static_cast<double>(counts.updates) / static_cast<double>(counts.steps))
              << std::flush;
    return true;
  }

 private:
  std::vector<std::string> names_of_trainers() const {
    std::vector<std::string> names;
    for (const auto& [name, object] : trainers_) names.push_back(name);
    return names;
  }
  // The other trainers go on. The error of the last trainer is the error of the job.
  void drop(const std::string& trainer, const absl::Status& why) {
    if (trainers_.size() == 1) throw RpcError(why);
    std::cerr << trainer << " is gone, the others go on: " << why.message() << std::endl;
    trainers_.erase(trainer);
  }

  const Job job_;
  const LabelledImages test_;
  std::map<std::string, RRef<DataParallelTrainer>> trainers_;
};

int run(int argc, char** argv) {
  Job job;
  const std::vector<std::pair<std::string, ServerMode>> modes{{"batched", ServerMode::kBatched},
                                                              {"locked", ServerMode::kLocked},
                                                              {"hogwild", ServerMode::kHogwild}};
  std::string only;
  CLI::App app("A parameter server whose updates wait for all trainers, and two that do not");
  app.add_option("--mode", only, "only this one: batched, locked or hogwild")
      ->check(CLI::IsMember({"batched", "locked", "hogwild"}));
  app.add_option("--data", job.data, "folder of Fashion-MNIST")->capture_default_str();
  app.add_option("--pictures", job.pictures, "of the training half; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--epochs", job.epochs)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--batch", job.batch, "pictures of one trainer's update")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--lr", job.learning_rate, "of one update")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seconds", job.seconds, "of one run, after which a trainer is given up")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_option("--seed", job.seed)->capture_default_str();
  if (const auto end = parse_command_line(app, argc, argv)) return end->print();

  WorkerOptions options = WorkerOptions::from_env();
  const uint32_t rank = options.place.rank;
  job.trainers = static_cast<int64_t>(options.place.world_size) - 1;
  if (job.trainers < 1) {
    throw std::runtime_error(
        "a server and a trainer are two processes at least: start them with weft_launch -n 4 -- "
        "batched_parameter_server");
  }
  options.name = rank == 0 ? "server" : absl::StrCat("trainer", rank);
  Worker worker = Worker::join(std::move(options));
  expect_stop_requests();  // a trainer serves on, because the server alone decides
  bool complete = true;
  if (rank == 0) {
    Comparison comparison(job);
    for (const auto& [name, mode] : modes) {
      if (complete && (only.empty() || only == name)) complete = comparison.train(name, mode);
    }
  }
  worker.shutdown();  // serves until all ranks have called it
  return complete ? 0 : kStoppedExitCode;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
