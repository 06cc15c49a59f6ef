#include "weft/ddp/batch_norm/internal/sync_batch_norm_function.h"

#include <utility>
#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include "weft/comm/exchange_device.h"

namespace weft::ddp_internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The type for computing: fp32 for fp16 and bf16.
at::ScalarType math_type(const at::Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

// All dimensions except the channels.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// Reshapes one value for each channel, so that it broadcasts over `input`.
at::Tensor spread(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  return values.to(math_type(input)).view(shape);
}

at::Tensor to_math_type(const at::Tensor& values, const at::Tensor& input) {
  return values.to(math_type(input));
}

// C means, C sums of squared deviations, one count. All are zero if the input is empty.
at::Tensor local_statistics(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const auto in_double = input.options().dtype(at::kDouble).memory_format(std::nullopt);
  if (input.numel() == 0) return at::zeros({2 * channels + 1}, in_double);
  const double count = static_cast<double>(input.numel() / channels);
  const auto [var, mean] =
      at::var_mean(input.to(math_type(input)), at::OptionalIntArrayRef(reduced_dims(input)),
                   /*correction=*/at::Scalar(0));
  return at::cat(
      {mean.to(at::kDouble), var.to(at::kDouble) * count, at::full({1}, count, in_double)});
}

// An autograd context can hold the group only inside an IValue.
struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(std::shared_ptr<ProcessGroup> group) : group(std::move(group)) {}
  const std::shared_ptr<ProcessGroup> group;
};

// These gradients may be used but not differentiated, because they know only this rank's part of
// the statistics.
variable_list differentiable_once(variable_list gradients) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = gradient.detach().set_requires_grad(true);
  }
  torch::autograd::DelayedError error("SyncBatchNorm cannot be differentiated twice",
                                      static_cast<int64_t>(gradients.size()));
  return error.apply(std::move(gradients));
}

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& invstd,
                            const at::Tensor& count, const at::Tensor& var, double eps,
                            const std::shared_ptr<ProcessGroup>& group) {
    context->save_for_backward({input, weight, mean, invstd, count});
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    if (input.numel() == 0) return at::empty_like(input);
    // The kernel of eval mode: it takes the given statistics.
    return std::get<0>(at::native_batch_norm(
        input, to_math_type(weight, input), to_math_type(bias, input), to_math_type(mean, input),
        to_math_type(var, input), /*training=*/false, /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const bool differentiated = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    variable_list gradients = backward_of(context, outputs[0]);
    return differentiated ? differentiable_once(std::move(gradients)) : gradients;
  }

 private:
  static variable_list backward_of(AutogradContext* context, const at::Tensor& output_gradient) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &invstd = saved[3],
                     &count = saved[4];
    const auto dims = reduced_dims(input);
    const at::Tensor dy = output_gradient.to(math_type(input));
    const at::Tensor deviation = input.to(math_type(input)) - spread(mean, input);
    const at::Tensor sum_dy = dy.sum(dims).to(at::kDouble);
    const at::Tensor sum_dy_deviation = (dy * deviation).sum(dims).to(at::kDouble);

    variable_list gradients(9);
    if (context->needs_input_grad(1)) {
      gradients[1] = (sum_dy_deviation * invstd).to(weight.scalar_type());
    }
    if (context->needs_input_grad(2))
      gradients[2] = sum_dy;  // cast to the type of bias by autograd
    if (!context->needs_input_grad(0)) return gradients;

    const auto holder =
        c10::static_intrusive_pointer_cast<GroupHolder>(context->saved_data["group"].toCapsule());
    ProcessGroup& group = *holder->group;
    at::Tensor sums = at::cat({sum_dy, sum_dy_deviation})
                          .to(comm_internal::exchange_device(group, input.device()));
    group.all_reduce(sums);
    const std::vector<at::Tensor> means = (sums.to(input.device()) / count).chunk(2);
    gradients[0] = (dy - spread(means[0], input))
                       .addcmul_(deviation, spread(means[1] * invstd * invstd, input), -1)
                       .mul_(spread(weight.to(at::kDouble) * invstd, input))
                       .to(input.scalar_type());
    return gradients;
  }
};

}  // namespace

at::Tensor BatchStatistics::var() const { return m2 / count.clamp_min(1); }
at::Tensor BatchStatistics::unbiased_var() const { return m2 / (count - 1).clamp_min(1); }

BatchStatistics gather_statistics(const at::Tensor& input, ProcessGroup& group) {
  const at::Tensor mine =
      local_statistics(input).to(comm_internal::exchange_device(group, input.device()));
  const at::Tensor all = at::stack(group.all_gather(mine)).to(input.device());
  const int64_t channels = input.size(1);
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor m2s = all.narrow(1, channels, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  // Chan's formula for many parts at once. It adds the deviations from the parts' means, and the
  // deviations of those means from the common mean. So no large number is subtracted from another
  // large one.
  BatchStatistics statistics;
  statistics.count = counts.sum();
  statistics.mean = (means * counts).sum(0) / statistics.count.clamp_min(1);
  statistics.m2 = (m2s + counts * (means - statistics.mean).square()).sum(0);
  return statistics;
}

at::Tensor sync_batch_norm(const at::Tensor& input, const Affine& affine,
                           const BatchStatistics& statistics,
                           const std::shared_ptr<ProcessGroup>& group) {
  const at::Tensor var = statistics.var();
  // An autograd node takes no undefined tensors.
  const bool plain = !affine.weight.defined();
  const at::Tensor weight = plain ? at::ones_like(statistics.mean) : affine.weight;
  const at::Tensor bias = plain ? at::zeros_like(statistics.mean) : affine.bias;
  return SyncBatchNormFunction::apply(input, weight, bias, statistics.mean,
                                      (var + affine.eps).rsqrt(), statistics.count, var, affine.eps,
                                      group);
}

}  // namespace weft::ddp_internal
