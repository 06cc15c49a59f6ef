// Gives registered functions of all types the one form that the runtime calls (Invoke).
//
// There is one instantiation per type of function. The pointer bytes of the entry tell which
// function of that type it calls.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "weft/rpc/internal/parameter.h"
#include "weft/rpc/registry.h"
#include "weft/rpc/signature.h"
#include "weft/rpc/user_call.h"

namespace weft::rpc_internal {

// These parts do not depend on types.
void finish_sink(ResultSinkPtr sink, Writer value);
// InvalidArgument, which names function and argument, unless all arguments and the whole message
// were read. `thrown` is the exception of the decoding: a user's codec may throw, and so may an
// allocation.
absl::Status check_arguments(const FunctionEntry& entry, Reader& arguments, size_t decoded,
                             absl::Status thrown);
absl::Status check_target(const FunctionEntry& entry, const Object* target);
absl::Status factory_needs_remote(const FunctionEntry& entry);
absl::Status empty_result(const FunctionEntry& entry, std::string_view what);

// Decodes one argument after the other and counts those without an error.
struct ArgumentDecoder {
  Reader& reader;
  size_t decoded = 0;

  template <class P>
  typename Parameter<P>::Owner next() {
    auto owner = Parameter<P>::decode(reader);
    if (reader.ok()) ++decoded;
    return owner;
  }
};

// Gives a value to the sink: encoded, or as an object.
template <class T, class V>
void deliver([[maybe_unused]] const FunctionEntry& entry, V&& value, ResultSinkPtr sink) {
  Object object;
  Writer writer;
  const bool boxed = Result<T>::kFactory || sink->wants_object();
  const absl::Status status = run_user_code([&] {
    if constexpr (Result<T>::kFactory) {
      std::shared_ptr<typename Result<T>::Object> made = std::forward<V>(value);
      object = {std::move(made), &type_info_of<typename Result<T>::Object>()};
    } else if (boxed) {
      object = {std::make_shared<T>(std::forward<V>(value)), &type_info_of<T>()};
    } else {
      Codec<T>::encode(writer, std::forward<V>(value));
    }
  });
  if (!status.ok()) {
    sink->fail(status);
  } else if (!boxed) {
    finish_sink(std::move(sink), std::move(writer));
  } else if (object.value == nullptr) {
    sink->fail(empty_result(entry, "a null pointer"));
  } else {
    sink->finish(std::move(object));
  }
}
void deliver_void(ResultSinkPtr sink);

template <class T>
void deliver_result(const FunctionEntry& entry, T value, ResultSinkPtr sink) {
  deliver<T>(entry, std::move(value), std::move(sink));
}
inline void deliver_result([[maybe_unused]] const FunctionEntry& entry, absl::Status status,
                           ResultSinkPtr sink) {
  if (status.ok()) {
    deliver_void(std::move(sink));
  } else {
    sink->fail(with_ran(std::move(status), Ran::kYes));
  }
}
template <class T>
void deliver_result(const FunctionEntry& entry, absl::StatusOr<T> value, ResultSinkPtr sink) {
  if (value.ok()) {
    deliver_result(entry, *std::move(value), std::move(sink));
  } else {
    sink->fail(with_ran(std::move(value).status(), Ran::kYes));
  }
}
// `keep` is the object whose method returned the future; it stays alive until the future completes.
template <class T>
void deliver_future(const FunctionEntry& entry, Future<T> future, std::shared_ptr<void> keep,
                    ResultSinkPtr sink) {
  if (!future.valid()) {
    sink->fail(empty_result(entry, "a future without a promise"));
    return;
  }
  // The continuation owns the future, and the future's state owns the continuation until completion
  // breaks the cycle. The registry owns the entry and outlives each call.
  const auto state = future.state();  // a copy, because `future` moves into the continuation
  state->on_complete_inline([future = std::move(future), keep = std::move(keep), &entry,
                             sink = std::move(sink)]() mutable {
    if constexpr (!std::is_void_v<T> && !std::is_copy_constructible_v<T>) {
      future.state()->consume();
      absl::StatusOr<T> result = future.state()->take_result();
      if (!result.ok()) {
        sink->fail(with_ran(result.status(), Ran::kYes));
      } else {
        deliver<T>(entry, *std::move(result), std::move(sink));
      }
    } else {
      const absl::StatusOr<async_internal::Stored<T>>& result = future.result();
      if (!result.ok()) {
        sink->fail(with_ran(result.status(), Ran::kYes));
      } else if constexpr (std::is_void_v<T>) {
        deliver_void(std::move(sink));
      } else {
        if (future.state()->has_one_reader()) sink->held_by_future();
        deliver<T>(entry, static_cast<const T&>(*result), std::move(sink));
      }
    }
  });
}

// Decodes the arguments P..., runs `code(arguments...)` and delivers its result of type R.
template <class R, class... P, class Code>
void run_entry(const FunctionEntry& entry, Reader& reader, std::shared_ptr<void> keep,
               ResultSinkPtr sink, Code&& code) {
  if constexpr (kFactory<R>) {
    if (!sink->wants_object()) {
      sink->fail(factory_needs_remote(entry));
      return;
    }
  }
  using Owners = std::tuple<typename Parameter<P>::Owner...>;
  ArgumentDecoder decoder{reader};
  std::optional<Owners> owners;
  absl::Status decoded = run_user_code([&] {
    owners.emplace(Owners{decoder.template next<P>()...});  // braces evaluate from left to right
  });
  decoded = check_arguments(entry, reader, decoder.decoded, std::move(decoded));
  if (!decoded.ok()) {
    sink->fail(std::move(decoded));
    return;
  }
  const auto call = [&]() -> R {
    return std::apply([&](auto&... owner) -> R { return code(Parameter<P>::pass(owner)...); },
                      *owners);
  };
  if constexpr (std::is_void_v<R>) {
    const absl::Status status = run_user_code(call);
    if (status.ok()) {
      deliver_void(std::move(sink));
    } else {
      sink->fail(status);
    }
  } else {
    // A result that is a reference is copied inside the guard, because copying runs user code too.
    using Value = std::remove_cvref_t<R>;
    std::optional<Value> value;
    const absl::Status status = run_user_code([&] {
      value.emplace(call());
      // Before the result is packed: if the result is an argument, it then has only one holder, and
      // its tensors are sent without a copy.
      owners.reset();
    });
    if (!status.ok()) {
      sink->fail(status);
    } else if constexpr (kFuture<Value>) {
      deliver_future(entry, *std::move(value), std::move(keep), std::move(sink));
    } else {
      deliver_result(entry, *std::move(value), std::move(sink));
    }
  }
}

template <class Pointer>
Pointer pointer_of(const FunctionEntry& entry) {
  static_assert(sizeof(Pointer) <= sizeof(entry.callable.bytes));
  Pointer pointer;
  std::memcpy(&pointer, entry.callable.bytes.data(), sizeof(pointer));
  return pointer;
}

template <class R, class... P>
void invoke_function(const FunctionEntry& entry, Reader& reader, const Object*, CallContext&,
                     ResultSinkPtr sink) {
  run_entry<R, P...>(entry, reader, nullptr, std::move(sink), pointer_of<R (*)(P...)>(entry));
}
template <class R, class... P>
void invoke_with_context(const FunctionEntry& entry, Reader& reader, const Object*,
                         CallContext& context, ResultSinkPtr sink) {
  const auto function = pointer_of<R (*)(CallContext&, P...)>(entry);
  run_entry<R, P...>(entry, reader, nullptr, std::move(sink), [&](auto&&... argument) -> R {
    return function(context, std::forward<decltype(argument)>(argument)...);
  });
}
// Calls a function object; `with_context`: it takes a CallContext&.
template <class F, bool with_context, class R, class... P>
void invoke_object(const FunctionEntry& entry, Reader& reader, const Object*, CallContext& context,
                   ResultSinkPtr sink) {
  // Concurrent calls share the object (RegistryBuilder::add). A mutable operator() is allowed.
  F& function = *static_cast<F*>(const_cast<void*>(entry.state.get()));
  run_entry<R, P...>(entry, reader, nullptr, std::move(sink), [&](auto&&... argument) -> R {
    if constexpr (with_context) {
      return function(context, std::forward<decltype(argument)>(argument)...);
    } else {
      return function(std::forward<decltype(argument)>(argument)...);
    }
  });
}
// Calls a method of T: a member of T or of a base, or a function that takes T& or const T& first.
template <class T, class Pointer, bool with_context, class R, class... P>
void invoke_method(const FunctionEntry& entry, Reader& reader, const Object* target,
                   CallContext& context, ResultSinkPtr sink) {
  if (absl::Status status = check_target(entry, target); !status.ok()) {
    sink->fail(std::move(status));
    return;
  }
  const auto pointer = pointer_of<Pointer>(entry);
  std::shared_ptr<void> keep = target->value;
  T& object = *static_cast<T*>(keep.get());
  const auto code = [&](auto&&... argument) -> R {
    if constexpr (with_context) {
      return std::invoke(pointer, object, context, std::forward<decltype(argument)>(argument)...);
    } else {
      return std::invoke(pointer, object, std::forward<decltype(argument)>(argument)...);
    }
  };
  run_entry<R, P...>(entry, reader, keep, std::move(sink), code);
}
template <class T, class... P>
void invoke_constructor(const FunctionEntry& entry, Reader& reader, const Object*, CallContext&,
                        ResultSinkPtr sink) {
  // make_shared, because classes with shared_from_this (torch::nn::Module) need a shared_ptr.
  run_entry<std::shared_ptr<T>, P...>(
      entry, reader, nullptr, std::move(sink), [](auto&&... argument) {
        return std::make_shared<T>(std::forward<decltype(argument)>(argument)...);
      });
}

}  // namespace weft::rpc_internal
