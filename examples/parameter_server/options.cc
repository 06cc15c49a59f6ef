#include "weft/examples/parameter_server/options.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "weft/examples/support/fashion_mnist.h"

namespace weft::examples {

double JobOptions::learning_rate(size_t trainers) const {
  if (lr > 0) return lr;
  return trainers == 1 ? 1e-3 : 2e-3;
}

std::string JobOptions::checkpoint_folder() const {
  return checkpoint.empty() ? out + "/checkpoint" : checkpoint;
}

JobCommandLine parse_job_options(int argc, const char* const* argv) {
  JobOptions options;
  options.data = kFashionMnistFolder;

  CLI::App app(
      "Trains a network for Fashion-MNIST. Rank 0 is the parameter server, which holds the large\n"
      "last layers; every other rank is a trainer with the first layers and a share of the "
      "pictures.",
      "parameter_server");
  app.footer(
      "  tools/train.sh --trainers 4                                 builds, then runs\n"
      "  weft_launch -n 3 --on-failure continue -- parameter_server  a server, two trainers\n"
      "  weft_launch -n 3 --on-failure restart=9 -- parameter_server --checkpoint-every 100\n"
      "                              any process may get SIGKILL and comes back\n"
      "The last line is: test accuracy A after E epochs, W workers, S s");
  app.add_option("--data", options.data, "folder of the data set")->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the training pictures, of all runs")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{10000}));
  app.add_option("--batch", options.batch, "pictures per step and trainer")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{60000}));
  app.add_option("--lr", options.lr,
                 "first learning rate (default 0.001 for one trainer, 0.002 "
                 "for more); it falls to 0 along a cosine")
      ->check(CLI::PositiveNumber);
  app.add_option("--dropout", options.dropout, "share of the hidden layer that is left out")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.95));
  app.add_option("--seed", options.seed, "of first weights and order")->capture_default_str();
  app.add_option("--limit", options.limit,
                 "use only the first so many training and test pictures (default: all)")
      ->check(CLI::Range(int64_t{1}, int64_t{60000}));
  app.add_option("--eval-every", options.eval_every, "epochs between evaluations")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{10000}));
  app.add_option("--out", options.out,
                 "folder for curves.csv, curves.png and, without --checkpoint, checkpoints")
      ->capture_default_str();
  app.add_option("--checkpoint", options.checkpoint,
                 "folder for the state after each epoch and at a stop; empty without --resume "
                 "(default: OUT/checkpoint, which a run without --resume clears)");
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "the server also saves itself, twice in so many steps of a trainer, beside "
                 "the checkpoint folder, and comes back from there when it is started again "
                 "(default: not)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
  std::string durable = "checkpoint";
  app.add_option("--durable", durable,
                 "checkpoint: the steps since the last one are lost with the server; every-step: "
                 "each waits for the disk, and none is lost that could be written")
      ->capture_default_str()
      ->check(CLI::IsMember({"checkpoint", "every-step"}));
  app.add_flag("--resume", options.resume,
               "go on from the newest checkpoint, with the same --seed");

  if (auto end = parse_command_line(app, argc, argv)) return {*std::move(end), {}};
  options.every_step_durable = durable == "every-step";
  return {{}, std::move(options)};
}

}  // namespace weft::examples
