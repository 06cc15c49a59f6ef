// Holds a value of any type on its owner, with the operations that need not know the type.
//
// Thread safety: a TypeInfo is immutable after static initialisation. The value has its own rules.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace weft {

class Writer;

// Describes a type. There is one static object per type. Compare by hash, because shared libraries
// have different addresses for one type.
struct TypeInfo {
  uint64_t hash = 0;
  std::string name;
  // Writes the value, for to_here(). Null: the type cannot be sent.
  void (*encode)(Writer& writer, const void* value) = nullptr;
  // The methods of one object run one at a time.
  bool serial = false;
};

namespace rpc_internal {
class SerialGate;
std::shared_ptr<SerialGate> make_serial_gate();
}  // namespace rpc_internal

struct Object {
  Object() = default;
  Object(std::shared_ptr<void> value_in, const TypeInfo* type_in)
      : value(std::move(value_in)), type(type_in) {
    if (type != nullptr && type->serial) gate = rpc_internal::make_serial_gate();
  }

  std::shared_ptr<void> value;  // shared, because handles and running methods keep it alive
  const TypeInfo* type = nullptr;
  std::shared_ptr<rpc_internal::SerialGate> gate;  // of serial types; all copies share it
};

}  // namespace weft
