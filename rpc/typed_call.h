// The steps of each verb: open a call, choose the function, add the arguments, start the call.
//
// An Outgoing holds the first error of the steps. If there is one, `start_call` sends nothing and
// returns a failed future (ran = no). rref/rref.h sets `request.target` and `request.creation`
// between the steps.
//
// Thread safety: only one thread may use an Outgoing.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "weft/async/future.h"
#include "weft/rpc/class.h"
#include "weft/rpc/destination.h"
#include "weft/rpc/runtime.h"
#include "weft/rpc/user_call.h"

namespace weft::rpc_internal {

struct Outgoing {
  std::shared_ptr<RpcRuntime> runtime;  // null only if status is an error
  RpcRuntime::CallRequest request;
  const std::string* signature = nullptr;  // owned by the registry, or static
  absl::Status status;

  void fail(absl::Status error);
};

// Finds the calling worker and the called worker.
Outgoing open_call(const Destination& to);
Outgoing open_call(std::shared_ptr<RpcRuntime> from, WorkerId to, CallOptions options);

// Chooses a function or method of this program with the C++ type `type`. It must be in the registry
// of the calling worker.
void choose(Outgoing& call, const CallableKey& callable, std::string_view type);
// Chooses a function that is known by its name.
void choose(Outgoing& call, const FunctionKey& key, const Signature& signature);
template <class R, class... P>
void choose(Outgoing& call, const Function<R(P...)>& function) {
  choose(call, function.key(), function.signature());
}
template <class R, class... P>
void choose(Outgoing& call, R (*function)(P...)) {
  choose(call, function_key(plain(function)), type_spelling<R (*)(P...)>());
}
// Chooses a method of T in any of the six shapes (class.h).
template <class T, class Pointer>
void choose_method(Outgoing& call, Pointer method) {
  choose(call, method_key<T>(method), type_spelling<Pointer>());
}
template <class T, class... P>
void choose_constructor(Outgoing& call, Constructor<P...>) {
  choose(call, constructor_key<T, P...>(), constructor_signature<T, P...>());
}

// Encodes the arguments as parameters P.... A user's codec may throw; that fails the call.
template <class... P>
void put_arguments(Outgoing& call, std::type_identity_t<P>&&... argument) {
  if (!call.status.ok()) return;
  Writer& writer = call.request.arguments;
  absl::Status status =
      run_user_code([&] { (Parameter<P>::encode(writer, std::forward<P>(argument)), ...); });
  if (status.ok()) status = writer.status();
  if (!status.ok()) call.fail(std::move(status));
}
// The same for a constructor that was chosen by overload resolution.
template <class... P>
void put_constructor_arguments(Outgoing& call, Constructor<P...>,
                               std::type_identity_t<P>... argument) {
  put_arguments<P...>(call, std::forward<P>(argument)...);
}

// Facts for the error text of a failed reply. The pointers are valid while a reply is read, because
// the runtime delivers it.
struct ReplyContext {
  const RpcRuntime* runtime;
  WorkerId to;
  std::string_view function;
  const std::string* signature;
};

// Adds the hop to the error trail. If the callee refused the function or its signature, it also
// adds the signature that the caller uses.
absl::Status explain_failure(const ReplyContext& context, absl::Status status);
absl::Status bad_result(const ReplyContext& context, const absl::Status& status);

template <class R>
absl::StatusOr<async_internal::Stored<R>> decode_reply(const ReplyContext& context,
                                                       absl::StatusOr<Reader> reply) {
  if (!reply.ok()) return explain_failure(context, std::move(reply).status());
  if constexpr (std::is_void_v<R>) {
    return Unit{};
  } else {
    std::optional<R> value;
    absl::Status status = run_user_code([&] { value.emplace(Codec<R>::decode(*reply)); });
    if (status.ok()) status = reply->finish();
    if (!status.ok()) return bad_result(context, status);
    return *std::move(value);
  }
}

// Sends the call and makes `state` able to cancel it. If the call is `waited_for`, this thread may
// read the reply itself. Then `state` may be complete on return.
void send_call(Outgoing call, async_internal::FutureCore& state, RpcRuntime::ReplyHandler on_reply);

// Sends the call. The thread that receives the reply decodes it and completes the future.
template <class R>
Future<R> start_call(Outgoing call) {
  Promise<R> promise(call.runtime != nullptr ? &call.runtime->executor() : Executor::current());
  Future<R> future = promise.future();
  if (!call.status.ok()) {
    promise.set_error(std::move(call.status));
    return future;
  }
  const ReplyContext context{call.runtime.get(), call.request.to, call.request.function.name,
                             call.signature};
  send_call(std::move(call), *future.state(),
            [promise = std::move(promise), context](absl::StatusOr<Reader> reply) mutable {
              promise.set(decode_reply<R>(context, std::move(reply)));
            });
  return future;
}

// Waits for a future that only this thread reads, and moves its value out.
template <class R>
R take(Future<R> future) {
  const absl::StatusOr<async_internal::Stored<R>>& result = future.result();
  if (!result.ok()) throw RpcError(result.status());
  if constexpr (!std::is_void_v<R>) return *std::move(future.state()->result());
}

}  // namespace weft::rpc_internal
