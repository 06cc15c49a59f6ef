#include "weft/pipeline/pipeline.h"

#include "weft/pipeline/internal/pipeline_controller.h"

namespace weft {

using pipeline_internal::PipelineController;

Pipeline::Pipeline(std::vector<PipelineStage> stages, PipelineOptions options)
    : controller_(std::make_unique<PipelineController>(std::move(stages), std::move(options))) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

PipelineResult Pipeline::step(const dist_autograd::Context& context,
                              const std::vector<at::Tensor>& inputs,
                              const std::vector<at::Tensor>& targets) {
  return controller_->step(context, inputs, targets);
}

std::vector<at::Tensor> Pipeline::forward(const std::vector<at::Tensor>& inputs) {
  return controller_->forward(inputs);
}

void Pipeline::train(bool on) const { controller_->train(on); }

std::vector<RRef<ParameterSet>> Pipeline::parameters() const { return controller_->parameters(); }

}  // namespace weft
