// Describes the wire form of a type as a text, so that two programs can compare it.
//
// Each Codec<T>::schema appends its text. A text has two spellings. The structure is hashed into
// the fingerprint that travels with each call. The spelling with names stands in errors, and it
// distinguishes the C++ types of remote objects.
//
// Thread safety: none. Only one thread uses a SchemaBuilder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/rpc/codec/wire_name.h"

namespace weft {

template <class T>
struct Codec;

class SchemaBuilder {
 public:
  enum class Spelling { kStructure, kNames };

  explicit SchemaBuilder(Spelling spelling) : spelling_(spelling) {}

  // Appends a text that is the same in both spellings.
  void text(std::string_view text) { text_.append(text); }
  // Appends `structure` in the one spelling, and the C++ `name` in the other.
  void text(std::string_view structure, std::string_view name) {
    text_.append(spelling_ == Spelling::kStructure ? structure : name);
  }
  template <class T>
  void type() {
    Codec<T>::schema(*this);
  }
  // Appends "a, b, c".
  template <class... T>
  void types() {
    bool first = true;
    ((first ? void() : text(", "), first = false, type<T>()), ...);
  }
  // Begins a struct. False: the struct contains itself and is open already; a reference to the open
  // one was appended instead.
  bool open_struct(std::string_view spelling);
  void close_struct();

  std::string take() { return std::move(text_); }

 private:
  const Spelling spelling_;
  std::string text_;
  std::vector<std::string_view> open_;
};

// The parameter types and the result type of a function.
struct Signature {
  std::string text;          // the spelling with names: "(tensor, list<i64>) -> tensor"
  uint64_t fingerprint = 0;  // hash of the structure
};

namespace rpc_internal {

using Describe = void (*)(SchemaBuilder& schema);
Signature make_signature(Describe describe);

}  // namespace rpc_internal
}  // namespace weft
