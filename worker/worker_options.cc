#include "weft/worker/worker_options.h"

#include <optional>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/environment.h"
#include "weft/base/rpc_error.h"
#include "weft/base/status.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/security/rights/access.h"
#include "weft/sockets/listen_host.h"
#include "weft/sockets/tcp_port.h"

namespace weft {
namespace {

constexpr char kSameHost[] = "WEFT_SAME_HOST";
constexpr char kPolicyFile[] = "WEFT_POLICY_FILE";
constexpr char kReadyFile[] = "WEFT_READY_FILE";
constexpr char kNewestProtocol[] = "WEFT_NEWEST_PROTOCOL";

// "" if the variable is not set.
std::string path_in(const char* variable) {
  const std::optional<std::string> path = read_process_environment(variable);
  if (path.has_value() && path->empty()) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("environment variable ", variable, " is set and empty")));
  }
  return path.value_or("");
}

}  // namespace

WorkerOptions WorkerOptions::from_env() {
  absl::StatusOr<LaunchEnvironment> place = read_launch_environment();
  if (!place.ok()) throw RpcError(place.status());
  WorkerOptions options;
  options.place = *std::move(place);
  const std::string same_host = read_process_environment(kSameHost).value_or("auto");
  if (same_host != "auto" && same_host != "off") {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("environment variable ", kSameHost, "='", same_host, "' is not auto or off")));
  }
  if (same_host == "off") options.same_host = SameHost::kOff;
  const absl::StatusOr<Security> security = find_security_mode();
  if (!security.ok()) throw RpcError(security.status());
  options.security = *security;
  absl::StatusOr<std::string> listen_host = find_listen_host();
  if (!listen_host.ok()) throw RpcError(listen_host.status());
  options.listen_host = *std::move(listen_host);
  options.policy_file = path_in(kPolicyFile);
  options.ready_file = path_in(kReadyFile);
  if (!options.ready_file.empty() && options.place.local_world_size > 1) {
    absl::StrAppend(&options.ready_file, ".", options.place.local_rank);
  }
  if (const auto newest = read_process_environment(kNewestProtocol);
      newest.has_value() && !absl::SimpleAtoi(*newest, &options.newest_protocol)) {
    throw RpcError(absl::InvalidArgumentError(
        absl::StrCat("environment variable ", kNewestProtocol, "='", *newest, "' is no number")));
  }
  return options;
}

std::string WorkerOptions::effective_name() const {
  return name.empty() ? absl::StrCat("worker", place.rank) : name;
}

std::string WorkerOptions::effective_role() const {
  return place.role_name.empty() ? "default" : place.role_name;
}

bool WorkerOptions::stays_on_host() const {
  const std::string& store_host = place.master_addr;
  return listen_host.empty() && (store_host.empty() || is_loopback_name(store_host));
}

std::string WorkerOptions::effective_listen_host() const {
  if (!listen_host.empty()) return listen_host;
  if (stays_on_host()) return "127.0.0.1";
  return host_towards(place.master_addr, place.master_port);
}

absl::Status WorkerOptions::validate() const {
  if (absl::Status status = check_worker_name(effective_name()); !status.ok()) return status;
  if (absl::Status status = check_role(effective_role()); !status.ok()) {
    return prepend("ROLE_NAME: ", status);
  }
  WEFT_RETURN_IF_ERROR(lease.validate());
  if (dynamic && name.empty()) {
    return absl::InvalidArgumentError("a worker of a dynamic group needs a name of its own");
  }
  if (!dynamic && (place.world_size == 0 || place.rank >= place.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", place.rank, " is not below world size ", place.world_size));
  }
  if (threads == 0 || max_threads < threads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "threads = ", threads, ", max_threads = ", max_threads, ": 0 < threads <= max_threads"));
  }
  if (call_credits == 0 || byte_credits == 0) {
    return absl::InvalidArgumentError(absl::StrCat("call_credits = ", call_credits,
                                                   ", byte_credits = ", byte_credits,
                                                   ": both must be above 0"));
  }
  if (newest_protocol < kProtocols.oldest || newest_protocol > kProtocols.newest) {
    return absl::InvalidArgumentError(absl::StrCat("newest_protocol = ", newest_protocol,
                                                   " (WEFT_NEWEST_PROTOCOL) is not ",
                                                   kProtocols.oldest, " to ", kProtocols.newest));
  }
  if (spin < Nanoseconds::zero() || spin > std::chrono::seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("spin = ", spin.count(), " ns is not within 0 and 1 s"));
  }
  return absl::OkStatus();
}

}  // namespace weft
