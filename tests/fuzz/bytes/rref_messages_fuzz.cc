// Messages about references. The first byte chooses among message, reference, creation and target,
// and the rest is decoded. An accepted value must be encoded again and then decoded without a
// change.
#include "weft/rref/internal/rref_wire.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::rref_internal;

template <class Decode>
void check(std::string_view bytes, Decode decode) {
  const auto value = decode(bytes);
  if (!value.ok()) {
    require_refusal(value.status());
    return;
  }
  const std::string written = encode(*value);
  const auto again = decode(written);
  require(again.ok(), "what was written is refused");
  require(encode(*again) == written, "what was written is read as something else");
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  switch (input.below(4)) {
    case 0:
      check(input.rest(), decode_message);
      break;
    case 1:
      check(input.rest(), decode_reference);
      break;
    case 2:
      check(input.rest(), decode_creation);
      break;
    default:
      check(input.rest(), decode_target);
  }
  return 0;
}
