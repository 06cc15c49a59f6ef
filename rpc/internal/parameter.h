// Encodes the argument of a parameter, and keeps its decoded value while the function runs.
//
// Views (string_view, span<const T>, ArrayRef<T>) travel as the string or list that they show. The
// callee keeps this while the function runs.
#pragma once

#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/ArrayRef.h>

#include "weft/rpc/codec/codec.h"

namespace weft::rpc_internal {

template <class T>
struct ViewOf {
  static constexpr bool kIsView = false;
};
template <class T>
struct ViewOf<std::span<const T>> {
  static constexpr bool kIsView = true;
  using Element = T;
};
template <class T>
struct ViewOf<c10::ArrayRef<T>> {
  static constexpr bool kIsView = true;
  using Element = T;
};

// P is the declared type, with its reference. Parameter<P> is defined only for valid parameters.
template <class P>
struct Parameter;

template <class P>
inline constexpr bool kMutableReference =
    std::is_lvalue_reference_v<P> && !std::is_const_v<std::remove_reference_t<P>>;

template <class P>
requires(kSendable<std::remove_cvref_t<P>> && !kMutableReference<P>) struct Parameter<P> {
  using Value = std::remove_cvref_t<P>;
  using Owner = Value;
  static void encode(Writer& writer, P&& value) {
    Codec<Value>::encode(writer, std::forward<P>(value));
  }
  static Owner decode(Reader& reader) { return Codec<Value>::decode(reader); }
  static P pass(Owner& owner) requires std::is_reference_v<P> { return static_cast<P>(owner); }
  static Owner&& pass(Owner& owner) requires(!std::is_reference_v<P>) { return std::move(owner); }
  static void schema(SchemaBuilder& schema) { schema.type<Value>(); }
};

template <class P>
requires(std::is_same_v<std::remove_cvref_t<P>, std::string_view> &&
         !kMutableReference<P>) struct Parameter<P> {
  using Owner = std::string_view;  // a view into the message, which outlives the function's run
  static void encode(Writer& writer, std::string_view value) { writer.text(value); }
  static Owner decode(Reader& reader) { return reader.text(); }
  static Owner&& pass(Owner& owner) { return std::move(owner); }
  static void schema(SchemaBuilder& schema) { schema.type<std::string>(); }
};

template <class P>
requires(ViewOf<std::remove_cvref_t<P>>::kIsView&&
             kSendable<typename ViewOf<std::remove_cvref_t<P>>::Element> &&
         !kMutableReference<P>) struct Parameter<P> {
  using View = std::remove_cvref_t<P>;
  using Element = typename ViewOf<View>::Element;
  struct Owner {
    std::vector<Element> list;
    View view;
  };
  static void encode(Writer& writer, View view) {
    if constexpr (BulkScalar<Element>) {
      encode_block(writer, view.data(), view.size(), sizeof(Element));
    } else {
      writer.scalar(static_cast<uint64_t>(view.size()));
      for (const Element& element : view) Codec<Element>::encode(writer, element);
    }
  }
  static Owner decode(Reader& reader) {
    return {Codec<std::vector<Element>>::decode(reader), View()};
  }
  static View&& pass(Owner& owner) {
    owner.view = View(owner.list);
    return std::move(owner.view);
  }
  static void schema(SchemaBuilder& schema) { schema.type<std::vector<Element>>(); }
};

template <class P>
inline constexpr bool kSendableParameter = requires {
  sizeof(Parameter<P>);
};

}  // namespace weft::rpc_internal
