// A value of any type that stays with its owner, and what may be done with it without knowing the
// type.
//
// Thread safety: a TypeInfo is immutable; the value's own rules hold for the value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace weft {

class Writer;

// One static object per type, compared by hash (addresses differ between shared libraries).
struct TypeInfo {
  uint64_t hash = 0;
  std::string name;
  // Writes the value for to_here(); null for types that cannot be sent.
  void (*encode)(Writer& writer, const void* value) = nullptr;
  // Methods of one object run one at a time.
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

  std::shared_ptr<void> value;  // shared: handles and running methods keep it alive
  const TypeInfo* type = nullptr;
  std::shared_ptr<rpc_internal::SerialGate> gate;  // of serial types: shared by every copy
};

}  // namespace weft
