// A word-level language model on the King James text. Its embedding and decoder live on a parameter
// server, and the trainer has the LSTM. It is the RNN of PyTorch's tutorial "Getting Started with
// Distributed RPC Framework".
//
//   weft_launch -n 2 -- rnn_model_parallel                 (or torchrun --no-python)
//
// Rank 0 is the trainer, rank 1 the parameter server. The trainer sends words and gets their
// embeddings. Then it sends the outputs of the LSTM and the words that should follow, and gets the
// loss. So the scores of 8,547 words for each position do not travel. Every 20th verse is held out.
// At the end it prints
//
//   perplexity 36.5 after 2 epochs, 244 s: unigram 286.4, Kneser-Ney bigram 62.7
//
// README.md says how it was measured.
#include <chrono>
#include <cmath>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/examples/rnn_model_parallel/bible_text.h"
#include "weft/examples/rnn_model_parallel/ngram.h"
#include "weft/examples/rnn_model_parallel/rnn_model.h"
#include "weft/examples/support/command_line.h"
#include "weft/examples/support/must.h"
#include "weft/examples/support/progress.h"
#include "weft/worker/run_main.h"
#include "weft/worker/stop_request.h"
#include "weft/worker/worker.h"

namespace weft::examples {

struct Options {
  std::string text;
  int64_t verses = 0;
  int64_t epochs = 2;
  int64_t batch = 40;  // texts that are read side by side
  int64_t bptt = 20;   // the number of tokens through which gradients flow back
  RnnShape shape;
  double learning_rate = 6e-3;
  int64_t log_interval = 200;  // steps between two evaluations
  int threads = 2;             // of each process; while one computes the other waits
  uint64_t seed = 1;
};

constexpr int64_t kTestColumns = 20;

// A text as columns that are read side by side, and the token that follows each one.
struct Columns {
  at::Tensor words, targets;  // [length, columns]

