#include "weft/examples/ddp_mnist/options.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "weft/examples/support/fashion_mnist.h"

namespace weft::examples {

DdpMnistCommandLine parse_ddp_mnist_options(int argc, const char* const* argv) {
  DdpMnistOptions options;
  options.data = kFashionMnistFolder;

  CLI::App app(
      "Trains a network for Fashion-MNIST on several ranks, each with a share of the\n"
      "pictures; DistributedDataParallel averages their gradients.",
      "ddp_mnist");
  app.footer(
      "  weft_launch -n 2 -- ddp_mnist                           two ranks\n"
      "  torchrun --no-python --nproc-per-node 2 ddp_mnist       the same\n"
      "  ddp_mnist --whole-batch 2                               the same training in one process\n"
      "Prints after each epoch: epoch E of N: loss L, test accuracy A, S s");
  app.add_option("--data", options.data, "folder of the data set")->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the training pictures, of all runs")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{10000}));
  app.add_option("--batch", options.batch, "pictures per step and rank")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{60000}));
  app.add_option("--lr", options.lr, "learning rate")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of first weights and order")->capture_default_str();
  app.add_option("--limit", options.limit,
                 "use only the first so many training and test pictures (default: all)")
      ->check(CLI::Range(int64_t{1}, int64_t{60000}));
  app.add_flag("--double", options.double_numbers, "calculate in double, not float");
  app.add_option("--whole-batch", options.whole_batch,
                 "one process, without DistributedDataParallel, whose batch is that of so many "
                 "ranks: the same pictures in each step")
      ->check(CLI::Range(1, 1024));
  CLI::Option* const checkpoint =
      app.add_option("--checkpoint", options.checkpoint,
                     "folder for the state after each epoch, which is replaced");
  app.add_flag("--resume", options.resume,
               "go on from the checkpoint, with the same --seed, --batch and ranks")
      ->needs(checkpoint);
  app.add_option("--losses", options.losses, "file for the mean loss over all ranks of each step");
  app.add_option("--compare", options.compare,
                 "the --losses file of another run; prints the greatest difference");

  if (auto end = parse_command_line(app, argc, argv)) return {*std::move(end), {}};
  return {{}, std::move(options)};
}

}  // namespace weft::examples
