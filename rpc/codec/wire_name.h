// Derives the names by which other workers know functions and types from the compiler's spelling.
//
// g++ and clang agree on functions, methods and classes in namespaces. They differ on inline
// namespaces, and clang leaves out the arguments of function templates. Register such functions,
// and overloads, under a name of your own (WEFT_REGISTER_FUNCTION_AS).
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

// A 64-bit hash that replaces a text on the wire and in tables.
constexpr uint64_t hash64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a; the mixing below makes each bit depend on all
  for (char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  }
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9ull;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBull;
  return hash ^ (hash >> 31);
}

namespace rpc_internal {

// The part of __PRETTY_FUNCTION__ after `key`, without "; std::string_view = ...", which g++ adds.
constexpr std::string_view argument_in(std::string_view pretty, std::string_view key) {
  const size_t begin = pretty.find(key) + key.size();
  size_t end = pretty.find("; std::", begin);
  if (end == std::string_view::npos) end = pretty.rfind(']');
  return pretty.substr(begin, end - begin);
}

template <auto weft_value>
constexpr std::string_view value_spelling() {
  return argument_in(__PRETTY_FUNCTION__, "weft_value = ");
}
template <class WeftType>
constexpr std::string_view type_spelling() {
  return argument_in(__PRETTY_FUNCTION__, "WeftType = ");
}

// Returns "lib::add" for "&lib::{anonymous}::add".
std::string wire_name(std::string_view spelling);
// Returns "scale" for "lib::scale".
std::string_view last_component(std::string_view name);

}  // namespace rpc_internal
}  // namespace weft
