// Codec<T> encodes and decodes a value of type T and describes its schema.
//
// These types can be sent: scalars (bool is one byte, 0 or 1), enums, strings, tensors, std::chrono
// durations, the containers of codec_containers.h, RRef<T> (rref/rref.h) and protobuf messages. So
// can structs with a function weft_fields that argument-dependent lookup finds:
//
//   struct Batch { at::Tensor x; std::vector<int64_t> labels; };
//   inline auto weft_fields(Batch& b) { return std::tie(b.x, b.labels); }
//
// For other types, specialise Codec with the three functions that the specialisations below have.
//
// Thread safety: codecs have no state.
// Errors: if the bytes are wrong, `decode` fails the Reader and returns any value instead of
// throwing.
// Wire: little-endian. Each value takes at least one byte.
#pragma once

#include <chrono>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "weft/base/parts.h"
#include "weft/rpc/codec/message.h"
#include "weft/rpc/codec/schema.h"

namespace weft {

template <class T>
struct Codec;

// Whether values of type T can be arguments, results and fields.
template <class T>
inline constexpr bool kSendable = requires {
  sizeof(Codec<T>);
};

// bool, and the number types whose bytes have the same meaning on each worker.
template <class T>
concept Scalar = std::is_same_v<T, bool> ||
    (std::is_arithmetic_v<T> && !std::is_same_v<T, long double> && !std::is_same_v<T, wchar_t>);
// Scalars whose lists are copied as one block.
template <class T>
concept BulkScalar = Scalar<T> && !std::is_same_v<T, bool>;

// The functions of google::protobuf::MessageLite that a codec needs, so that its header is not.
template <class T>
concept ProtobufLike = std::is_default_constructible_v<T> &&
    requires(const T& message, T& target, std::string* text, const void* data) {
  { message.SerializeToString(text) } -> std::same_as<bool>;
  { target.ParseFromArray(data, 1) } -> std::same_as<bool>;
  { message.GetTypeName() } -> std::convertible_to<std::string>;
};

namespace rpc_internal {

template <class T>
constexpr std::string_view scalar_name() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? "f32" : "f64";
  } else {
    constexpr std::string_view kSigned[] = {"", "i8", "i16", "", "i32", "", "", "", "i64"};
    constexpr std::string_view kUnsigned[] = {"", "u8", "u16", "", "u32", "", "", "", "u64"};
    return std::is_signed_v<T> ? kSigned[sizeof(T)] : kUnsigned[sizeof(T)];
  }
}

// The codec of a struct's field. If the field has no codec, the compile error names the struct too.
template <class Field, class Struct, size_t number>
struct CheckedCodec : Codec<Field> {};
template <class Field, class Struct, size_t number>
requires(!kSendable<Field>) struct CheckedCodec<Field, Struct, number> {
  static_assert(sizeof(Struct) == 0,
                "weft: a field of this struct cannot be sent; see CheckedCodec<type of the field, "
                "struct, number ...>");
  static void encode(Writer&, const Field&) {}
  static Field decode(Reader&);
  static void schema(SchemaBuilder&) {}
};

void schema_of_ratio(SchemaBuilder& schema, std::string_view rep, intmax_t num, intmax_t den);

}  // namespace rpc_internal

template <Scalar T>
struct Codec<T> {
  static void encode(Writer& writer, T value) {
    if constexpr (std::is_same_v<T, bool>) {
      writer.scalar(static_cast<uint8_t>(value));
    } else {
      writer.scalar(value);
    }
  }
  static T decode(Reader& reader) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = reader.scalar<uint8_t>();
      if (byte > 1) reader.fail("a bool is neither 0 nor 1");
      return byte == 1;
    } else {
      return reader.scalar<T>();
    }
  }
  static void schema(SchemaBuilder& schema) { schema.text(rpc_internal::scalar_name<T>()); }
};

// An enum travels as its underlying number. Numbers without an enumerator are accepted.
template <class T>
requires std::is_enum_v<T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static void encode(Writer& writer, T value) {
    Codec<Number>::encode(writer, static_cast<Number>(value));
  }
  static T decode(Reader& reader) { return static_cast<T>(Codec<Number>::decode(reader)); }
  static void schema(SchemaBuilder& schema) {
    schema.text(rpc_internal::scalar_name<Number>(),
                rpc_internal::wire_name(rpc_internal::type_spelling<T>()));
  }
};

