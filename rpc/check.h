// The compile errors of the typed calls: each names the argument and the mistake in one line.
//
// Predicates never fail to compile. The assertions are in class templates, which are instantiated
// only if a predicate is false. So one mistake gives one error.
#pragma once

#include <cstddef>
#include <type_traits>

#include "weft/async/future.h"
#include "weft/rpc/internal/parameter.h"
#include "weft/rpc/session/call_scope.h"

namespace weft {

// The result of a call that does not compile. It converts to any type, so that the compiler reports
// no further errors about the call.
struct Explained {
  template <class T>
  operator T() const;  // NOLINT: stands for any value
};

// The parameter type that a set of overloads (or a template) matches, because such a set has no
// single address. Its name is the advice in the compiler's error.
struct overloaded_function__choose_one_with_weft_overload {
  overloaded_function__choose_one_with_weft_overload(...);  // NOLINT: takes what has no type
};

namespace rpc_internal::check {

template <class... T>
inline constexpr bool kNo = false;

template <class P>
inline constexpr bool kPointer = std::is_pointer_v<std::remove_cvref_t<P>>;

template <int number, class T>
struct NotSendable {
  static_assert(number != 1,
                "weft: argument 1 of this function cannot be sent; give its type weft_fields(T&) "
                "or specialise weft::Codec for it");
  static_assert(number != 2,
                "weft: argument 2 of this function cannot be sent; give its type weft_fields(T&) "
                "or specialise weft::Codec for it");
  static_assert(number != 3,
                "weft: argument 3 of this function cannot be sent; give its type weft_fields(T&) "
                "or specialise weft::Codec for it");
  static_assert(number != 4,
                "weft: argument 4 of this function cannot be sent; give its type weft_fields(T&) "
                "or specialise weft::Codec for it");
  static_assert(number <= 4,
                "weft: an argument of this function (its number is in NotSendable<...>) cannot be "
                "sent; give its type weft_fields(T&) or specialise weft::Codec for it");
};

template <int number, class T>
struct MutableReference {
  static_assert(number != 1,
                "weft: argument 1 of this function is a non-const reference: changes would stay on "
                "the other worker; take a value or a const reference and return what changed");
  static_assert(number != 2,
                "weft: argument 2 of this function is a non-const reference: changes would stay on "
                "the other worker; take a value or a const reference and return what changed");
  static_assert(number != 3,
                "weft: argument 3 of this function is a non-const reference: changes would stay on "
                "the other worker; take a value or a const reference and return what changed");
  static_assert(number != 4,
                "weft: argument 4 of this function is a non-const reference: changes would stay on "
                "the other worker; take a value or a const reference and return what changed");
  static_assert(number <= 4,
                "weft: an argument of this function (its number is in MutableReference<...>) is a "
                "non-const reference: changes would stay on the other worker");
};

template <int number, class T>
struct Pointer {
  static_assert(
      number <= 0,
      "weft: an argument of this function (its number is in Pointer<...>) is a pointer, which "
      "means nothing on another worker; take std::string, std::vector, a struct or an RRef");
};

template <int number, class From, class To>
struct DoesNotConvert {
  static_assert(number != 1, "weft: argument 1 does not convert to the parameter of this function");
  static_assert(number != 2, "weft: argument 2 does not convert to the parameter of this function");
  static_assert(number != 3, "weft: argument 3 does not convert to the parameter of this function");
  static_assert(number != 4, "weft: argument 4 does not convert to the parameter of this function");
  static_assert(number <= 4,
                "weft: an argument (its number is in DoesNotConvert<...>) does not convert to the "
                "parameter of this function");
};

template <size_t given, size_t wanted>
struct WrongNumberOfArguments {
  static_assert(given > wanted,
                "weft: too few arguments for this function (a function pointer has no default "
                "arguments: give all)");
  static_assert(given < wanted,
                "weft: too many arguments for this function (CallOptions go with the worker: "
                "{\"worker1\", {.timeout = 5s}})");
};

template <class R>
struct ResultNotSendable {
  static_assert(kNo<R>,
                "weft: the result of this function cannot be sent; give its type weft_fields(T&), "
                "or return std::unique_ptr<T> to make it an object for an RRef");
};
template <class R>
struct FutureOfFuture {
  static_assert(kNo<R>, "weft: this function returns a future of a future; return Future<T>");
};
template <class R>
struct Factory {
  static_assert(kNo<R>,
                "weft: this function returns a std::unique_ptr or std::shared_ptr, so it makes an "
                "object: call it with weft::remote, which gives an RRef");
};
template <class R>
struct ResultIsPointer {
  static_assert(kNo<R>,
                "weft: the result of this function is a pointer, which means nothing on another "
                "worker; return a value, or std::unique_ptr<T> to make an object");
};
template <class F>
struct NotAFunction {
  static_assert(kNo<F>,
                "weft: this is no function that other workers know; pass a registered function, or "
                "give a lambda a name with weft::define or RegistryBuilder::add");
};
template <class F>
struct MethodNeedsAnRRef {
  static_assert(
      kNo<F>,
      "weft: a method is called on an object: use the RRef, object.rpc_sync(&Class::method, ...)");
};
template <class MethodClass, class Object>
struct MethodOfAnotherClass {
  static_assert(kNo<Object>,
                "weft: this method belongs to another class than the RRef; see "
                "MethodOfAnotherClass<class of the method, class of the RRef>");
};
template <class F>
struct QualifiedMethod {
  static_assert(kNo<F>,
                "weft: methods with & or && behind them, or volatile ones, cannot be called "
                "remotely; drop the qualifier or register a free function that takes T& first");
};
template <class T, class Member>
struct NotAMethodOfThisClass {
  static_assert(kNo<T>,
                "weft: this is no method of the class: list weft::constructor<...>(), &T::method, "
                "functions that take T& or const T& first, weft::serial");
};
template <class T, class... P>
struct NotAConstructor {
  static_assert(kNo<T>,
                "weft: the class has no such constructor, or is abstract (then register a function "
                "that returns std::unique_ptr<T>)");
};
template <class T>
struct ClassNotRegistered {
  static_assert(kNo<T>,
                "weft: remote<T> needs WEFT_REGISTER_CLASS(T, ...) to be visible here: put it "
                "under the class, in its header and in its namespace");
};
template <class T, class... Arguments>
struct NoSuchConstructor {
  static_assert(kNo<T>,
                "weft: no weft::constructor<...>() in WEFT_REGISTER_CLASS of this class takes "
                "these arguments (braces do not work here: name the type)");
};

template <int number, class P>
constexpr void explain_parameter() {
  if constexpr (kSendableParameter<P>) {
  } else if constexpr (kMutableReference<P>) {
    [[maybe_unused]] MutableReference<number, P> mistake;
  } else if constexpr (kPointer<P>) {
    [[maybe_unused]] Pointer<number, P> mistake;
  } else {
    [[maybe_unused]] NotSendable<number, std::remove_cvref_t<P>> mistake;
  }
}

template <class... P>
inline constexpr bool kParametersFit = (kSendableParameter<P> && ...);

template <class... P>
constexpr void explain_parameters() {
  [[maybe_unused]] int number = 0;
  [&]<size_t... i>(std::index_sequence<i...>) {
    (explain_parameter<static_cast<int>(i) + 1, P>(), ...);
  }
  (std::index_sequence_for<P...>());
}

}  // namespace rpc_internal::check
}  // namespace weft
