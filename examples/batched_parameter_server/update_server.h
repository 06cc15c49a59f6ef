// The server of a data-parallel job: takes gradients, gives the new model.
//
// Three modes, in which the trainers' updates meet in different ways:
//   batched  an update waits until every trainer has sent one; they are summed, the model makes one
//            step, and all get the same new model
//   locked   each update is a step of its own, one after the other
//   hogwild  each update is written into the parameters as it comes, beside others and beside
//            readers (Niu et al., "Hogwild!", 2011)
// A step is plain SGD: parameter - learning_rate * gradient. A batched step uses the sum of the
// gradients (the tutorial: their mean), so that it moves as far as its updates one by one would
// (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.1).
//
// Thread safety: all methods may be called from any thread.
// Errors: reach only the caller whose update is wrong: InvalidArgument (a wrong number of
// gradients; one whose shape, type or layout is not its parameter's, or that holds a number
// beyond 1,000 or none: it is named).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "weft/base/mutex.h"
#include "weft/examples/parameter_server/model.h"
#include "weft/rpc/batching/batching.h"
#include "weft/rpc/class.h"

namespace weft::examples {

// [n, 1, 28, 28] pictures to log-probabilities [n, 10]; 206,922 parameters.
struct PictureNet : torch::nn::Module {
  explicit PictureNet(uint64_t seed);
  at::Tensor forward(const at::Tensor& images) {
    return classifier_->forward(features_->forward(images));
  }
  // Makes these the parameters, without copying them.
  void use(const std::vector<at::Tensor>& model);

 private:
  std::shared_ptr<FeatureLayers> features_;
  std::shared_ptr<ClassifierLayers> classifier_;
};

enum class ServerMode { kBatched, kLocked, kHogwild };

class UpdateServer {
 public:
  using Tensors = std::vector<at::Tensor>;  // one for each parameter of PictureNet, in its order

  UpdateServer(ServerMode mode, size_t trainers, double learning_rate, uint64_t seed);

  // The model as it is now. Under hogwild others may be writing what is copied.
  Tensors fetch_model() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies the gradients and returns the new model; in mode batched, after everybody's. The
  // trainers' numbers put sums into an order, so that they are the same each time.
  Future<Tensors> update_and_fetch_model(Tensors gradients, int64_t trainer)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // A trainer has ended or died: batched updates do not wait for it any more.
  void one_trainer_less() ABSL_LOCKS_EXCLUDED(trainers_mutex_);
  struct Counts {
    uint64_t steps = 0, updates = 0;
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void check(const Tensors& gradients) const;
  // One step by the sum of `updates` updates.
  Tensors step(const Tensors& sum, size_t updates) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Tensors> step_together(const std::vector<Tensors>& gradients,
                                     const std::vector<int64_t>& trainers);

  const ServerMode mode_;
  const double learning_rate_;
  std::vector<std::string> names_;
  Tensors live_;  // the model at the beginning; under hogwild written in place, without the lock
  mutable Mutex mutex_;
  // Steps make new tensors: who was given the old ones may go on reading them.
  Tensors model_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  Mutex trainers_mutex_;  // held while the batcher's size is set, so that it only falls
  size_t trainers_ ABSL_GUARDED_BY(trainers_mutex_);
  Batcher<Tensors(Tensors, int64_t)> together_;  // the last member: it ends first
};

WEFT_REGISTER_CLASS(UpdateServer, &UpdateServer::fetch_model,
                    &UpdateServer::update_and_fetch_model);

}  // namespace weft::examples