template <>
struct Codec<std::string> {
  static void encode(Writer& writer, std::string_view value) { writer.text(value); }
  static std::string decode(Reader& reader) { return std::string(reader.text()); }
  static void schema(SchemaBuilder& schema) { schema.text("string"); }
};

template <>
struct Codec<at::Tensor> {
  // By value, so that a tensor that the caller moved in gets no second holder here.
  static void encode(Writer& writer, at::Tensor value) { writer.tensor(std::move(value)); }
  static at::Tensor decode(Reader& reader) { return reader.tensor(); }
  static void schema(SchemaBuilder& schema) { schema.text("tensor"); }
};

template <Scalar Rep, class Period>
struct Codec<std::chrono::duration<Rep, Period>> {
  using Duration = std::chrono::duration<Rep, Period>;
  static void encode(Writer& writer, Duration value) { writer.scalar(value.count()); }
  static Duration decode(Reader& reader) { return Duration(reader.scalar<Rep>()); }
  static void schema(SchemaBuilder& schema) {
    rpc_internal::schema_of_ratio(schema, rpc_internal::scalar_name<Rep>(), Period::num,
                                  Period::den);
  }
};

template <HasFields T>
struct Codec<T> {
  static_assert(std::is_default_constructible_v<T>,
                "weft: a struct with weft_fields must be default constructible: it is made empty, "
                "then filled; give it a default constructor or specialise weft::Codec for it");
  using Fields = FieldsOf<T>;
  static constexpr size_t kFields = std::tuple_size_v<Fields>;
  template <size_t number>
  using FieldCodec =
      rpc_internal::CheckedCodec<std::remove_cvref_t<std::tuple_element_t<number, Fields>>, T,
                                 number>;

  static void encode(Writer& writer, const T& value) {
    if constexpr (kFields == 0) writer.scalar(uint8_t{0});
    // const_cast, because a struct has one weft_fields for reading and writing. Here it only reads.
    Fields fields = weft_fields(const_cast<T&>(value));
    [&]<size_t... i>(std::index_sequence<i...>) {
      (FieldCodec<i>::encode(writer, std::get<i>(fields)), ...);
    }
    (std::make_index_sequence<kFields>());
  }
  static T decode(Reader& reader) {
    T value{};
    if (!reader.enter()) return value;
    if constexpr (kFields == 0) reader.scalar<uint8_t>();
    Fields fields = weft_fields(value);
    [&]<size_t... i>(std::index_sequence<i...>) {
      ((std::get<i>(fields) = FieldCodec<i>::decode(reader)), ...);
    }
    (std::make_index_sequence<kFields>());
    reader.leave();
    return value;
  }
  static void schema(SchemaBuilder& schema) {
    if (!schema.open_struct(rpc_internal::type_spelling<T>())) return;
    [&]<size_t... i>(std::index_sequence<i...>) {
      ((i == 0 ? void() : schema.text(", "), FieldCodec<i>::schema(schema)), ...);
    }
    (std::make_index_sequence<kFields>());
    schema.close_struct();
  }
};

template <ProtobufLike T>
requires(!HasFields<T>) struct Codec<T> {
  static void encode(Writer& writer, const T& message) {
    std::string text;
    if (!message.SerializeToString(&text)) {
      writer.fail(absl::InvalidArgumentError("a protobuf message could not be serialised"));
    }
    writer.text(text);
  }
  static T decode(Reader& reader) {
    T message;
    const std::string_view text = reader.text();
    if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
        !message.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
      reader.fail("a protobuf message could not be parsed");
    }
    return message;
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("message ");
    schema.text(T().GetTypeName());
  }
};

namespace rpc_internal {

// "tensor", "list<i64>", "lib::Batch{tensor, i64}"
template <class T>
std::string type_text(SchemaBuilder::Spelling spelling = SchemaBuilder::Spelling::kNames) {
  SchemaBuilder schema(spelling);
  schema.type<T>();
  return schema.take();
}

}  // namespace rpc_internal
}  // namespace weft

#include "weft/rpc/codec/codec_containers.h"  // IWYU pragma: export
