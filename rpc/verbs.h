// rpc_sync and rpc_async call a function on another worker like a local one.
//
// The parameter types come from the function, so arguments convert as in a direct call. Braces,
// literals and temporaries work; arguments for value and && parameters are moved. The function is a
// registered one of this program (function.h), or a Function that is known by its name. Arguments
// are encoded before rpc_async returns. CallOptions::snapshot has the rule for large tensors.
//
// Thread safety: may be called from any thread.
// Blocking: rpc_sync waits for the reply. If too many calls wait for credit, it first waits for its
// turn. rpc_async never waits; in that case its future fails (ResourceExhausted, not executed).
// Errors: rpc_sync and wait() on the future throw RpcError: the exception of the function, or the
// reason why the call failed (docs/errors.md). A call that cannot work does not compile, and the
// compiler's error gives the reason.
#pragma once

#include <type_traits>
#include <utility>

#include "weft/rpc/explain.h"
#include "weft/rpc/typed_call.h"

namespace weft {
namespace rpc_internal {

template <class R, class... P, class Callee>
Future<result_t<R>> async_call(const Destination& to, const Callee& function, bool waited_for,
                               std::type_identity_t<P>&&... argument) {
  if constexpr (check::kCallable<R, P...>) {
    Outgoing call = open_call(to);
    call.request.waited_for = waited_for;
    choose(call, function);
    put_arguments<P...>(call, std::forward<P>(argument)...);
    return start_call<result_t<R>>(std::move(call));
  } else {
    check::explain_callable<R, P...>();
    return {};
  }
}

}  // namespace rpc_internal

template <class R, class... P>
Future<result_t<R>> rpc_async(const Destination& to, R (*function)(P...),
                              std::type_identity_t<P>... argument) {
  return rpc_internal::async_call<R, P...>(to, function, false, std::forward<P>(argument)...);
}
template <class R, class... P>
Future<result_t<R>> rpc_async(const Destination& to, R (*function)(CallContext&, P...),
                              std::type_identity_t<P>... argument) {
  return rpc_internal::async_call<R, P...>(to, function, false, std::forward<P>(argument)...);
}
template <class R, class... P>
Future<result_t<R>> rpc_async(const Destination& to, const Function<R(P...)>& function,
                              std::type_identity_t<P>... argument) {
  return rpc_internal::async_call<R, P...>(to, function, false, std::forward<P>(argument)...);
}

template <class R, class... P>
result_t<R> rpc_sync(const Destination& to, R (*function)(P...),
                     std::type_identity_t<P>... argument) {
  return rpc_internal::take(
      rpc_internal::async_call<R, P...>(to, function, true, std::forward<P>(argument)...));
}
template <class R, class... P>
result_t<R> rpc_sync(const Destination& to, R (*function)(CallContext&, P...),
                     std::type_identity_t<P>... argument) {
  return rpc_internal::take(
      rpc_internal::async_call<R, P...>(to, function, true, std::forward<P>(argument)...));
}
template <class R, class... P>
result_t<R> rpc_sync(const Destination& to, const Function<R(P...)>& function,
                     std::type_identity_t<P>... argument) {
  return rpc_internal::take(
      rpc_internal::async_call<R, P...>(to, function, true, std::forward<P>(argument)...));
}

// The compiler chooses the overloads below only if none above fits. They only explain why.
template <class F, class... Argument>
requires(!rpc_internal::check::kAccepts<F, Argument...>) Explained
    rpc_async(const Destination&, F&&, Argument&&...) {
  rpc_internal::check::explain_call<F, Argument...>();
  return {};
}
template <class F, class... Argument>
requires(!rpc_internal::check::kAccepts<F, Argument...>) Explained
    rpc_sync(const Destination&, F&&, Argument&&...) {
  rpc_internal::check::explain_call<F, Argument...>();
  return {};
}
Explained rpc_async(const Destination&, overloaded_function__choose_one_with_weft_overload,
                    ...) = delete;
Explained rpc_sync(const Destination&, overloaded_function__choose_one_with_weft_overload,
                   ...) = delete;

}  // namespace weft
