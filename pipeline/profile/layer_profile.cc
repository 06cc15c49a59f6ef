#include "weft/pipeline/profile/layer_profile.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include <ATen/ops/ones_like.h>

#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/dist_autograd/graph/engine_scope.h"
#include "weft/pipeline/profile/allocated_bytes.h"
#include "weft/pipeline/stage/stage_loss.h"
#include "weft/pipeline/stage/stage_run.h"
#include "weft/rpc/function.h"

namespace weft::pipeline_internal {
namespace {

// The first micro-batches fill caches and allocators, and the memory of one of them is counted.
constexpr int kWarmUps = 2;
constexpr int kLeastTimed = 3;
constexpr int kMost = 10'000;  // micro-batches of one call

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class LayerProfile {
 public:
  explicit LayerProfile(const ProfileRequest& request) : request_(request) {
    if (request.layers.empty()) throw RpcError(absl::InvalidArgumentError("there are no layers"));
    const LossFunction loss = loss_named(request.loss);
    for (size_t i = 0; i < request.layers.size(); ++i) {
      auto* const module = &request.layers[i].local_value();
      const RandomTurn turn;  // a replica's constructor draws, and puts the generator's state back
      held_.push_back(module->hold());
      StageRun::Forward forward = [module](std::vector<at::Tensor> inputs) {
        return module->forward(std::move(inputs));
      };
      if (i + 1 == request.layers.size()) {
        forward = with_loss(std::move(forward), loss, [this] { return request_.target; });
      }
      Layer& layer = layers_.emplace_back();
      layer.run.emplace(StageRun::Options{static_cast<int>(i), kMost, 0, std::move(forward)});
      for (const at::Tensor& parameter : module->set().live()) {
        if (parameter.requires_grad()) {
          layer.costs.gradient_bytes += static_cast<int64_t>(parameter.nbytes());
        }
      }
    }
  }

  absl::StatusOr<std::vector<StageCosts>> run(const CallContext& call) {
    for (int warm_up = 0; warm_up < kWarmUps; ++warm_up) {
      // The last one, because the first one allocates what stays.
      if (warm_up + 1 == kWarmUps) allocated_.emplace();
      WEFT_RETURN_IF_ERROR(do_micro_batch());
      allocated_.reset();
    }
    for (Layer& layer : layers_) layer.forward = layer.inputs = layer.weights = {};
    const double end = seconds_now() + request_.seconds;
    for (int timed = 0; timed < kLeastTimed || seconds_now() < end; ++timed) {
      if (call.cancelled()) return absl::CancelledError("nobody waits for the measurement");
      if (micro_batch_ == kMost) break;
      WEFT_RETURN_IF_ERROR(do_micro_batch());
    }
    std::vector<StageCosts> costs;
    for (Layer& layer : layers_) {
      layer.costs.forward = median(std::move(layer.forward));
      layer.costs.input_gradients = median(std::move(layer.inputs));
      layer.costs.weight_gradients = median(std::move(layer.weights));
      costs.push_back(layer.costs);
    }
    return costs;
  }

 private:
  struct Layer {
    std::optional<StageRun> run;
    StageCosts costs;
    std::vector<double> forward, inputs, weights;  // seconds of each micro-batch
  };

  // The time of one action, and the bytes that are left of it.
  class Measure {
   public:
    explicit Measure(const std::optional<AllocatedBytes>& allocated)
        : allocated_(allocated), bytes_(now()) {}
    double seconds() const { return seconds_now() - begin_; }
    int64_t bytes() const { return now() - bytes_; }

   private:
    int64_t now() const { return allocated_ ? allocated_->now() : 0; }
    const std::optional<AllocatedBytes>& allocated_;
    const int64_t bytes_;
    const double begin_ = seconds_now();
  };

  absl::Status do_micro_batch() {
    StageTensors values;
    for (const at::Tensor& input : request_.inputs) {
      values.values.push_back(input.detach().clone());
      values.requires_grad.push_back(false);
    }
    for (Layer& layer : layers_) {
      layer.costs.input_bytes = bytes_of(values.values);
      // A stage gets messages. A copy of what the layer before still holds is no cost of this one.
      for (at::Tensor& value : values.values) value = own_memory(std::move(value));
      const Measure measure(allocated_);
      WEFT_ASSIGN_OR_RETURN(values, layer.run->forward(micro_batch_, std::move(values)));
      layer.forward.push_back(measure.seconds());
      if (allocated_) layer.costs.kept_bytes = std::max(int64_t{0}, measure.bytes());
      layer.costs.output_bytes = bytes_of(values.values);
    }
    std::vector<at::Tensor> gradients = {at::ones_like(values.values.front())};
    values = {};
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      const int64_t taken = bytes_of(gradients);
      const Measure measure(allocated_);
      WEFT_ASSIGN_OR_RETURN(gradients,
                            layer->run->input_gradients(micro_batch_, std::move(gradients)));
      layer->inputs.push_back(measure.seconds());
      // Its inputs and the gradients that go in were not allocated in its actions, and those that
      // come out are not kept.
      if (allocated_) {
        const int64_t before = layer->costs.kept_bytes + layer->costs.input_bytes + taken;
        layer->costs.kept_for_weights =
            std::max(int64_t{0}, before + measure.bytes() - bytes_of(gradients));
      }
    }
    gradients.clear();
    for (Layer& layer : layers_) {
      const Measure measure(allocated_);
      WEFT_RETURN_IF_ERROR(layer.run->weight_gradients(micro_batch_));
      layer.weights.push_back(measure.seconds());
    }
    ++micro_batch_;
    return absl::OkStatus();
  }

  const ProfileRequest& request_;
  // The parameters that the graphs use. The context may end while a layer runs.
  std::vector<std::shared_ptr<void>> held_;
  std::deque<Layer> layers_;                 // a StageRun cannot be moved
  std::optional<AllocatedBytes> allocated_;  // only while memory is counted
  int micro_batch_ = 0;
};

}  // namespace

std::vector<StageCosts> profile_layers(CallContext& call, const ProfileRequest& request) {
  LayerProfile profile(request);
  absl::StatusOr<std::vector<StageCosts>> costs = absl::UnknownError("not measured");
  // As a worker of a pipeline runs its row.
  const absl::Status done = dist_autograd_internal::run_in_engine([&] {
    costs = profile.run(call);
    return costs.status();
  });
  if (!done.ok()) throw RpcError(done);
  return *std::move(costs);
}

WEFT_REGISTER_FUNCTION(profile_layers);

}  // namespace weft::pipeline_internal
