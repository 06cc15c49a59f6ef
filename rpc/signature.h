// Derives from a function's type what a caller gets (a value or an object, at once or later) and
// the signature that travels.
#pragma once

#include <memory>
#include <type_traits>

#include "weft/async/future.h"
#include "weft/rpc/check.h"
#include "weft/rpc/codec/type_info.h"

namespace weft {
namespace rpc_internal {

template <class R>
struct Result {
  using Value = R;   // the result of rpc_sync
  using Object = R;  // the T of the RRef<T> that `remote` returns
  static constexpr bool kFactory = false;
};
template <>
struct Result<absl::Status> {
  using Value = void;
  using Object = void;
  static constexpr bool kFactory = false;
};
template <class T>
struct Result<absl::StatusOr<T>> : Result<T> {};
template <class T>
struct Result<Future<T>> : Result<T> {};
template <class T, class Deleter>
struct Result<std::unique_ptr<T, Deleter>> {
  using Value = std::unique_ptr<T, Deleter>;
  using Object = T;
  static constexpr bool kFactory = true;
};
template <class T>
struct Result<std::shared_ptr<T>> {
  using Value = std::shared_ptr<T>;
  using Object = T;
  static constexpr bool kFactory = true;
};

template <class T>
inline constexpr bool kFuture = false;
template <class T>
inline constexpr bool kFuture<Future<T>> = true;

template <class R>
inline constexpr bool kNestedFuture = false;
template <class T>
inline constexpr bool kNestedFuture<Future<T>> = kFuture<T>;
template <class T>
inline constexpr bool kNestedFuture<absl::StatusOr<T>> = kFuture<T>;

}  // namespace rpc_internal

// The type of rpc_sync's result. A reference becomes a value; Future<T> and StatusOr<T> become T.
template <class R>
using result_t = typename rpc_internal::Result<std::remove_cvref_t<R>>::Value;
// The type of the object that `remote` makes. std::unique_ptr<T> and std::shared_ptr<T> become T.
template <class R>
using object_t = typename rpc_internal::Result<std::remove_cvref_t<R>>::Object;

namespace rpc_internal {

template <class R>
inline constexpr bool kFactory = Result<std::remove_cvref_t<R>>::kFactory;
template <class R>
inline constexpr bool kResultFits =
    !kNestedFuture<std::remove_cvref_t<R>> &&
    (kFactory<R> || std::is_void_v<result_t<R>> || kSendable<result_t<R>>);

namespace check {

// For the registration of a function, which may return an object.
template <class R>
constexpr void explain_result() {
  if constexpr (kResultFits<R>) {
  } else if constexpr (kNestedFuture<std::remove_cvref_t<R>>) {
    [[maybe_unused]] FutureOfFuture<R> mistake;
  } else if constexpr (kPointer<R>) {
    [[maybe_unused]] ResultIsPointer<R> mistake;
  } else {
    [[maybe_unused]] ResultNotSendable<result_t<R>> mistake;
  }
}

// Whether a function can be registered and called by `remote`.
template <class R, class... P>
inline constexpr bool kRemotable = kResultFits<R>&& kParametersFit<P...>;
// Whether rpc_sync and rpc_async can call the function.
template <class R, class... P>
inline constexpr bool kCallable = kRemotable<R, P...> && !kFactory<R>;

template <class R, class... P>
constexpr void explain_remotable() {
  explain_parameters<P...>();
  explain_result<R>();
}
template <class R, class... P>
constexpr void explain_callable() {
  explain_remotable<R, P...>();
  if constexpr (kFactory<R>) [[maybe_unused]]
    Factory<R> mistake;
}

}  // namespace check

template <class R>
void describe_result(SchemaBuilder& schema) {
  schema.text(" -> ");
  if constexpr (kFactory<R>) {
    schema.text("object " + type_info_of<object_t<R>>().name);
  } else if constexpr (std::is_void_v<result_t<R>>) {
    schema.text("void");
  } else {
    schema.type<result_t<R>>();
  }
}

template <class... P>
void describe_parameters(SchemaBuilder& schema) {
  schema.text("(");
  bool first = true;
  ((first ? void() : schema.text(", "), first = false, Parameter<P>::schema(schema)), ...);
  schema.text(")");
}

// Describes R(P...). A parameter `const T&` has the same description as T.
template <class R, class... P>
void describe_function(SchemaBuilder& schema) {
  describe_parameters<P...>(schema);
  describe_result<R>(schema);
}
// Describes a constructor of T.
template <class T, class... P>
void describe_constructor(SchemaBuilder& schema) {
  describe_parameters<P...>(schema);
  schema.text(" -> object " + type_info_of<T>().name);
}

template <class R, class... P>
const Signature& signature_of() {
  static const Signature signature = make_signature(&describe_function<R, P...>);
  return signature;
}
template <class T, class... P>
const Signature& constructor_signature() {
  static const Signature signature = make_signature(&describe_constructor<T, P...>);
  return signature;
}

}  // namespace rpc_internal
}  // namespace weft
