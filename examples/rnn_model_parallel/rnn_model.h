// A language model in two halves: embedding and decoder live on a server, the LSTM with its
// trainer.
//
// Sizes: [steps, columns] are `columns` texts that are read side by side, `steps` tokens of each.
//
// Thread safety: an RnnModel belongs to one thread.
// Blocking: forward, train.
// Errors: RpcError of the server's forward, and errors of PyTorch's checks for wrong sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "weft/dist_optim/hosted_module.h"
#include "weft/dist_optim/parameter_set.h"

namespace weft::examples {

struct RnnShape {
  int64_t vocabulary = 0;  // the number of different tokens
  int64_t embedding = 128;
  int64_t hidden = 256;
  double dropout = 0.2;
};

// On the server: maps [steps, columns] words to [steps, columns, width].
class EmbeddingTable : public torch::nn::Module {
 public:
  EmbeddingTable(int64_t vocabulary, int64_t width, double dropout) {
    table_ = register_module("table", torch::nn::Embedding(vocabulary, width));
    dropout_ = register_module("dropout", torch::nn::Dropout(dropout));
    torch::nn::init::uniform_(table_->weight, -0.1, 0.1);
  }
  at::Tensor forward(const at::Tensor& words) { return dropout_(table_(words)); }

 private:
  torch::nn::Embedding table_ = nullptr;
  torch::nn::Dropout dropout_ = nullptr;
};
WEFT_REGISTER_MODULE(EmbeddingTable, int64_t, int64_t, double);

// On the server: maps [steps, columns, hidden] and the words that follow to the mean loss.
class Decoder : public torch::nn::Module {
 public:
  Decoder(int64_t hidden, int64_t vocabulary, double dropout) {
    scores_ = register_module("scores", torch::nn::Linear(hidden, vocabulary));
    dropout_ = register_module("dropout", torch::nn::Dropout(dropout));
    torch::nn::init::uniform_(scores_->weight, -0.1, 0.1);
    torch::nn::init::zeros_(scores_->bias);
  }
  at::Tensor forward(const at::Tensor& outputs, const at::Tensor& targets) {
    return torch::nn::functional::cross_entropy(scores_(dropout_(outputs.flatten(0, 1))),
                                                targets.flatten());
  }

 private:
  torch::nn::Linear scores_ = nullptr;
  torch::nn::Dropout dropout_ = nullptr;
};
WEFT_REGISTER_MODULE(Decoder, int64_t, int64_t, double);

using LstmState = std::tuple<at::Tensor, at::Tensor>;

// The whole model, as its trainer sees it.
class RnnModel {
 public:
  RnnModel(const std::string& server, const RnnShape& shape)
      : embedding_(server, shape.vocabulary, shape.embedding, shape.dropout),
        decoder_(server, shape.hidden, shape.vocabulary, shape.dropout),
        lstm_(torch::nn::LSTMOptions(shape.embedding, shape.hidden)),
        own_(make_rref(ParameterSet::of(*lstm_))) {}

  // Returns the mean loss of [steps, columns] words and the words that follow. `state` is replaced
  // by the state for the next words.
  at::Tensor forward(const at::Tensor& words, const at::Tensor& targets,
                     std::optional<LstmState>& state) {
    auto [outputs, next] = lstm_->forward(embedding_.forward(words), state);
    state = std::tuple(std::get<0>(next).detach(), std::get<1>(next).detach());
    return decoder_.forward(outputs, targets);
  }
  void train(bool on) const {
    embedding_.train(on);
    decoder_.train(on);
  }
  const HostedModule<EmbeddingTable>& embedding() const { return embedding_; }
  const HostedModule<Decoder>& decoder() const { return decoder_; }
  const torch::nn::LSTM& lstm() const { return lstm_; }
  // The parameters of both workers.
  std::vector<RRef<ParameterSet>> parameters() const {
    return {embedding_.parameters(), decoder_.parameters(), own_};
  }

 private:
  HostedModule<EmbeddingTable> embedding_;
  HostedModule<Decoder> decoder_;
  torch::nn::LSTM lstm_;
  RRef<ParameterSet> own_;  // the parameters of the LSTM
};

}  // namespace weft::examples
