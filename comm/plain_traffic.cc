#include "weft/comm/plain_traffic.h"

#include <string>

#include <c10/util/Exception.h>

namespace weft {

PlainTraffic plain_traffic_of_environment() {
  const absl::StatusOr<PlainTraffic> found = find_plain_traffic();
  if (found.ok()) return *found;
  C10_THROW_ERROR(ValueError, std::string(found.status().message()));
}

}  // namespace weft
