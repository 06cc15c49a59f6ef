// Codecs of the standard containers. codec.h includes this header.
//
// A list is a count and its elements; numbers are one block. The memory of decoded elements is
// charged to the message's budget (Reader::charge), so a false count cannot allocate much.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "weft/rpc/codec/codec.h"

namespace weft {
namespace rpc_internal {

// Appends `count` and the bytes. The size of an element does not travel: the schema has its type.
void encode_block(Writer& writer, const void* data, size_t count, size_t element_size);
// Reads the count of a block; 0, and failed, if the message has fewer bytes.
size_t decode_block_count(Reader& reader, size_t element_size);

// Reads the count of a list and charges `element_size` bytes of memory per element.
inline size_t decode_count(Reader& reader, size_t element_size) {
  const size_t count = reader.count();
  return reader.charge(count, element_size) ? count : 0;
}

}  // namespace rpc_internal

template <class T, class Allocator>
requires kSendable<T>
struct Codec<std::vector<T, Allocator>> {
  using List = std::vector<T, Allocator>;
  static void encode(Writer& writer, const List& list) {
    if constexpr (BulkScalar<T>) {
      rpc_internal::encode_block(writer, list.data(), list.size(), sizeof(T));
    } else {
      writer.scalar(static_cast<uint64_t>(list.size()));
      for (const auto& element : list) Codec<T>::encode(writer, element);
    }
  }
  static List decode(Reader& reader) {
    List list;
    if constexpr (BulkScalar<T>) {
      list.resize(rpc_internal::decode_block_count(reader, sizeof(T)));
      if (!list.empty()) reader.bytes(list.data(), list.size() * sizeof(T));
    } else {
      const size_t count = rpc_internal::decode_count(reader, sizeof(T));
      list.reserve(count);
      for (size_t i = 0; i < count && reader.ok(); ++i) list.push_back(Codec<T>::decode(reader));
    }
    return list;
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("list<");
    schema.type<T>();
    schema.text(">");
  }
};

template <class T, size_t size>
requires kSendable<T>
struct Codec<std::array<T, size>> {
  using Array = std::array<T, size>;
  static void encode(Writer& writer, const Array& array) {
    if constexpr (size == 0) {
      writer.scalar(uint8_t{0});
    } else if constexpr (BulkScalar<T>) {
      writer.bytes(array.data(), sizeof(Array));
    } else {
      for (const T& element : array) Codec<T>::encode(writer, element);
    }
  }
  static Array decode(Reader& reader) {
    if constexpr (size == 0) {
      reader.scalar<uint8_t>();
      return {};
    } else if constexpr (BulkScalar<T>) {
      Array array{};
      reader.bytes(array.data(), sizeof(Array));
      return array;
    } else {
      return [&]<size_t... i>(std::index_sequence<i...>) {
        return Array{((void)i, Codec<T>::decode(reader))...};
      }
      (std::make_index_sequence<size>());
    }
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("array<");
    schema.type<T>();
    schema.text(", " + std::to_string(size) + ">");
  }
};

namespace rpc_internal {

// The codecs of the two maps differ only in their names in the schema. So do those of the sets.
template <class Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static void encode(Writer& writer, const Map& map) {
    writer.scalar(static_cast<uint64_t>(map.size()));
    for (const auto& [key, value] : map) {
      Codec<Key>::encode(writer, key);
      Codec<Value>::encode(writer, value);
    }
  }
  static Map decode(Reader& reader) {
    Map map;
    const size_t count = decode_count(reader, sizeof(typename Map::value_type));
    for (size_t i = 0; i < count && reader.ok(); ++i) {
      Key key = Codec<Key>::decode(reader);
      Value value = Codec<Value>::decode(reader);
      if (reader.ok() && !map.emplace(std::move(key), std::move(value)).second) {
        reader.fail("a map holds a key twice");
      }
    }
    return map;
  }
  static void schema(SchemaBuilder& schema, std::string_view name) {
    schema.text("map<", name);
    schema.types<Key, Value>();
    schema.text(">");
  }
};

template <class Set>
struct SetCodec {
  using Key = typename Set::key_type;
  static void encode(Writer& writer, const Set& set) {
    writer.scalar(static_cast<uint64_t>(set.size()));
    for (const Key& key : set) Codec<Key>::encode(writer, key);
  }
  static Set decode(Reader& reader) {
    Set set;
    const size_t count = decode_count(reader, sizeof(Key));
    for (size_t i = 0; i < count && reader.ok(); ++i) {
      Key key = Codec<Key>::decode(reader);
      if (reader.ok() && !set.insert(std::move(key)).second) reader.fail("a set holds a key twice");
    }
    return set;
  }
  static void schema(SchemaBuilder& schema, std::string_view name) {
    schema.text("set<", name);
    schema.type<Key>();
    schema.text(">");
  }
};

}  // namespace rpc_internal

