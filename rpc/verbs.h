// rpc_sync and rpc_async: call a function on another worker as if it were here.
//
// The parameters come from the function, so arguments convert as in a direct call: braces,
// literals and temporaries work; values and && parameters are given away. The function is one of
// this program's (registered, see function.h) or a Function known by name. Arguments are encoded
// before rpc_async returns; CallOptions::snapshot says what holds for large tensors.
//
// Thread safety: may be called from any thread.
// Blocking: rpc_sync waits for the reply, and first for its turn if too many calls wait for credit;
// rpc_async never waits: then its future fails (ResourceExhausted, not executed).
// Errors: RpcError, thrown by rpc_sync and by wait() on the future: what the function threw, or why
// the call failed (docs/errors.md). Calls that cannot work do not compile, and say why.
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

// What follows is chosen only when nothing above fits, and only to say why.
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
