// The server of a data-parallel job: it takes gradients and returns the new model.
//
// The mode decides how the updates of several trainers are combined:
// - `batched`: An update waits until every trainer has sent one. The model makes one step by their
//   sum, and all trainers get the same new model.
// - `locked`: Each update is a step of its own, one after the other.
// - `hogwild`: Each update is written into the parameters as it arrives, while other threads write
//   and read them (Niu et al., "Hogwild!", 2011).
//
// A step is plain SGD: parameter - learning_rate * gradient. A batched step uses the sum of the
// gradients (the tutorial: their mean). So it moves as far as its updates one by one would (Goyal
// et al., "Accurate, Large Minibatch SGD", 2017, section 2.1).
//
// After SIGTERM (worker/stop_request.h) the server makes no further step. It answers an update with
// no model, and the trainer then returns.
//
// Thread safety: all methods may be called from any thread.
// Errors: InvalidArgument, only for the caller whose update is wrong. The number of gradients is
// wrong, or one has not the shape, type or layout of its parameter, or it holds NaN or a number
// beyond 1,000. The last two name the parameter.
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
  // Makes these tensors the parameters, without copying them.
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

  // Returns the current model. In mode hogwild other threads may write it while it is copied.
  Tensors fetch_model() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Applies the gradients and returns the new model, or no tensors if the process was asked to
  // stop. In mode batched the update waits for all trainers. Sums are taken in the order of the
  // trainers' numbers, so they are the same each time.
  Future<Tensors> update_and_fetch_model(Tensors gradients, int64_t trainer)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Call this once for each trainer that finished or died. Batched updates then wait for one less.
  void one_trainer_less() ABSL_LOCKS_EXCLUDED(trainers_mutex_);
  struct Counts {
    uint64_t steps = 0, updates = 0;
    bool stopped = false;  // an update was not taken, because the process was asked to stop
  };
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void check(const Tensors& gradients) const;
  // Makes one step by the sum of `updates` updates.
  Tensors step(const Tensors& sum, size_t updates) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Tensors> step_together(const std::vector<Tensors>& gradients,
                                     const std::vector<int64_t>& trainers);

  const ServerMode mode_;
  const double learning_rate_;
  std::vector<std::string> names_;
  Tensors live_;  // the first model; in mode hogwild written in place, without the lock
  mutable Mutex mutex_;
  // Each step makes new tensors, so a caller may keep reading those that it was given.
  Tensors model_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  Mutex trainers_mutex_;  // held while the batcher's size is set, so that it only falls
  size_t trainers_ ABSL_GUARDED_BY(trainers_mutex_);
  Batcher<Tensors(Tensors, int64_t)> together_;  // the last member: it is destroyed first
};

WEFT_REGISTER_CLASS(UpdateServer, &UpdateServer::fetch_model,
                    &UpdateServer::update_and_fetch_model);

}  // namespace weft::examples