template <class K, class V, class Less, class Allocator>
requires(kSendable<K>&& kSendable<V>) struct Codec<std::map<K, V, Less, Allocator>>
    : rpc_internal::MapCodec<std::map<K, V, Less, Allocator>> {
  static void schema(SchemaBuilder& schema) { Codec::MapCodec::schema(schema, "map<"); }
};
template <class K, class V, class Hash, class Equal, class Allocator>
requires(kSendable<K>&& kSendable<V>) struct Codec<std::unordered_map<K, V, Hash, Equal, Allocator>>
    : rpc_internal::MapCodec<std::unordered_map<K, V, Hash, Equal, Allocator>> {
  static void schema(SchemaBuilder& schema) { Codec::MapCodec::schema(schema, "unordered_map<"); }
};
template <class K, class Less, class Allocator>
requires kSendable<K>
struct Codec<std::set<K, Less, Allocator>> : rpc_internal::SetCodec<std::set<K, Less, Allocator>> {
  static void schema(SchemaBuilder& schema) { Codec::SetCodec::schema(schema, "set<"); }
};
template <class K, class Hash, class Equal, class Allocator>
requires kSendable<K>
struct Codec<std::unordered_set<K, Hash, Equal, Allocator>>
    : rpc_internal::SetCodec<std::unordered_set<K, Hash, Equal, Allocator>> {
  static void schema(SchemaBuilder& schema) { Codec::SetCodec::schema(schema, "unordered_set<"); }
};

template <class... T>
requires(kSendable<T>&&...) struct Codec<std::tuple<T...>> {
  static void encode(Writer& writer, const std::tuple<T...>& tuple) {
    if constexpr (sizeof...(T) == 0) writer.scalar(uint8_t{0});
    std::apply([&](const T&... element) { (Codec<T>::encode(writer, element), ...); }, tuple);
  }
  static std::tuple<T...> decode(Reader& reader) {
    if constexpr (sizeof...(T) == 0) reader.scalar<uint8_t>();
    return std::tuple<T...>{Codec<T>::decode(reader)...};  // braces evaluate from left to right
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("(", "tuple<");
    schema.types<T...>();
    schema.text(")", ">");
  }
};

template <class A, class B>
requires(kSendable<A>&& kSendable<B>) struct Codec<std::pair<A, B>> {
  static void encode(Writer& writer, const std::pair<A, B>& pair) {
    Codec<A>::encode(writer, pair.first);
    Codec<B>::encode(writer, pair.second);
  }
  static std::pair<A, B> decode(Reader& reader) {
    return std::pair<A, B>{Codec<A>::decode(reader), Codec<B>::decode(reader)};
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("(", "pair<");
    schema.types<A, B>();
    schema.text(")", ">");
  }
};

template <class T>
requires kSendable<T>
struct Codec<std::optional<T>> {
  static void encode(Writer& writer, const std::optional<T>& value) {
    Codec<bool>::encode(writer, value.has_value());
    if (value.has_value()) Codec<T>::encode(writer, *value);
  }
  static std::optional<T> decode(Reader& reader) {
    if (!Codec<bool>::decode(reader)) return std::nullopt;
    return Codec<T>::decode(reader);
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("optional<");
    schema.type<T>();
    schema.text(">");
  }
};

template <>
struct Codec<std::monostate> {
  static void encode(Writer& writer, std::monostate) { writer.scalar(uint8_t{0}); }
  static std::monostate decode(Reader& reader) {
    reader.scalar<uint8_t>();
    return {};
  }
  static void schema(SchemaBuilder& schema) { schema.text("nothing"); }
};

template <class... T>
requires(kSendable<T>&&...) struct Codec<std::variant<T...>> {
  using Variant = std::variant<T...>;
  static void encode(Writer& writer, const Variant& value) {
    if (value.valueless_by_exception()) {
      writer.fail(absl::InvalidArgumentError("a variant holds no value"));
      return;
    }
    writer.scalar(static_cast<uint8_t>(value.index()));
    [&]<size_t... i>(std::index_sequence<i...>) {
      ((value.index() == i ? Codec<T>::encode(writer, *std::get_if<i>(&value)) : void()), ...);
    }
    (std::index_sequence_for<T...>());
  }
  static Variant decode(Reader& reader) {
    const size_t index = reader.scalar<uint8_t>();
    if (index >= sizeof...(T)) reader.fail("a variant names an alternative that it does not have");
    return decode_alternative<0>(reader, reader.ok() ? index : 0);
  }
  static void schema(SchemaBuilder& schema) {
    schema.text("variant<");
    schema.types<T...>();
    schema.text(">");
  }

 private:
  static_assert(sizeof...(T) <= 255);
  template <size_t i>
  static Variant decode_alternative(Reader& reader, size_t index) {
    if constexpr (i + 1 < sizeof...(T)) {
      if (index != i) return decode_alternative<i + 1>(reader, index);
    }
    return Variant(std::in_place_index<i>,
                   Codec<std::variant_alternative_t<i, Variant>>::decode(reader));
  }
};

}  // namespace weft
