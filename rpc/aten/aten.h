// Calls ATen operators on another worker without registering a function for each.
//
//   at::Tensor sum = weft::rpc_sync("worker1", weft::aten("aten::add.Tensor"), a, b);
//   auto [values, indices] = weft::rpc_sync(
//       "worker1", weft::aten<std::tuple<at::Tensor, at::Tensor>>("aten::sort"), a);
//
// rref/aten.h has `remote`, which leaves the result on the callee.
//
// The callee runs only the operators that its WorkerOptions::allow_operators names; by default
// there are none. Operators that take paths, generators or storage are always refused. Arguments
// are in the order of the operator's schema. Arguments that are left out at the end have the
// schema's defaults. Under a context, gradients flow through the operator as through any function
// that computes with tensors.
//
// Thread safety, blocking: as for the verbs (verbs.h).
// Errors: PermissionDenied (the callee does not allow the operator) and InvalidArgument (the
// arguments do not fit its schema), both not executed. Unknown: the operator threw. Internal: the
// result has another type than R.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "weft/rpc/verbs.h"

namespace weft {

// An operator by its name and overload. R is its result type: a tensor, a number, a bool, a string,
// a list of tensors or of numbers, a std::tuple of these, or void. The name must outlive the call.
template <class R>
struct AtenOperator {
  std::string_view name;
};
template <class R = at::Tensor>
constexpr AtenOperator<R> aten(std::string_view name) {
  return {name};
}

// An argument or a result of an operator. Dtypes, layouts and memory formats are their numbers.
struct AtenValue {
  using Any = std::variant<std::monostate, at::Tensor, bool, int64_t, double, std::string,
                           std::vector<int64_t>, std::vector<double>, std::vector<bool>,
                           std::vector<at::Tensor>>;
  AtenValue() = default;
  AtenValue(std::nullopt_t) {}                                               // NOLINT: None
  AtenValue(at::Tensor tensor) : any(std::move(tensor)) {}                   // NOLINT
  AtenValue(std::string text) : any(std::move(text)) {}                      // NOLINT
  AtenValue(const char* text) : any(std::string(text)) {}                    // NOLINT
  AtenValue(std::vector<int64_t> list) : any(std::move(list)) {}             // NOLINT
  AtenValue(std::vector<double> list) : any(std::move(list)) {}              // NOLINT
  AtenValue(std::vector<bool> list) : any(std::move(list)) {}                // NOLINT
  AtenValue(std::vector<at::Tensor> list) : any(std::move(list)) {}          // NOLINT
  AtenValue(at::ScalarType type) : any(static_cast<int64_t>(type)) {}        // NOLINT
  AtenValue(at::MemoryFormat format) : any(static_cast<int64_t>(format)) {}  // NOLINT
  template <class T>
  requires std::is_arithmetic_v<T> AtenValue(T number) {  // NOLINT
    if constexpr (std::is_same_v<T, bool>) {
      any = number;
    } else if constexpr (std::is_integral_v<T>) {
      any = static_cast<int64_t>(number);
    } else {
      any = static_cast<double>(number);
    }
  }

  Any any;
};
inline auto weft_fields(AtenValue& value) { return std::tie(value.any); }

namespace rpc_internal {

Outgoing open_aten_call(const Destination& to, std::string_view name,
                        std::vector<AtenValue> arguments);
absl::Status other_aten_result(const ReplyContext& context, std::string_view name, size_t given);

// Converts the results of an operator to the type R. `fits` is false if they have another type.
template <class R>
struct AtenResult {
  static bool fits(const std::vector<AtenValue>& values) {
    return values.size() == 1 && std::holds_alternative<R>(values[0].any);
  }
  static R take(std::vector<AtenValue>& values) { return std::get<R>(std::move(values[0].any)); }
};
template <>
struct AtenResult<void> {
  static bool fits(const std::vector<AtenValue>& values) { return values.empty(); }
  static Unit take(std::vector<AtenValue>&) { return {}; }
};
template <class... R>
struct AtenResult<std::tuple<R...>> {
  static bool fits(const std::vector<AtenValue>& values) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return values.size() == sizeof...(R) && (std::holds_alternative<R>(values[i].any) && ...);
    }
    (std::index_sequence_for<R...>());
  }
  static std::tuple<R...> take(std::vector<AtenValue>& values) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return std::tuple<R...>(std::get<R>(std::move(values[i].any))...);
    }
    (std::index_sequence_for<R...>());
  }
};

// Whether `remote` can make an object of type R: the callee supports only these types.
inline constexpr size_t kMostTensorsOfAnObject = 8;
template <class R>
inline constexpr bool kAtenObject =
    std::is_void_v<R> || std::is_same_v<R, at::Tensor> || std::is_same_v<R, bool> ||
    std::is_same_v<R, int64_t> || std::is_same_v<R, double> || std::is_same_v<R, std::string> ||
    std::is_same_v<R, std::vector<int64_t>> || std::is_same_v<R, std::vector<double>> ||
    std::is_same_v<R, std::vector<at::Tensor>>;
template <class... T>
inline constexpr bool kAtenObject<std::tuple<T...>> = sizeof...(T) >= 2 &&
                                                      sizeof...(T) <= kMostTensorsOfAnObject &&
                                                      (std::is_same_v<T, at::Tensor> && ...);

template <class... Argument>
std::vector<AtenValue> aten_arguments(Argument&&... argument) {
  std::vector<AtenValue> arguments;
  arguments.reserve(sizeof...(argument));
  (arguments.push_back(AtenValue(std::forward<Argument>(argument))), ...);
  return arguments;
}

template <class R>
Future<R> start_aten_call(Outgoing call, std::string_view name) {
  if (!call.status.ok()) return Future<R>::ready(std::move(call.status));
  Promise<R> promise(&call.runtime->executor());
  Future<R> future = promise.future();
  const ReplyContext context{call.runtime.get(), call.request.to, call.request.function.name,
                             call.signature};
  send_call(std::move(call), *future.state(),
            [promise = std::move(promise), context,
             name = std::string(name)](absl::StatusOr<Reader> reply) mutable {
              auto values = decode_reply<std::vector<AtenValue>>(context, std::move(reply));
              if (!values.ok()) {
                promise.set(std::move(values).status());
              } else if (!AtenResult<R>::fits(*values)) {
                promise.set(other_aten_result(context, name, values->size()));
              } else {
                promise.set(AtenResult<R>::take(*values));
              }
            });
  return future;
}

template <class R, class... Argument>
Future<R> aten_call(const Destination& to, AtenOperator<R> op, bool waited_for,
                    Argument&&... argument) {
  Outgoing call = open_aten_call(to, op.name, aten_arguments(std::forward<Argument>(argument)...));
  call.request.waited_for = waited_for;
  return start_aten_call<R>(std::move(call), op.name);
}

}  // namespace rpc_internal

template <class R, class... Argument>
requires(std::is_convertible_v<Argument, AtenValue>&&...) Future<R> rpc_async(
    const Destination& to, AtenOperator<R> op, Argument&&... argument) {
  return rpc_internal::aten_call(to, op, false, std::forward<Argument>(argument)...);
}
template <class R, class... Argument>
requires(std::is_convertible_v<Argument, AtenValue>&&...) R
    rpc_sync(const Destination& to, AtenOperator<R> op, Argument&&... argument) {
  return rpc_internal::take(
      rpc_internal::aten_call(to, op, true, std::forward<Argument>(argument)...));
}

}  // namespace weft
