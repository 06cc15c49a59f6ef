#include "weft/worker/shared_empty.h"

#include <memory>
#include <optional>
#include <utility>

#include <ATen/Functions.h>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/session/call_scope.h"

namespace weft {
namespace {

std::optional<size_t> bytes_of(at::IntArrayRef sizes, size_t item) {
  int64_t bytes = static_cast<int64_t>(item);
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

at::Tensor shared_empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu() || options.layout() != at::kStrided || options.pinned_memory()) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("shared_empty: a tensor on ", options.device().str(),
                     " or in another layout than strided, or in pinned memory, is not shared")));
  }
  const std::optional<size_t> bytes = bytes_of(sizes, options.dtype().itemsize());
  if (!bytes.has_value()) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("shared_empty: sizes ", c10::str(sizes), " are not possible")));
  }
  const absl::StatusOr<std::shared_ptr<RpcRuntime>> worker = rpc_internal::current_runtime();
  if (!worker.ok()) throw RpcError(worker.status());
  std::optional<Payload> memory = (*worker)->shared_memory(*bytes);
  const at::TensorOptions type = at::TensorOptions().dtype(options.dtype());
  const at::Tensor tensor =
      memory.has_value()
          ? at::from_blob(
                memory->data, sizes, [owner = std::move(memory->owner)](void*) {}, type)
          : at::empty(sizes, type);
  return tensor.requires_grad_(options.requires_grad());
}

}  // namespace weft
