#include "weft/tests/fuzz/fuzz.h"

#include <cstdio>
#include <cstdlib>

namespace weft::fuzz {

void finding(std::string_view what) {
  std::fprintf(stderr, "finding: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

void require_refusal(const absl::Status& status) {
  require(!status.ok(), "bad input was not refused");
  require(!status.message().empty(), "a refusal without a reason");
}

}  // namespace weft::fuzz
