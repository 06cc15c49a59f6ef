// The header of a state file. The input is a u32, the size of the data, and then the header. The
// tensors of an accepted header must tile the data. The header must be written again and then read
// without a change.
#include "weft/checkpoint/internal/safetensors_header.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::checkpoint_internal;

void require_same(const checkpoint_internal::SafetensorsHeader& a,
                  const checkpoint_internal::SafetensorsHeader& b) {
  require(a.metadata == b.metadata && a.tensors.size() == b.tensors.size(), "a header changes");
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const checkpoint_internal::TensorEntry &x = a.tensors[i], &y = b.tensors[i];
    require(x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && x.begin == y.begin &&
                x.end == y.end,
            "a tensor changes");
  }
}

void check(const checkpoint_internal::SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t reached = 0;
  for (const checkpoint_internal::TensorEntry& tensor : header.tensors) {
    require(tensor.begin == reached && tensor.end <= data_bytes, "tensors do not tile the data");
    require(
        checkpoint_internal::checked_bytes(tensor.dtype, tensor.shape) == tensor.end - tensor.begin,
        "a wrong size");
    reached = tensor.end;
  }
  require(reached == data_bytes, "bytes of no tensor");
  const auto text = checkpoint_internal::render_header(header);
  require(text.ok(), "what was read cannot be written");
  unsigned char length[8];
  std::memcpy(length, text->data(), sizeof(length));
  const auto size = checkpoint_internal::parse_header_length(length, text->size() + data_bytes);
  require(size.ok() && *size == text->size() - 8, "a length that is not the header's");
  const auto again =
      checkpoint_internal::parse_header(std::string_view(*text).substr(8), data_bytes);
  require(again.ok(), "what was written is refused");
  require_same(header, *again);
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  const uint64_t data_bytes = input.number<uint32_t>();
  const std::string_view json = input.rest();
  const auto header = weft::checkpoint_internal::parse_header(json, data_bytes);
  if (header.ok()) {
    check(*header, data_bytes);
  } else {
    require_refusal(header.status());
  }
  return 0;
}
