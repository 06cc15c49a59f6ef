#include "weft/store/job/job_store.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/sockets/listen_host.h"
#include "weft/sockets/tcp_port.h"
#include "weft/store/hosted_stores.h"
#include "weft/store/job/tcp_store_notice.h"
#include "weft/store/rendezvous.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kBetweenNotices(100);

// By which host the others can reach this process.
absl::StatusOr<std::string> own_host(const LaunchEnvironment& environment) {
  WEFT_ASSIGN_OR_RETURN(std::string named, find_listen_host());
  if (!named.empty()) return named;
  if (is_loopback_name(environment.master_addr)) return environment.master_addr;
  return host_towards(environment.master_addr, environment.master_port);
}

RendezvousOptions options_of(const LaunchEnvironment& environment, SecurityMode security) {
  RendezvousOptions options;
  options.host = environment.master_addr;
  options.port = environment.master_port;
  options.security = security;
  options.run_id = environment.run_id;
  return options;
}

TcpStoreNotice notice_of(const LaunchEnvironment& environment) {
  return {environment.master_addr, environment.master_port,
          absl::StrCat("weft/store/", environment.run_id, "/", environment.group_epoch)};
}

// What the users in this process that share a hosted store must have in common. With a launcher's
// TCPStore, the notice tells the others only of the store of one job and epoch.
std::string place_of(const LaunchEnvironment& environment, const RendezvousOptions& options) {
  return absl::StrCat(absl_view(to_string(options.security)), " ", rendezvous_address(options),
                      environment.agent_hosts_store ? notice_of(environment).key : "");
}

absl::StatusOr<std::unique_ptr<StoreHandle>> host(const RendezvousOptions& options) {
  WEFT_ASSIGN_OR_RETURN(HostedStore hosted, host_rendezvous_store(options));
  return std::move(hosted.store);
}

// The launcher serves a TCPStore, which tells the others where rank 0 hosts.
absl::StatusOr<std::unique_ptr<StoreHandle>> host_and_tell(const LaunchEnvironment& environment,
                                                           RendezvousOptions options) {
  WEFT_ASSIGN_OR_RETURN(options.host, own_host(environment));
  options.port = 0;
  WEFT_ASSIGN_OR_RETURN(HostedStore hosted, host_rendezvous_store(options));
  options.port = hosted.port;
  WEFT_RETURN_IF_ERROR(
      post_notice(notice_of(environment), rendezvous_address(options), options.timeout));
  return std::move(hosted.store);
}

// The notice may be an earlier one, of a store that is gone, until rank 0 has posted its own. So
// this reads it again after each dial that failed.
absl::StatusOr<std::shared_ptr<StoreHandle>> connect_as_told(const LaunchEnvironment& environment,
                                                             const RendezvousOptions& options) {
  constexpr absl::Duration kOneDial = absl::Seconds(2);
  const auto begin = std::chrono::steady_clock::now();
  const auto left = [&] {
    return options.timeout - absl::FromChrono(std::chrono::steady_clock::now() - begin);
  };
  absl::Status last = absl::DeadlineExceededError("no time is left");
  while (left() > absl::ZeroDuration()) {
    const absl::StatusOr<std::string> address = read_notice(notice_of(environment), left());
    if (!address.ok()) return absl::IsDeadlineExceeded(last) ? address.status() : last;
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<StoreHandle> store, store_at(*address, options));
    last = store->reach(std::min(left(), kOneDial));
    if (last.ok()) return store;
    std::this_thread::sleep_for(kBetweenNotices);
  }
  return last;
}

}  // namespace

absl::StatusOr<std::shared_ptr<StoreHandle>> open_job_store(const LaunchEnvironment& environment,
                                                            SecurityMode security,
                                                            absl::Duration timeout) {
  RendezvousOptions options = options_of(environment, security);
  options.timeout = timeout;
  options.call_timeout = std::min(timeout, options.call_timeout);
  if (!environment.store.empty()) return connect_to_store(environment.store, options);
  if (environment.rank != 0) {
    if (environment.agent_hosts_store) return connect_as_told(environment, options);
    return connect_rendezvous_store(options);
  }
  const auto make = [&] {
    return environment.agent_hosts_store ? host_and_tell(environment, options) : host(options);
  };
  if (options.port == 0) return make();  // another one each time
  return share_hosted_store(place_of(environment, options), make);
}

void keep_job_store(const LaunchEnvironment& environment, SecurityMode security) {
  keep_hosted_store(place_of(environment, options_of(environment, security)));
}

}  // namespace weft
