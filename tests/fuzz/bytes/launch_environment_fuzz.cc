// The environment that a launcher sets, one NAME=value per line. If it is accepted, the rank must
// be inside its group.
#include <map>

#include "absl/strings/str_split.h"
#include "weft/launcher/launch_environment.h"
#include "weft/tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft::fuzz;
  std::map<std::string, std::string> variables;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(reinterpret_cast<const char*>(data), size), '\n')) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    variables.insert(variable);
  }
  const auto place =
      weft::read_launch_environment([&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        if (found == variables.end()) return std::nullopt;
        return found->second;
      });
  if (!place.ok()) {
    require_refusal(place.status());
    return 0;
  }
  require(place->rank < place->world_size && place->local_rank < place->local_world_size &&
              place->local_world_size <= place->world_size,
          "a rank outside of its group");
  require(!place->master_addr.empty() && !place->run_id.empty(), "a store without an address");
  require(place->master_port != 0 || place->world_size == 1, "a store without a port");
  return 0;
}
