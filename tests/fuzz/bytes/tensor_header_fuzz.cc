// The headers of a message's tensors. The input is the number of payloads, their sizes (u16 each),
// and the headers. Accepted headers must be written as the same bytes and fit their payloads.
#include "weft/rpc/transport/tensor_header.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

// Counts the elements independently of the codec.
size_t elements(const TensorHeader& header, size_t first, size_t count) {
  for (size_t i = first; i < header.sizes.size(); ++i) {
    require(header.sizes[i] >= 0, "a negative size");
    require(!__builtin_mul_overflow(count, static_cast<size_t>(header.sizes[i]), &count),
            "sizes overflow");
  }
  return count;
}

void check(const TensorHeader& header, const std::vector<size_t>& payloads) {
  require(header.sizes.size() <= TensorHeader::kMaxDimensions, "too many dimensions");
  if (header.layout == WireLayout::kUndefined) {
    require(header.payload_count == 0 && header.inlined.empty(), "undefined, but with data");
    return;
  }
  const size_t unit = element_size(header.type);
  require(unit > 0, "an unknown type");
  if (header.layout == WireLayout::kDense) {
    const size_t bytes =
        header.payload_count == 1 ? payloads[header.first_payload] : header.inlined.size();
    require(elements(header, 0, unit) == bytes, "a dense tensor of another size than its data");
    return;
  }
  const auto sparse = static_cast<size_t>(header.sparse_dimensions);
  const auto nnz = static_cast<size_t>(header.nnz);
  require(header.payload_count == 2 && sparse <= header.sizes.size(), "not sparse");
  require(payloads[header.first_payload] == 8 * sparse * nnz, "indices of another size");
  require(payloads[header.first_payload + 1] == elements(header, sparse, unit * nnz),
          "values of another size");
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  std::vector<size_t> payloads(input.below(6));
  for (size_t& payload : payloads) payload = input.number<uint16_t>();
  const std::string_view text = input.rest();
  const auto headers = weft::parse_tensor_headers(text, payloads);
  if (!headers.ok()) {
    require_refusal(headers.status());
    return 0;
  }
  std::string written;
  for (const weft::TensorHeader& header : *headers) {
    check(header, payloads);
    const bool inlined = header.layout == weft::WireLayout::kDense && header.payload_count == 0;
    weft::append_tensor_header(header, inlined, written);
  }
  require(written == text, "the headers are written differently");
  return 0;
}
