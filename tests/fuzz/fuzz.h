// Helpers that all fuzz targets share: reading an input piece by piece, and reporting a finding.
//
// Thread safety: none; one input at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"

namespace weft::fuzz {

// Prints what is wrong and aborts. libFuzzer then keeps the input, and the replay fails.
[[noreturn]] void finding(std::string_view what);

inline void require(bool holds, std::string_view what) {
  if (!holds) finding(what);
}
// Requires that a refusal is an error with a message.
void require_refusal(const absl::Status& status);

// Reads an input from its front. Missing bytes count as zeros, so every input is valid.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : text_(reinterpret_cast<const char*>(data), size) {}
  explicit Bytes(std::string_view text) : text_(text) {}

  bool empty() const { return text_.empty(); }
  // Little-endian.
  template <class T>
  T number() {
    static_assert(std::is_integral_v<T>);
    T value{};
    const std::string_view bytes = take(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  bool flag() { return (number<uint8_t>() & 1) != 0; }
  // Takes one byte and returns 0 to limit - 1. `limit` is at most 256.
  size_t below(size_t limit) { return number<uint8_t>() % limit; }
  std::string_view take(size_t size) {
    const std::string_view taken = text_.substr(0, size);
    text_.remove_prefix(taken.size());
    return taken;
  }
  // A u16 size and then that many bytes.
  std::string_view chunk() { return take(number<uint16_t>()); }
  std::string_view rest() { return take(text_.size()); }

 private:
  std::string_view text_;
};

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
