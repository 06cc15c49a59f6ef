// A value of any type that stays with its owner, and what may be done with it without knowing the
// type.
//
// Thread safety: a TypeInfo is immutable; the value's own rules hold for the value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

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

struct Object {
  std::shared_ptr<void> value;  // shared: handles and running methods keep it alive
  const TypeInfo* type = nullptr;
};

}  // namespace weft
