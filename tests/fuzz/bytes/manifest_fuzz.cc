// The manifest of a checkpoint. It is read as it is, and again with the right checksum, or nearly
// every input would be refused. An accepted manifest must be written again and then read without a
// change.
#include <zlib.h>

#include "absl/strings/str_cat.h"
#include "weft/checkpoint/internal/manifest.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::checkpoint_internal;

std::string with_sum(std::string_view body) {
  const auto sum = static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const unsigned char*>(body.data()), body.size()));
  return absl::StrCat(absl::string_view(body.data(), body.size()), ",\n  \"crc32\": \"",
                      absl::Hex(sum, absl::kZeroPad8), "\"\n}\n");
}

void check(std::string_view text) {
  const auto manifest = checkpoint_internal::parse_manifest(text);
  if (!manifest.ok()) {
    require_refusal(manifest.status());
    return;
  }
  const auto written = checkpoint_internal::render_manifest(*manifest);
  require(written.ok(), "what was read cannot be written");
  const auto again = checkpoint_internal::parse_manifest(*written);
  require(again.ok(), "what was written is refused");
  require(checkpoint_internal::render_manifest(*again).value() == *written, "a manifest changes");
  require(again->info.step == manifest->info.step && again->info.seed == manifest->info.seed &&
              again->info.metadata == manifest->info.metadata &&
              again->info.incarnation == manifest->info.incarnation &&
              again->shards.size() == manifest->shards.size(),
          "a manifest changes");
}

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  weft::fuzz::check(text);
  weft::fuzz::check(weft::fuzz::with_sum(text));
  return 0;
}
