// A trainer: a copy of the model, a shard of Fashion-MNIST, and a loop that sends gradients to the
// server and continues with the model that it returns.
//
// Thread safety: one `train` at a time.
// Errors: the constructor and train throw RpcError: errors of the data (fashion_mnist.h), options
// under which a trainer gets no pictures (InvalidArgument), errors of calls to the server.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include <torch/torch.h>

#include "weft/examples/batched_parameter_server/update_server.h"
#include "weft/examples/support/fashion_mnist.h"
#include "weft/examples/support/must.h"
#include "weft/examples/support/sharded_sampler.h"
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
        share_{.size = pictures_.size(),
               .shard = shard,
               .shards = job_.trainers,
               .batch = job_.batch,
               .seed = job_.seed} {
    must(share_.validate());
  }

  int64_t pictures() const { return pictures_.size(); }
  // Returns the number of pictures that it has trained on.
  int64_t train(const RRef<UpdateServer>& server) {
    ShardedSampler sampler(share_);
    PictureNet net(job_.seed);
    net.use(server.rpc_sync(&UpdateServer::fetch_model));
    int64_t learned = 0;
    for (int64_t i = 0; i < job_.epochs * sampler.steps_per_epoch(); ++i) {
      const Batch batch = make_batch(pictures_, sampler.next());
      const at::Tensor loss = torch::nll_loss(net.forward(batch.images), batch.labels);
      net.use(server.rpc_sync(&UpdateServer::update_and_fetch_model,
                              torch::autograd::grad({loss}, net.parameters()), share_.shard));
      learned += batch.labels.size(0);
    }
    return learned;
  }

 private:
  const Job job_;
  const LabelledImages pictures_;
  const ShardedSampler::Options share_;
};
WEFT_REGISTER_CLASS(DataParallelTrainer, weft::constructor<Job, int64_t>(),
                    &DataParallelTrainer::pictures, &DataParallelTrainer::train);

}  // namespace weft::examples
