// A trainer: a copy of the model, a shard of Fashion-MNIST, and a loop that sends gradients to the
// server and continues with the model that it returns.
//
// Thread safety: one `train` at a time.
// Errors: the constructor and train throw RpcError: errors of the data (fashion_mnist.h), options
// under which a trainer gets no pictures (InvalidArgument), errors of calls to the server.
#pragma once

#include <cstdint>
#include <iostream>
#include <string>
#include <tuple>
#include <utility>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/ddp/distributed_sampler.h"
#include "weft/examples/batched_parameter_server/update_server.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/rref/rref.h"

namespace weft::examples {

struct Job {
  std::string data = kFashionMnistFolder;
  int64_t pictures = 0;  // of the training half; 0: all of them
  int64_t epochs = 1;
  int64_t batch = 32;
  double learning_rate = 0.05;
  uint64_t seed = 1;
  int64_t trainers = 1;
  int64_t seconds = 600;  // of one run; after that the server drops a trainer
  friend auto weft_fields(Job& job) {
    return std::tie(job.data, job.pictures, job.epochs, job.batch, job.learning_rate, job.seed,
                    job.trainers, job.seconds);
  }
};

class DataParallelTrainer {
 public:
  DataParallelTrainer(Job job, int64_t shard)
      : job_(std::move(job)),
        pictures_(must(load_fashion_mnist_part(job_.data, /*train=*/true, job_.pictures))),
        shard_{.num_replicas = job_.trainers, .rank = shard, .seed = job_.seed, .drop_last = true} {
    if (pictures_.size() >= job_.trainers) return;
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat(pictures_.size(), " pictures are too few for ", job_.trainers, " trainers")));
  }

  int64_t pictures() const { return pictures_.size(); }
  // Returns the number of pictures that it has trained on. If the server stops the job, it returns
  // after its step. The first trainer prints a line for each epoch if there are several.
  int64_t train(const RRef<UpdateServer>& server) {
    DistributedSampler sampler(static_cast<size_t>(pictures_.size()), shard_);
    PictureNet net(job_.seed);
    net.use(server.rpc_sync(&UpdateServer::fetch_model));
    int64_t learned = 0;
    for (int64_t epoch = 0; epoch < job_.epochs; ++epoch) {
      sampler.set_epoch(static_cast<uint64_t>(epoch));
      while (const auto indices = sampler.next(static_cast<size_t>(job_.batch))) {
        const Batch batch = make_batch(pictures_, *indices);
        const at::Tensor loss = torch::nll_loss(net.forward(batch.images), batch.labels);
        const UpdateServer::Tensors model =
            server.rpc_sync(&UpdateServer::update_and_fetch_model,
                            torch::autograd::grad({loss}, net.parameters()), shard_.rank);
        if (model.empty()) return learned;  // the job stops
        net.use(model);
        learned += batch.labels.size(0);
      }
      if (shard_.rank == 0 && job_.epochs > 1) {
        std::cout << absl::StrCat("epoch ", epoch + 1, " of ", job_.epochs, "\n") << std::flush;
      }
    }
    return learned;
  }

 private:
  const Job job_;
  const LabelledImages pictures_;
  const DistributedSamplerOptions shard_;
};
WEFT_REGISTER_CLASS(DataParallelTrainer, weft::constructor<Job, int64_t>(),
                    &DataParallelTrainer::pictures, &DataParallelTrainer::train);

}  // namespace weft::examples
