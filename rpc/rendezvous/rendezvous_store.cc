#include "weft/rpc/rendezvous/rendezvous_store.h"

#include <utility>

#include "weft/base/status.h"

namespace weft {

absl::StatusOr<std::vector<std::optional<StoredValue>>> RendezvousStore::read(
    const std::vector<std::string>& keys) {
  std::vector<std::optional<StoredValue>> values;
  for (const std::string& key : keys) {
    WEFT_ASSIGN_OR_RETURN(std::optional<std::string> value, try_get(key));
    values.emplace_back();
    if (value.has_value()) values.back() = {.value = *std::move(value), .author = ""};
  }
  return values;
}

}  // namespace weft
