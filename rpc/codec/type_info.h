// Gives each C++ type a number on which all workers agree, to identify the types of remote objects.
//
// For types that can be sent, the number is the hash of the schema with names. For other types it
// is the hash of the class's name.
//
// Thread safety: immutable after static initialisation.
#pragma once

#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/object.h"

namespace weft {

// Passes a type to an overloaded function: weft_class(weft::type<T>{}).
template <class T>
struct type {};

namespace rpc_internal {

TypeInfo make_type_info(std::string name, void (*encode)(Writer& writer, const void* value));

// Only WEFT_REGISTER_CLASS changes it, during static initialisation.
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
