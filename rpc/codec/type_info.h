// Knows a C++ type by a number that all workers agree on: what remote objects are told apart by.
//
// The number is the hash of the schema spelled with names for types that can be sent, else of the
// class's name.
// Thread safety: immutable once static initialisation is over.
#pragma once

#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/object.h"

namespace weft {

// Carries a type where an overload is wanted: weft_class(weft::type<T>{}).
template <class T>
struct type {};

namespace rpc_internal {

TypeInfo make_type_info(std::string name, void (*encode)(Writer& writer, const void* value));

// Changed only by WEFT_REGISTER_CLASS, during static initialisation.
template <class T>
TypeInfo& mutable_type_info() {
  static TypeInfo info = [] {
    if constexpr (std::is_void_v<T>) {
      return make_type_info("void", nullptr);
    } else if constexpr (kSendable<T>) {
      return make_type_info(type_text<T>(), [](Writer& writer, const void* value) {
        Codec<T>::encode(writer, *static_cast<const T*>(value));
      });
    } else {
      return make_type_info("class " + wire_name(type_spelling<T>()), nullptr);
    }
  }();
  return info;
}

}  // namespace rpc_internal

template <class T>
const TypeInfo& type_info_of() {
  return rpc_internal::mutable_type_info<T>();
}

}  // namespace weft
