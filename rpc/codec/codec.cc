#include "weft/rpc/codec/codec.h"

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {

void schema_of_ratio(SchemaBuilder& schema, std::string_view rep, intmax_t num, intmax_t den) {
  schema.text(absl::StrCat("duration<", absl_view(rep), ", ", num, "/", den, ">"));
}

void encode_block(Writer& writer, const void* data, size_t count, size_t element_size) {
  writer.scalar(static_cast<uint64_t>(count));
  if (count != 0) writer.bytes(data, count * element_size);
}

size_t decode_block_count(Reader& reader, size_t element_size) {
  const size_t count = reader.count();
  if (count > reader.remaining() / element_size) {
    reader.fail("a list of numbers is longer than its message");
    return 0;
  }
  return count;
}

}  // namespace weft::rpc_internal
