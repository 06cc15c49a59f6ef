// Registers functions under their wire names, and names functions without having their code.
//
//   namespace lib { at::Tensor add(const at::Tensor&, const at::Tensor&);
//                   WEFT_REGISTER_FUNCTION(add); }                          // "lib::add"
//   WEFT_REGISTER_FUNCTION_AS("scale.f64", weft::overload<const at::Tensor&, double>(scale));
//   inline const auto half = weft::define("half", [](double x) { return x / 2; });
//   inline constexpr weft::Function<at::Tensor(at::Tensor)> infer{"serving::infer"};
//
// Put a registration below the function's declaration, in its header if it has one. Then each
// program that includes the header registers the function and links its code. A linker drops object
// files of a library that no other code mentions, with their registrations.
//
// Thread safety: registrations happen during static initialisation. A Function is a plain value.
// Errors: functions that cannot be called do not compile. RegistryBuilder::build reports clashes.
#pragma once

#include <string_view>
#include <type_traits>
#include <utility>

#include "weft/rpc/internal/invoke.h"
#include "weft/rpc/registry.h"

namespace weft {

template <class Signature>
class Function;

// A function that is known only by its name and type. The name must outlive this (use a literal).
template <class R, class... P>
class Function<R(P...)> {
 public:
  constexpr explicit Function(std::string_view name) : name_(name), id_(hash64(name)) {}

  constexpr std::string_view name() const { return name_; }
  const Signature& signature() const { return rpc_internal::signature_of<R, P...>(); }
  FunctionKey key() const { return {id_, signature().fingerprint, name_}; }

 private:
  std::string_view name_;
  uint64_t id_;
};

// overload<int, double>(f) chooses the overload of the function or method f with exactly these
// parameters. If a const and a non-const method have the same parameters, `overload` is ambiguous;
// const_overload chooses the const one.
template <class... P>
struct Overload {
  template <class R>
  constexpr auto operator()(R (*function)(P...)) const {
    return function;
  }
  template <class R, class C>
  constexpr auto operator()(R (C::*method)(P...)) const {
    return method;
  }
  template <class R, class C>
  constexpr auto operator()(R (C::*method)(P...) const) const {
    return method;
  }
};
template <class... P>
struct ConstOverload {
  template <class R, class C>
  constexpr auto operator()(R (C::*method)(P...) const) const {
    return method;
  }
};
template <class... P>
inline constexpr Overload<P...> overload{};
template <class... P>
inline constexpr ConstOverload<P...> const_overload{};

namespace rpc_internal {

template <class R>
inline constexpr FunctionKind kKindOf =
    kFactory<R> ? FunctionKind::kFactory : FunctionKind::kFunction;

template <class R, class... P>
inline constexpr CallableType kFunctionType{kKindOf<R>, &describe_function<R, P...>,
                                            &invoke_function<R, P...>};
template <class R, class... P>
inline constexpr CallableType kContextFunctionType{kKindOf<R>, &describe_function<R, P...>,
                                                   &invoke_with_context<R, P...>};
// Replaces the type of functions that cannot be registered, so that one mistake gives one error.
extern const CallableType kRefusedType;

template <class R, class... P>
constexpr const CallableType& callable_type(R (*)(P...)) {
  if constexpr (check::kRemotable<R, P...>) {
    return kFunctionType<R, P...>;
  } else {
    check::explain_remotable<R, P...>();
    return kRefusedType;
  }
}
template <class R, class... P>
constexpr const CallableType& callable_type(R (*)(CallContext&, P...)) {
  if constexpr (check::kRemotable<R, P...>) {
    return kContextFunctionType<R, P...>;
  } else {
    check::explain_remotable<R, P...>();
    return kRefusedType;
  }
}

template <class Pointer>
void (*plain(Pointer function))() {
  return reinterpret_cast<void (*)()>(function);
}

// Describes the operator() of a function object. Type is its signature without CallContext&.
template <class Pointer>
struct CallOperator;
template <class R, class C, class... P>
struct CallOperator<R (C::*)(P...)> {
  using Type = R(P...);
  static constexpr bool kWithContext = false;
  template <class F>
  static constexpr CallableType kType{kKindOf<R>, &describe_function<R, P...>,
                                      &invoke_object<F, false, R, P...>};
  static constexpr bool kFits = check::kRemotable<R, P...>;
  static constexpr void explain() { check::explain_remotable<R, P...>(); }
};
template <class R, class C, class... P>
struct CallOperator<R (C::*)(CallContext&, P...)> {
  using Type = R(P...);
  static constexpr bool kWithContext = true;
  template <class F>
  static constexpr CallableType kType{kKindOf<R>, &describe_function<R, P...>,
                                      &invoke_object<F, true, R, P...>};
  static constexpr bool kFits = check::kRemotable<R, P...>;
  static constexpr void explain() { check::explain_remotable<R, P...>(); }
};
template <class R, class C, class... P>
struct CallOperator<R (C::*)(P...) const> : CallOperator<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct CallOperator<R (C::*)(CallContext&, P...) const>
    : CallOperator<R (C::*)(CallContext&, P...)> {};
template <class R, class C, class... P>
struct CallOperator<R (C::*)(P...) noexcept> : CallOperator<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct CallOperator<R (C::*)(P...) const noexcept> : CallOperator<R (C::*)(P...)> {};

template <class F>
using OperatorOf = CallOperator<decltype(&F::operator())>;

template <class Pointer, class... Tag>
Registration register_function(std::string_view name, const char* file, int line, Pointer function,
                               Tag... tag) {
  return Registration(name, plain(function), callable_type(function), function_options(tag...),
                      file, line);
}

// A Function that is also registered.
template <class FunctionType>
class Defined : public Function<FunctionType> {
 public:
  template <class Pointer, class... Tag>
  Defined(const NameHere& name, Pointer function, Tag... tag)
      : Function<FunctionType>(name.name),
        registration_(name.name, plain(function), callable_type(function), function_options(tag...),
                      name.file, name.line) {}

