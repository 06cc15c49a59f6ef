#include "weft/comm/plain_traffic.h"

#include <algorithm>
#include <set>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"

namespace weft {

PlainTraffic plain_traffic_of_environment() {
  const absl::StatusOr<PlainTraffic> found = find_plain_traffic();
  if (found.ok()) return *found;
  C10_THROW_ERROR(ValueError, std::string(found.status().message()));
}

namespace comm_internal {

void check_plain_traffic(const std::string& group, const std::vector<std::string>& hosts,
                         const std::vector<PlainTraffic>& traffic, int self) {
  const size_t count = std::set<std::string>(hosts.begin(), hosts.end()).size();
  if (count == 1) return;
  const auto refuses = std::find(traffic.begin(), traffic.end(), PlainTraffic::kRefuse);
  if (refuses != traffic.end()) {
    C10_THROW_ERROR(ValueError,
                    absl::StrCat("process group '", group, "': its ranks are on ", count,
                                 " hosts, between which tensors travel in clear, and rank ",
                                 refuses - traffic.begin(),
                                 " has WEFT_SECURITY=mtls. WEFT_PLAIN_COLLECTIVES=allow on all "
                                 "ranks allows it (docs/security.md)"));
  }
  if (traffic[static_cast<size_t>(self)] == PlainTraffic::kWarn) {
    log_warning("process group '", group, "' sends tensors between ", count,
                " hosts in clear (docs/security.md)");
  }
}

}  // namespace comm_internal
}  // namespace weft
