#include "weft/rpc/rendezvous/worker_info.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "weft/base/log.h"

namespace weft {
namespace {

constexpr size_t kMaxNameLength = 127;

}  // namespace

absl::Status check_worker_name(std::string_view name) {
  const bool good = !name.empty() && name.size() <= kMaxNameLength &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '_' || c == ':' || c == '-' || c == '.';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "worker name '", printable(name.substr(0, kMaxNameLength)), "' of ", name.size(),
      " characters: a name is 1 to ", kMaxNameLength, " letters, digits and any of _ : - ."));
}

}  // namespace weft
