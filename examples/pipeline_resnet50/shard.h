// One pipeline stage: some layers of ResNet50 on a worker, and a record of when they worked.
//
// Thread safety: all methods may be called from any thread; one forward runs at a time.
// Errors: LibTorch's, for inputs that do not fit, and those of fetching `x`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "weft/async/future.h"
#include "weft/base/mutex.h"
#include "weft/checkpoint/state_file.h"
#include "weft/dist_optim/parameter_set.h"
#include "weft/examples/pipeline_resnet50/resnet50.h"
#include "weft/examples/pipeline_resnet50/time_line.h"
#include "weft/rpc/class.h"
#include "weft/rref/rref.h"

namespace weft::examples {

class ResNetShard : public std::enable_shared_from_this<ResNetShard> {
 public:
  ResNetShard(int64_t first, int64_t last, int64_t classes, uint64_t seed);

  // Fetches the input from its owner and runs the layers. Calls run one at a time, in the order in
  // which they begin, and block no thread while they wait. `micro_batch` is its number in the time
  // line.
  Future<at::Tensor> forward(const RRef<at::Tensor>& x, int64_t micro_batch)
      ABSL_LOCKS_EXCLUDED(order_mutex_);

  // For DistributedOptimizer. forward uses the live leaves, because there is only one trainer.
  std::shared_ptr<ParameterSet> parameters() const { return set_; }
  void train(bool on) ABSL_LOCKS_EXCLUDED(mutex_);
  // Parameters by name. gradients() returns the gradients in the current context.
  TensorMap state() const;
  TensorMap gradients() const;

  // Starts or stops recording. Returns what was recorded since the last call. A backward span runs
  // from the first gradient that arrives to the end of the last node.
  std::vector<Span> trace(bool on) ABSL_LOCKS_EXCLUDED(mutex_);
  // Repeats forward and backward of this input for at least `seconds` and at least three times,
  // alone on this worker. Returns the medians. It changes running statistics but no weights.
  StageTime measure(const at::Tensor& x, double seconds) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the seconds of a forward and a backward of each layer.
  std::vector<double> profile(const at::Tensor& x, double seconds) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  at::Tensor run(const at::Tensor& x, int64_t micro_batch) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex order_mutex_;
  Future<void> last_ ABSL_GUARDED_BY(order_mutex_) =
      Future<void>::ready(Unit{});  // completes with the last forward, good or bad
  Mutex mutex_;                     // held while layers compute
  ResNet50Part layers_ ABSL_GUARDED_BY(mutex_);
  const bool first_;                         // its input is pictures
  const std::shared_ptr<ParameterSet> set_;  // shared with the optimizer's shard
  bool tracing_ ABSL_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<TimeLine> times_;  // shared with the graphs that write into it
};

WEFT_REGISTER_CLASS(ResNetShard, weft::constructor<int64_t, int64_t, int64_t, uint64_t>(),
                    &ResNetShard::forward, &ResNetShard::parameters, &ResNetShard::train,
                    &ResNetShard::state, &ResNetShard::gradients, &ResNetShard::trace,
                    &ResNetShard::measure, &ResNetShard::profile);

}  // namespace weft::examples
