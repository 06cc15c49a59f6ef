#include "weft/rpc/typed_call.h"

#include "absl/strings/str_cat.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/session/call_scope.h"

namespace weft::rpc_internal {

void Outgoing::fail(absl::Status error) {
  if (status.ok()) status = with_ran(std::move(error), Ran::kNo);
}

Outgoing open_call(std::shared_ptr<RpcRuntime> from, WorkerId to, CallOptions options) {
  Outgoing call;
  call.runtime = std::move(from);
  call.request.to = to;
  call.request.options = options;
  if (call.runtime == nullptr) call.fail(absl::FailedPreconditionError("the worker has ended"));
  return call;
}

Outgoing open_call(const Destination& to) {
  std::shared_ptr<RpcRuntime> runtime = to.from();
  if (runtime == nullptr) {
    absl::StatusOr<std::shared_ptr<RpcRuntime>> current = current_runtime();
    if (!current.ok()) {
      Outgoing call;
      call.fail(std::move(current).status());
      return call;
    }
    runtime = *std::move(current);
  }
  Outgoing call = open_call(std::move(runtime), to.id(), to.options());
  if (!to.name().empty() || !to.id().valid()) {
    absl::StatusOr<WorkerId> id = call.runtime->resolve(to.name());
    if (id.ok()) {
      call.request.to = *id;
    } else {
      call.fail(std::move(id).status());
    }
  }
  return call;
}

void choose(Outgoing& call, const CallableKey& callable, std::string_view type) {
  if (!call.status.ok()) return;
  const absl::StatusOr<const FunctionEntry*> entry =
      call.runtime->registry().find_callable(callable, type);
  if (!entry.ok()) {
    call.fail(entry.status());
    return;
  }
  call.request.function = (*entry)->key();
  call.signature = &(*entry)->signature.text;
}

void choose(Outgoing& call, const FunctionKey& key, const Signature& signature) {
  call.request.function = key;
  call.signature = &signature.text;
}

absl::Status explain_failure(const ReplyContext& context, absl::Status status) {
  const absl::string_view function(context.function.data(), context.function.size());
  if (status.code() == absl::StatusCode::kUnimplemented && ran_of(status) == Ran::kNo &&
      context.signature != nullptr) {
    absl::Status longer(status.code(), absl::StrCat(status.message(), "; this program calls '",
                                                    function, "' as ", *context.signature));
    status.ForEachPayload(
        [&](absl::string_view url, const absl::Cord& payload) { longer.SetPayload(url, payload); });
    status = std::move(longer);
  }
  return add_hop(std::move(status),
                 absl::StrCat(context.runtime->name_of(context.to), "/", function));
}

absl::Status bad_result(const ReplyContext& context, const absl::Status& status) {
  return explain_failure(
      context,
      with_ran(absl::InternalError(absl::StrCat("the result cannot be read: ", status.message())),
               Ran::kYes));
}

void send_call(Outgoing call, async_internal::FutureCore& state,
               RpcRuntime::ReplyHandler on_reply) {
  const WorkerId to = call.request.to;
  const bool waited_for = call.request.waited_for;
  const CallId id = call.runtime->call(std::move(call.request), std::move(on_reply));
  // Weak, because a future must not keep a worker alive.
  state.set_on_cancel([runtime = std::weak_ptr<RpcRuntime>(call.runtime), to, id] {
    if (const auto alive = runtime.lock()) alive->cancel(to, id);
  });
  if (waited_for) call.runtime->read_reply(to, id, state);
}

}  // namespace weft::rpc_internal
