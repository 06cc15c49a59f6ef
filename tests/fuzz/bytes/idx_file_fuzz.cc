// A data file. The first byte says whether the rest is the gzip file itself or its unpacked
// content. The second byte is the number of dimensions asked for. An accepted file must hold what
// its header says.
#include <zlib.h>

#include "weft/examples/support/idx_file.h"
#include "weft/tests/fuzz/fuzz.h"
#include "weft/tests/fuzz/memory_file.h"

namespace weft::fuzz {
namespace {

std::string packed(std::string_view text) {
  std::string out(::compressBound(text.size()) + 64, '\0');
  z_stream stream = {};
  constexpr int kGzip = 16 + MAX_WBITS;
  require(::deflateInit2(&stream, 1, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  require(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib");
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  Bytes input(data, size);
  const bool pack = input.flag();
  const auto dimensions = static_cast<int>(1 + input.below(4));
  const std::string_view text = input.rest();
  const MemoryFile file(pack ? packed(text) : std::string(text));
  const auto read = weft::examples::read_idx_file(file.path(), dimensions);
  if (!read.ok()) {
    require_refusal(read.status());
    return 0;
  }
  require(read->shape.size() == static_cast<size_t>(dimensions), "other dimensions");
  uint64_t count = 1;
  for (const int64_t length : read->shape) count *= static_cast<uint64_t>(length);
  require(count == read->values.size(), "another number of values");
  if (pack) {
    const std::string_view values(reinterpret_cast<const char*>(read->values.data()), count);
    require(text.ends_with(values) && text.size() == count + 4 + 4 * read->shape.size(),
            "other values");
  }
  return 0;
}
