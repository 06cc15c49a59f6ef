#include "weft/pipeline/stage/stage_loss.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/async/value_or_throw.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/function.h"

namespace weft::pipeline_internal {

std::string name_of_loss(LossFunction loss) {
  if (loss == nullptr) throw RpcError(absl::InvalidArgumentError("a pipeline needs a loss"));
  const auto runtime = value_or_throw(rpc_internal::current_runtime());
  return value_or_throw(runtime->registry().find_callable(
                            rpc_internal::function_key(rpc_internal::plain(loss)),
                            rpc_internal::type_spelling<LossFunction>()))
      ->name;
}

LossFunction loss_named(const std::string& name) {
  const auto runtime = value_or_throw(rpc_internal::current_runtime());
  const FunctionEntry* const entry = runtime->registry().find(hash64(name));
  // Only functions of exactly this type have this way to be invoked.
  if (entry == nullptr || entry->invoke != rpc_internal::callable_type(LossFunction()).invoke) {
    throw RpcError(absl::FailedPreconditionError(
        absl::StrCat("the loss ", name,
                     " is not registered on this worker as a function of two "
                     "const at::Tensor& that returns a tensor")));
  }
  // The caller names the function, so it must have the right to call it.
  const absl::Status allowed = entry->check_caller_here(*runtime);
  if (!allowed.ok()) throw RpcError(allowed);
  LossFunction function = nullptr;
  std::memcpy(&function, entry->callable.bytes.data(), sizeof(function));
  return function;
}

StageRun::Forward with_loss(StageRun::Forward forward, LossFunction loss,
                            std::function<at::Tensor()> target) {
  return [forward = std::move(forward), loss,
          target = std::move(target)](std::vector<at::Tensor> inputs) {
    const std::vector<at::Tensor> outputs = forward(std::move(inputs));
    if (outputs.empty()) throw RpcError(absl::InvalidArgumentError("forward returned no tensor"));
    at::Tensor value = loss(outputs.front(), own_memory(target()));
    if (!value.defined() || value.numel() != 1 || !at::isFloatingType(value.scalar_type())) {
      throw RpcError(absl::InvalidArgumentError("the loss is no scalar of a floating-point type"));
    }
    return std::vector<at::Tensor>{std::move(value)};
  };
}

}  // namespace weft::pipeline_internal
