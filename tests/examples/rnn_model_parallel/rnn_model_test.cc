// The language model in two halves: gradients and loss equal those of one process.
#include "weft/examples/rnn_model_parallel/rnn_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/dist_autograd/context.h"
#include "weft/dist_optim/distributed_optimizer.h"
#include "weft/tests/support/error_of.h"
#include "weft/tests/support/worker_world.h"

namespace weft::examples {
namespace {

using ::testing::HasSubstr;
using weft::testing::WorkerWorld;

constexpr int64_t kKinds = 20;
const RnnShape kShape{.vocabulary = kKinds, .embedding = 6, .hidden = 8, .dropout = 0};

class Rnn : public ::testing::Test {
 protected:
  ~Rnn() override { world_.shutdown_all(); }

  WorkerWorld world_{2};
  WorkerScope scope_{world_[0]};
};

// The same model in one process.
struct Whole : torch::nn::Module {
  Whole(TensorMap table, TensorMap scores)
      : table(register_module("table",
                              torch::nn::Embedding::from_pretrained(
                                  table.at("table.weight"),
                                  torch::nn::EmbeddingFromPretrainedOptions().freeze(false)))),
        lstm(register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 8)))),
        scores(register_module("scores", torch::nn::Linear(8, kKinds))) {
    const torch::NoGradGuard no_grad;
    this->scores->weight.copy_(scores.at("scores.weight"));
    this->scores->bias.copy_(scores.at("scores.bias"));
  }
  at::Tensor forward(const at::Tensor& words, const at::Tensor& targets,
                     torch::optional<LstmState>& state) {
    auto [outputs, next] = lstm->forward(table(words), state);
    state = std::tuple(std::get<0>(next).detach(), std::get<1>(next).detach());
    return torch::nn::functional::cross_entropy(scores(outputs.flatten(0, 1)), targets.flatten());
  }
  torch::nn::Embedding table;
  torch::nn::LSTM lstm;
  torch::nn::Linear scores;
};

TEST_F(Rnn, ThreeStepsOfTrainingAreThoseOfOneProcess) {
  torch::manual_seed(3);
  RnnModel model("worker1", kShape);
  Whole whole(model.embedding().state(), model.decoder().state());
  {
    const torch::NoGradGuard no_grad;
    auto own = whole.lstm->named_parameters();
    for (const auto& one : model.lstm()->named_parameters()) own[one.key()].copy_(one.value());
  }
  DistributedOptimizer<torch::optim::Adam> optimizer(model.parameters(),
                                                     torch::optim::AdamOptions(0.01));
  torch::optim::Adam local(whole.parameters(), torch::optim::AdamOptions(0.01));
  std::optional<LstmState> state, whole_state;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor words = torch::randint(kKinds, {5, 4}),
                     targets = torch::randint(kKinds, {5, 4});
    const dist_autograd::Context context;
    const at::Tensor loss = model.forward(words, targets, state);
    context.backward({loss});
    optimizer.step(context, {.max_norm = 0.1});

    const at::Tensor expected = whole.forward(words, targets, whole_state);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-5) << "step " << i;
    local.zero_grad();
    expected.backward();
    torch::nn::utils::clip_grad_norm_(whole.parameters(), 0.1);
    local.step();
  }
  EXPECT_TRUE(
      at::allclose(model.embedding().state().at("table.weight"), whole.table->weight, 1e-4, 1e-5));
  EXPECT_TRUE(
      at::allclose(model.decoder().state().at("scores.weight"), whole.scores->weight, 1e-4, 1e-5));
  auto own = whole.lstm->named_parameters();
  for (const auto& one : model.lstm()->named_parameters()) {
    EXPECT_TRUE(at::allclose(one.value(), own[one.key()], 1e-4, 1e-5)) << one.key();
  }
}

TEST_F(Rnn, WordsThatThereAreNotAreTheServersError) {
  RnnModel model("worker1", kShape);
  std::optional<LstmState> state;
  const at::Tensor words = torch::full({2, 2}, kKinds);
  const absl::Status status = testing::error_of([&] {
    model.forward(words, torch::zeros({2, 2}, at::kLong), state);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(status.message(), HasSubstr("index out of range"));
}

}  // namespace
}  // namespace weft::examples
