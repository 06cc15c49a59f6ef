// Explains why a call does not compile, if no verb accepts the function with these arguments.
#pragma once

#include <tuple>
#include <type_traits>

#include "weft/rpc/check.h"
#include "weft/rpc/class.h"

namespace weft::rpc_internal::check {

// The parameter types of a callee. parameters_of has no overload for types that cannot be called.
template <class... P>
struct Parameters {};

template <class R, class... P>
Parameters<P...> parameters_of(R (*)(P...));
template <class R, class... P>
Parameters<P...> parameters_of(R (*)(CallContext&, P...));
template <class R, class... P>
Parameters<P...> parameters_of(const Function<R(P...)>&);

template <class F>
concept Callee = requires(const std::decay_t<F>& callee) {
  parameters_of(callee);
};

template <class Wanted, class... Argument>
inline constexpr bool kFit = false;
template <class... P, class... Argument>
requires(sizeof...(P) ==
         sizeof...(Argument)) inline constexpr bool kFit<Parameters<P...>, Argument...> =
    (std::is_convertible_v<Argument, P> && ...);

template <class F, class... Argument>
inline constexpr bool kAccepts = false;
template <Callee F, class... Argument>
inline constexpr bool kAccepts<F, Argument...> =
    kFit<decltype(parameters_of(std::declval<const std::decay_t<F>&>())), Argument...>;

template <int number, class From, class To>
constexpr void explain_conversion() {
  if constexpr (!kSendableParameter<To>) {
    explain_parameter<number, To>();
  } else if constexpr (!std::is_convertible_v<From, To>) {
    [[maybe_unused]] DoesNotConvert<number, From, To> mistake;
  }
}

template <class... P, class... Argument>
constexpr void explain_arguments(Parameters<P...>, std::tuple<Argument...>*) {
  if constexpr (!kParametersFit<P...>) {
    explain_parameters<P...>();
  } else if constexpr (sizeof...(P) != sizeof...(Argument)) {
    [[maybe_unused]] WrongNumberOfArguments<sizeof...(Argument), sizeof...(P)> mistake;
  } else {
    [&]<size_t... i>(std::index_sequence<i...>) {
      (explain_conversion<static_cast<int>(i) + 1, Argument, P>(), ...);
    }
    (std::index_sequence_for<P...>());
  }
}

// For rpc_sync, rpc_async and remote on a function.
template <class F, class... Argument>
constexpr void explain_call() {
  if constexpr (std::is_member_pointer_v<std::decay_t<F>>) {
    [[maybe_unused]] MethodNeedsAnRRef<F> mistake;
  } else if constexpr (!Callee<F>) {
    [[maybe_unused]] NotAFunction<F> mistake;
  } else {
    explain_arguments(decltype(parameters_of(std::declval<const std::decay_t<F>&>()))(),
                      static_cast<std::tuple<Argument&&...>*>(nullptr));
  }
}

// The parameter types of a method, without its object.
template <class Object, class R, class C, class... P>
Parameters<P...> method_parameters(R (C::*)(P...));
template <class Object, class R, class C, class... P>
Parameters<P...> method_parameters(R (C::*)(P...) const);
template <class Object, class R, class C, class... P>
Parameters<P...> method_parameters(R (C::*)(CallContext&, P...));
template <class Object, class R, class C, class... P>
Parameters<P...> method_parameters(R (C::*)(CallContext&, P...) const);
template <class Object, class R, class... P>
Parameters<P...> method_parameters(R (*)(Object&, P...));
template <class Object, class R, class... P>
Parameters<P...> method_parameters(R (*)(const Object&, P...));

template <class Object, class M>
concept MethodShape = requires(std::decay_t<M> method) {
  method_parameters<Object>(method);
};

template <class M>
struct ClassOf;
template <class Member, class C>
struct ClassOf<Member C::*> {
  using type = C;
};

template <class Object, class M, class... Argument>
inline constexpr bool kMethodAccepts = false;
template <class Object, class M, class... Argument>
requires(MethodShape<Object, M>&& kMethodOf<
         Object, std::decay_t<M>>) inline constexpr bool kMethodAccepts<Object, M, Argument...> =
    kFit<decltype(method_parameters<Object>(std::declval<std::decay_t<M>>())), Argument...>;

// For the verbs of RRef<Object>.
template <class Object, class M, class... Argument>
constexpr void explain_method_call() {
  using Decayed = std::decay_t<M>;
  if constexpr (!kMethodOf<Object, Decayed>) {
    [[maybe_unused]] MethodOfAnotherClass<typename ClassOf<Decayed>::type, Object> mistake;
  } else if constexpr (MethodShape<Object, M>) {
    explain_arguments(decltype(method_parameters<Object>(std::declval<Decayed>()))(),
                      static_cast<std::tuple<Argument&&...>*>(nullptr));
  } else if constexpr (std::is_member_function_pointer_v<Decayed>) {
    [[maybe_unused]] QualifiedMethod<M> mistake;
  } else {
    [[maybe_unused]] NotAFunction<M> mistake;
  }
}

// For remote<T>(to, arguments...).
template <class T, class... Argument>
constexpr void explain_remote_class() {
  if constexpr (!RegisteredClass<T>) {
    [[maybe_unused]] ClassNotRegistered<T> mistake;
  } else {
    [[maybe_unused]] NoSuchConstructor<T, Argument...> mistake;
  }
}

}  // namespace weft::rpc_internal::check