  Columns(const std::vector<int64_t>& text, int64_t columns) {
    const int64_t length = (static_cast<int64_t>(text.size()) - 1) / columns;
    const at::Tensor all = torch::tensor(text);
    const auto from = [&](int64_t begin) {
      return all.narrow(0, begin, length * columns).view({columns, length}).t().contiguous();
    };
    words = from(0);
    targets = from(1);
  }
  int64_t length() const { return words.size(0); }
};

double perplexity(RnnModel& model, const Columns& text, int64_t steps) {
  const torch::NoGradGuard no_grad;
  model.train(false);
  std::optional<LstmState> state;
  double sum = 0;
  for (int64_t i = 0; i < text.length(); i += steps) {
    const int64_t length = std::min(steps, text.length() - i);
    const at::Tensor loss =
        model.forward(text.words.narrow(0, i, length), text.targets.narrow(0, i, length), state);
    sum += loss.item<double>() * static_cast<double>(length);
  }
  model.train(true);
  return std::exp(sum / static_cast<double>(text.length()));
}

bool train(const Options& options) {  // false: it was asked to stop before the last step
  const BibleText text = must(load_bible_text(options.text, options.verses));
  const auto commas = [](size_t number) { return with_commas(static_cast<int64_t>(number)); };
  const std::string baselines = absl::StrFormat(
      "unigram %.1f, Kneser-Ney bigram %.1f", unigram_perplexity(text.train, text.held_out),
      kneser_ney_perplexity(text.train, text.held_out, text.vocabulary_size()));
  std::cout << commas(text.verses) << " verses: " << commas(text.train.size() - 1)
            << " tokens to learn from, " << commas(text.held_out.size() - 1) << " held out, "
            << "a vocabulary of " << commas(text.vocabulary.size()) << "\n"
            << "perplexity of n-grams: " << baselines << std::endl;
  const Columns learned(text.train, options.batch), held_out(text.held_out, kTestColumns);
  if (learned.length() == 0 || held_out.length() == 0) {
    throw std::runtime_error(absl::StrCat(
        text.verses, " verses are too few: ", options.batch, " columns of text need ",
        options.batch + 1, " tokens and have ", text.train.size(), ", those of the test need ",
        kTestColumns + 1, " and have ", text.held_out.size()));
  }

  RnnShape shape = options.shape;
  shape.vocabulary = text.vocabulary_size();
  RnnModel model("ps", shape);
  const int64_t steps_of_epoch = (learned.length() + options.bptt - 1) / options.bptt;
  const int64_t all_steps = steps_of_epoch * options.epochs;
  DistributedOptimizer<torch::optim::Adam> optimizer(
      model.parameters(), torch::optim::AdamOptions(options.learning_rate));
  optimizer.set_schedule(warmup_lr(50, cosine_lr(all_steps, 0.05)));
  const auto begun = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  std::optional<LstmState> state;
  const auto train_step = [&](int64_t place) {
    const int64_t length = std::min(options.bptt, learned.length() - place);
    const dist_autograd::Context context;
    const at::Tensor loss = model.forward(learned.words.narrow(0, place, length),
                                          learned.targets.narrow(0, place, length), state);
    context.backward({loss});
    optimizer.step(context, {.max_norm = 1});
    return loss.item<double>();
  };
  for (int64_t step = 0; step < all_steps; ++step) {
    if (stop_requested()) {
      std::cout << "stopped after step " << step << std::endl;
      return false;
    }
    const int64_t place = step % steps_of_epoch * options.bptt;
    if (place == 0) state.reset();
    const double loss = train_step(place);
    if ((step + 1) % options.log_interval == 0 && step + 1 < all_steps) {
      std::cout << absl::StreamFormat(
                       "%5.0f s  epoch %.2f  loss %.2f  ", seconds(),
                       static_cast<double>(step + 1) / static_cast<double>(steps_of_epoch), loss)
                << absl::StreamFormat("perplexity %.1f", perplexity(model, held_out, 50))
                << std::endl;
    }
  }
  const double learning = seconds();
  std::cout << absl::StreamFormat("perplexity %.1f after %d epoch%s, %.0f s: %s",
                                  perplexity(model, held_out, 50), options.epochs,
                                  options.epochs == 1 ? "" : "s", learning, baselines)
            << std::endl;
  return true;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("A language model in parts: embedding and decoder on a server, LSTM on the trainer");
  app.add_option("--text", options.text,
                 "a file with one verse in each line; default: what 'bible' prints");
  const auto number = [&app](const char* name, int64_t& value, int64_t low, const char* about) {
    app.add_option(name, value, about)
        ->check(CLI::Range(low, int64_t{1} << 40))
        ->capture_default_str();
  };
  number("--verses", options.verses, 0, "only the first ones; 0: all");
  number("--epochs", options.epochs, 1, "how often the text is gone through");
  number("--batch-size", options.batch, 1, "texts that are read side by side");
  number("--bptt", options.bptt, 1, "tokens that gradients flow back through");
  number("--embedding", options.shape.embedding, 1, "width of an embedding");
  number("--hidden", options.shape.hidden, 1, "width of the LSTM");
  number("--log-interval", options.log_interval, 1, "steps between two lines");
  app.add_option("--threads", options.threads, "of each process")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--dropout", options.shape.dropout)
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "at its highest")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  if (const auto end = parse_command_line(app, argc, argv)) return end->print();

  WorkerOptions worker_options = WorkerOptions::from_env();
  const bool leads = worker_options.place.rank == 0;
  if (worker_options.place.world_size != 2) {
    throw std::runtime_error(
        "the job is a trainer and a parameter server: start them with weft_launch -n 2 -- "
        "rnn_model_parallel");
  }
  worker_options.name = leads ? "trainer" : "ps";
  torch::manual_seed(options.seed);
  Worker worker = Worker::join(std::move(worker_options));
  expect_stop_requests();                // the server serves on
  at::set_num_threads(options.threads);  // Worker::join sets it to 1
  const bool complete = !leads || train(options);
  worker.shutdown();  // the server serves until the trainer calls it too
  return complete ? 0 : kStoppedExitCode;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
