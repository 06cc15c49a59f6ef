#include "weft/dist_autograd/rref_backward.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/rpc/session/call_scope.h"
#include "weft/rpc/user_call.h"
#include "weft/rpc/verbs.h"

namespace weft::dist_autograd {
namespace {

// On the owner: starts the pass when the value is there.
Future<void> backward_here(const ContextId& context, const RRef<at::Tensor>& loss,
                           const BackwardOptions& options) {
  CallScope scope = CallScope::current();
  return loss.to_here_async().then(
      [scope = std::move(scope), context, options](const Future<at::Tensor>& value) mutable {
        const absl::StatusOr<at::Tensor>& root = value.result();
        if (!root.ok()) return Future<void>::ready(root.status());
        CallScopeGuard guard(std::move(scope));
        return backward_async(context, std::vector<at::Tensor>{*root}, options);
      });
}

}  // namespace

Future<void> backward_async(const ContextId& context, const RRef<at::Tensor>& loss,
                            BackwardOptions options) {
  if (absl::Status refused = dist_autograd_internal::check_options(options); !refused.ok()) {
    return Future<void>::ready(refused);
  }
  if (loss.is_owner()) return backward_here(context, loss, options);
  dist_autograd_internal::RRefPass pass;
  pass.context_creator = context.creator.bits();
  pass.context_number = context.number;
  pass.retain_graph = options.retain_graph;
  pass.mode = static_cast<uint8_t>(options.mode);
  if (options.timeout.is_set()) pass.timeout_ns = options.timeout.limit().count();
  // The call is made in the context, so that its reply carries the history. Then this worker knows
  // the commit before the caller reads gradients.
  absl::StatusOr<std::shared_ptr<RpcRuntime>> runtime = weft::rpc_internal::current_runtime();
  if (!runtime.ok()) return Future<void>::ready(std::move(runtime).status());
  CallScope scope = CallScope::current();
  scope.runtime = *std::move(runtime);
  scope.context = context;
  CallScopeGuard guard(std::move(scope));
  return rpc_async({loss.owner(), {.timeout = options.timeout}},
                   dist_autograd_internal::backward_at_owner, pass, loss);
}

void backward(const ContextId& context, const RRef<at::Tensor>& loss, BackwardOptions options) {
  backward_async(context, loss, options).wait();
}

void backward(const RRef<at::Tensor>& loss, bool retain_graph) {
  if (!loss.is_owner()) {
    throw RpcError(with_ran(absl::FailedPreconditionError(absl::StrCat(
                                "backward of ", loss.str(), " on a worker that is not its owner, '",
                                loss.owner_name(), "', needs a context")),
                            Ran::kNo));
  }
  const at::Tensor root = loss.local_value();
  const absl::Status status =
      rpc_internal::run_user_code([&] { root.backward({}, retain_graph, /*create_graph=*/false); });
  if (!status.ok()) throw RpcError(status);
}

}  // namespace weft::dist_autograd

namespace weft::dist_autograd_internal {

Future<void> backward_at_owner(RRefPass pass, RRef<at::Tensor> loss) {
  if (!loss.is_owner() || pass.mode > static_cast<uint8_t>(dist_autograd::Mode::kEager) ||
      pass.timeout_ns < 0) {
    return Future<void>::ready(with_ran(
        absl::InvalidArgumentError("a pass that this worker cannot run was asked for"), Ran::kNo));
  }
  dist_autograd::BackwardOptions options;
  options.retain_graph = pass.retain_graph;
  options.mode = static_cast<dist_autograd::Mode>(pass.mode);
  if (pass.timeout_ns > 0) options.timeout = Nanoseconds(pass.timeout_ns);
  const ContextId context{WorkerId::from_bits(pass.context_creator), pass.context_number};
  return dist_autograd::backward_async(context, loss, options);
}

}  // namespace weft::dist_autograd_internal