 private:
  const Registration registration_;
};

}  // namespace rpc_internal

// Registers a lambda without captures under a name. The result is the Function that callers use. It
// must be a variable at namespace scope, because it is the registration too.
template <class F, class... Tag>
auto define(NameHere name, F lambda, Tag... tag) {
  static_assert(std::is_empty_v<F>,
                "weft: define takes a lambda without captures; RegistryBuilder::add takes others");
  return rpc_internal::Defined<typename rpc_internal::OperatorOf<F>::Type>(name, +lambda, tag...);
}

template <class F, class... Tag>
auto RegistryBuilder::add(NameHere name, F function, Tag... tag) {
  using Operator = rpc_internal::OperatorOf<F>;
  if constexpr (Operator::kFits) {
    rpc_internal::Declaration declaration;
    declaration.name = std::string(name.name);
    declaration.type = &Operator::template kType<F>;
    declaration.options = rpc_internal::function_options(tag...);
    declaration.file = name.file;
    declaration.line = name.line;
    auto state = std::make_shared<F>(std::move(function));
    declaration.callable = rpc_internal::object_key(state.get());
    declaration.state = std::move(state);
    add(std::move(declaration));
  } else {
    Operator::explain();
  }
  return Function<typename Operator::Type>(name.name);
}

}  // namespace weft

#define WEFT_INTERNAL_JOIN2(a, b) a##b
#define WEFT_INTERNAL_JOIN(a, b) WEFT_INTERNAL_JOIN2(a, b)
#define WEFT_INTERNAL_REGISTRATION                                                     \
  [[maybe_unused]] static const ::weft::rpc_internal::Registration WEFT_INTERNAL_JOIN( \
      weft_registration_, __COUNTER__)

// Registers a function under its C++ name, with its namespaces. The tags weft::run_inline, and
// weft::Access{...} or weft::local_only (security/rights/access.h), may follow.
#define WEFT_REGISTER_FUNCTION(function, ...)                               \
  WEFT_INTERNAL_REGISTRATION = ::weft::rpc_internal::register_function(     \
      ::weft::rpc_internal::value_spelling<function>(), __FILE__, __LINE__, \
      function __VA_OPT__(, ) __VA_ARGS__)

// Registers a function (overload<...>(f), a template instance, a pointer) under the given name.
// Tags may follow.
#define WEFT_REGISTER_FUNCTION_AS(name, ...) \
  WEFT_INTERNAL_REGISTRATION =               \
      ::weft::rpc_internal::register_function(name, __FILE__, __LINE__, __VA_ARGS__)
