// Spells what a type looks like on the wire, so that two programs can compare it.
//
// Each Codec<T>::schema appends its text. One text has two spellings: the structure, which is
// hashed into the fingerprint that travels with every call, and the one with names, which people
// read in errors and which tells the C++ types of remote objects apart.
//
// Thread safety: none; built and dropped on one thread.
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

  // The same in both spellings.
  void text(std::string_view text) { text_.append(text); }
  // `structure` is what travels, `name` what C++ calls it.
  void text(std::string_view structure, std::string_view name) {
    text_.append(spelling_ == Spelling::kStructure ? structure : name);
  }
  template <class T>
  void type() {
    Codec<T>::schema(*this);
  }
  // "a, b, c"
  template <class... T>
  void types() {
    bool first = true;
    ((first ? void() : text(", "), first = false, type<T>()), ...);
  }
  // False: the struct is open already (it contains itself), a reference to it was written instead.
  bool open_struct(std::string_view spelling);
  void close_struct();

  std::string take() { return std::move(text_); }

 private:
  const Spelling spelling_;
  std::string text_;
  std::vector<std::string_view> open_;
};

// What a function takes and gives.
struct Signature {
  std::string text;          // "(tensor, list<i64>) -> tensor", with names
  uint64_t fingerprint = 0;  // of the structure
};

namespace rpc_internal {

using Describe = void (*)(SchemaBuilder& schema);
Signature make_signature(Describe describe);

}  // namespace rpc_internal
}  // namespace weft
