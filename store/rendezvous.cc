#include "weft/store/rendezvous.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/links/grpc_sockets.h"
#include "weft/sockets/tcp_port.h"
#include "weft/store/store_client.h"
#include "weft/store/store_server.h"

namespace weft {
namespace {

constexpr int kTriesForOneName = 10;
constexpr std::chrono::milliseconds kNamePause(200);  // until an unknown host is looked up again

bool is_on_this_host(const RendezvousOptions& options) {
  return options.security == SecurityMode::kAuto && is_loopback_name(options.host);
}

std::string tcp_address(const std::string& host, uint16_t port) {
  const bool bare_ipv6 = absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return bare_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

// Processes of one host that may only be those of this user need no certificates.
absl::StatusOr<StoreIdentity> identity_for(const RendezvousOptions& options,
                                           const std::string& address) {
  if (is_local(address) && options.security != SecurityMode::kAuto) {
    return absl::InvalidArgumentError(absl::StrCat("the store at ", address,
                                                   " is for WEFT_SECURITY=auto, not for ",
                                                   absl_view(to_string(options.security))));
  }
  if (is_local(address) || options.security == SecurityMode::kNone) return StoreIdentity{};
  if (options.identity.has_value()) return *options.identity;
  return find_store_identity(options.run_id);
}

absl::StatusOr<HostedStore> host_at(RendezvousOptions options, uint16_t port) {
  StoreServerOptions server;
  options.port = port;
  server.listen_address = rendezvous_address(options);
  WEFT_ASSIGN_OR_RETURN(const StoreIdentity identity, identity_for(options, server.listen_address));
  server.tls = identity.tls;
  server.proves_names = identity.proves_name;
  if (identity.proves_name) server.own_name = identity.tls->current()->name.worker;
  absl::StatusOr<std::unique_ptr<StoreServer>> started = StoreServer::start(server);
  if (absl::IsAlreadyExists(started.status())) {
    return absl::AlreadyExistsError(
        absl::StrCat("rendezvous store at ", tcp_address(options.host, port),
                     is_local(server.listen_address) ? ": another job of this host has the port"
                                                     : ": the port is in use"));
  }
  if (!started.ok()) {
    return prepend(absl::StrCat("rendezvous store at ", tcp_address(options.host, port), ": "),
                   started.status());
  }
  HostedStore result;
  result.port = port;
  if (const std::string& address = (*started)->address(); !is_local(address)) {
    uint32_t bound = 0;
    (void)absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &bound);
    result.port = static_cast<uint16_t>(bound);
  }
  result.store = std::make_unique<StoreHandle>(*std::move(started), options.call_timeout);
  return result;
}

absl::StatusOr<HostedStore> host_when_known(const RendezvousOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    absl::StatusOr<HostedStore> hosted = host_at(options, options.port);
    const absl::Duration passed = absl::FromChrono(std::chrono::steady_clock::now() - begin);
    if (!absl::IsNotFound(hosted.status()) || passed >= options.timeout) return hosted;
    std::this_thread::sleep_for(kNamePause);
  }
}

}  // namespace

std::string rendezvous_address(const RendezvousOptions& options) {
  if (!is_on_this_host(options)) return tcp_address(options.host, options.port);
  return absl::StrCat(absl_view(kLocalScheme), "weft-store-", options.port);
}

bool needs_certificates(const RendezvousOptions& options) {
  return !is_on_this_host(options) && options.security != SecurityMode::kNone;
}

absl::StatusOr<HostedStore> host_rendezvous_store(const RendezvousOptions& options) {
  if (!is_on_this_host(options)) return host_when_known(options);
  if (options.port != 0) return host_at(options, options.port);
  // A port that is free for TCP too, because the processes of the job may need it (MASTER_PORT).
  absl::StatusOr<HostedStore> hosted;
  for (int tries = 0; tries < kTriesForOneName; ++tries) {
    WEFT_ASSIGN_OR_RETURN(const ListeningPort free, listen_on(options.host, 0));
    hosted = host_at(options, free.port);
    if (!absl::IsAlreadyExists(hosted.status())) break;
  }
  return hosted;
}

absl::StatusOr<std::unique_ptr<StoreHandle>> connect_rendezvous_store(
    const RendezvousOptions& options) {
  auto store = connect_to_store(rendezvous_address(options), options);
  if (store.ok() || !is_on_this_host(options)) return store;
  return prepend(absl::StrCat(tcp_address(options.host, options.port), ": "), store.status());
}

absl::StatusOr<std::unique_ptr<StoreHandle>> connect_to_store(const std::string& address,
                                                              const RendezvousOptions& options) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StoreHandle> store, store_at(address, options));
  WEFT_RETURN_IF_ERROR(store->reach(options.timeout));
  return store;
}

absl::StatusOr<std::unique_ptr<StoreHandle>> store_at(const std::string& address,
                                                      const RendezvousOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const StoreIdentity identity, identity_for(options, address));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StoreClient> client,
                        StoreClient::create({.address = address, .tls = identity.tls}));
  return std::make_unique<StoreHandle>(std::move(client), options.call_timeout);
}

}  // namespace weft
