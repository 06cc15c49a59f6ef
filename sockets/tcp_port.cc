#include "weft/sockets/tcp_port.h"

#include <algorithm>
#include <chrono>
#include <errno.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

using SteadyClock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr std::chrono::milliseconds kFirstPause(5);
constexpr std::chrono::milliseconds kLongestPause(200);
constexpr int kTriesForOnePort = 10;

std::string error_text(int error) { return strerror(error); }

// If `host` is empty: the addresses that stand for all interfaces.
absl::StatusOr<AddressList> resolve(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.empty() ? nullptr : host.c_str(), absl::StrCat(port).c_str(),
                             &hints, &found);
  if (rc != 0) return absl::NotFoundError(absl::StrCat("host '", host, "': ", gai_strerror(rc)));
  return AddressList(found, &freeaddrinfo);
}

uint16_t port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void set_port(sockaddr& address, uint16_t port) {
  if (address.sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
}

// Whether an IPv6 socket refuses IPv4, and whether accepting blocks.
struct SocketMode {
  bool ipv6_only = false;
  bool blocking = true;
};

absl::StatusOr<ListeningPort> listen_at(const addrinfo& address, SocketMode mode,
                                        const std::string& where) {
  const int blocking = mode.blocking ? 0 : SOCK_NONBLOCK;
  FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | blocking, 0));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat(where, ": ", error_text(errno)));
  const int on = 1;
  const int only = mode.ipv6_only;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(where, ": the port is in use"));
    }
    if (error == EADDRNOTAVAIL) {
      return absl::UnavailableError(
          absl::StrCat(where, ": this machine does not have the address"));
    }
    return absl::UnavailableError(absl::StrCat(where, ": cannot listen: ", error_text(error)));
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return absl::UnavailableError(absl::StrCat(where, ": ", error_text(errno)));
  }
  return ListeningPort{std::move(fd), port_of(bound)};
}

bool same_address(const addrinfo& a, const addrinfo& b) {
  if (a.ai_family != b.ai_family) return false;
  if (a.ai_family == AF_INET6) {
    const auto& x = reinterpret_cast<const sockaddr_in6&>(*a.ai_addr);
    const auto& y = reinterpret_cast<const sockaddr_in6&>(*b.ai_addr);
    return IN6_ARE_ADDR_EQUAL(&x.sin6_addr, &y.sin6_addr) && x.sin6_scope_id == y.sin6_scope_id;
  }
  return reinterpret_cast<const sockaddr_in&>(*a.ai_addr).sin_addr.s_addr ==
         reinterpret_cast<const sockaddr_in&>(*b.ai_addr).sin_addr.s_addr;
}

// The wildcard, and IPv4 addresses in IPv6's form.
bool takes_ipv4(const addrinfo& a) {
  if (a.ai_family != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(*a.ai_addr).sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&address) || IN6_IS_ADDR_V4MAPPED(&address);
}

// With port 0, all get the port of the first.
absl::StatusOr<std::vector<ListeningPort>> listen_at_all(addrinfo* addresses,
                                                         const std::string& host, uint16_t port) {
  std::vector<ListeningPort> result;
  absl::Status problem = absl::UnavailableError(absl::StrCat(host, ": no address"));
  for (addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    bool again = false;  // a file of hosts may name an address twice
    for (addrinfo* b = addresses; b != a; b = b->ai_next) again |= same_address(*a, *b);
    if (again) continue;
    const uint16_t wanted = result.empty() ? port : result.front().port;
    set_port(*a->ai_addr, wanted);
    absl::StatusOr<ListeningPort> listening = listen_at(
        *a, {.ipv6_only = !takes_ipv4(*a), .blocking = false}, absl::StrCat(host, ":", wanted));
    if (listening.ok()) {
      result.push_back(*std::move(listening));
      continue;
    }
    problem = listening.status();
    if (absl::IsAlreadyExists(problem)) return problem;
  }
  if (result.empty()) return problem;
  return result;
}

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

bool all_loopback(const addrinfo* addresses) {
  for (const addrinfo* a = addresses; a != nullptr; a = a->ai_next) {
    if (a->ai_family == AF_INET) {
      const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(*a->ai_addr);
      if ((ntohl(ipv4.sin_addr.s_addr) >> 24) != 127) return false;
    } else if (a->ai_family == AF_INET6) {
      if (!IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(*a->ai_addr).sin6_addr)) {
        return false;
      }
    }
  }
  return true;
}

// IPv6 comes first: its wildcard also takes IPv4. IPv4 follows for machines without IPv6.
absl::StatusOr<std::vector<ListeningPort>> listen_everywhere(const addrinfo& addresses,
                                                             uint16_t port) {
  absl::Status problem = absl::UnavailableError("this machine has no interface");
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = &addresses; a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      absl::StatusOr<ListeningPort> listening =
          listen_at(*a, {.ipv6_only = false, .blocking = false}, absl::StrCat("port ", port));
      if (!listening.ok()) {
        problem = listening.status();
        if (absl::IsAlreadyExists(problem)) return problem;
        continue;
      }
      std::vector<ListeningPort> result;
      result.push_back(*std::move(listening));
      return result;
    }
  }
  return problem;
}

// Returns 0 or errno.
int try_connect(const addrinfo& address, SteadyClock::time_point deadline) {
  FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - SteadyClock::now());
  pollfd waiting = {fd.get(), POLLOUT, 0};
  const int rc = poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 1, 1 << 30)));
  if (rc < 0) return errno;
  if (rc == 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

}  // namespace

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || absl::StartsWith(host, "127.");
}

std::optional<std::string> address_towards(const std::string& host, uint16_t port) {
  const absl::StatusOr<AddressList> addresses = resolve(host, port);
  for (const addrinfo* a = addresses.ok() ? addresses->get() : nullptr; a != nullptr;
       a = a->ai_next) {
    // Connecting a UDP socket sends nothing. It only chooses the route.
    const FileDescriptor fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST];
    if (!fd.valid() || connect(fd.get(), a->ai_addr, a->ai_addrlen) != 0 ||
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0 ||
        is_loopback_name(text)) {
      continue;
    }
    return own.ss_family == AF_INET6 ? absl::StrCat("[", text, "]") : std::string(text);
  }
  return std::nullopt;
}

std::string host_towards(const std::string& host, uint16_t port) {
  if (const std::optional<std::string> address = address_towards(host, port)) return *address;
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "127.0.0.1";
}

absl::StatusOr<ListeningPort> listen_on(const std::string& host, uint16_t port) {
  const std::string where = absl::StrCat(host, ":", port);
  WEFT_RETURN_IF_ERROR(resolve(host, port).status());
  WEFT_ASSIGN_OR_RETURN(const AddressList addresses,
                        resolve(is_loopback_name(host) ? host : "", port));
  // For all interfaces, IPv6 comes first: its wildcard also takes IPv4. IPv4 follows for machines
  // without IPv6.
  absl::Status problem = absl::UnavailableError(absl::StrCat(where, ": no address"));
  for (const int family : {is_loopback_name(host) ? AF_INET : AF_INET6, AF_INET, AF_INET6}) {
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      absl::StatusOr<ListeningPort> result = listen_at(*a, {}, where);
      if (result.ok() || absl::IsAlreadyExists(result.status())) return result;
      problem = result.status();
    }
  }
  return problem;
}

absl::StatusOr<std::vector<ListeningPort>> listen_on_addresses_of(const std::string& host,
                                                                  uint16_t port) {
  WEFT_ASSIGN_OR_RETURN(const AddressList addresses, resolve(without_brackets(host), port));
  // A free port of one address may be taken at another one.
  absl::StatusOr<std::vector<ListeningPort>> result;
  for (int tries = 0; tries < kTriesForOnePort; ++tries) {
    result = listen_at_all(addresses.get(), host, port);
    if (port != 0 || !absl::IsAlreadyExists(result.status())) break;
  }
  return result;
}

absl::StatusOr<std::vector<ListeningPort>> listen_for_others(const std::string& host,
                                                             uint16_t port) {
  const std::string bare = without_brackets(host);
  if (is_loopback_name(bare)) return listen_on_addresses_of(host, port);
  WEFT_ASSIGN_OR_RETURN(const AddressList addresses, resolve(bare, port));
  if (!all_loopback(addresses.get())) {
    absl::StatusOr<std::vector<ListeningPort>> result = listen_on_addresses_of(host, port);
    if (!absl::IsUnavailable(result.status())) return result;
  }
  WEFT_ASSIGN_OR_RETURN(const AddressList everywhere, resolve("", port));
  return listen_everywhere(*everywhere, port);
}

absl::StatusOr<AcceptedTcp> accept_tcp(int listening) {
  sockaddr_storage far = {};
  socklen_t size = sizeof(far);
  while (true) {
    FileDescriptor socket(::accept4(listening, reinterpret_cast<sockaddr*>(&far), &size,
                                    SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      char text[NI_MAXHOST];
      const int rc = getnameinfo(reinterpret_cast<sockaddr*>(&far), size, text, sizeof(text),
                                 nullptr, 0, NI_NUMERICHOST);
      if (rc != 0) return absl::InternalError(absl::StrCat("accept: ", gai_strerror(rc)));
      // An IPv6 socket shows an IPv4 address with this prefix.
      const std::string_view address = text;
      constexpr std::string_view kMapped = "::ffff:";
      const bool mapped = address.starts_with(kMapped) && address.find('.') != address.npos;
      return AcceptedTcp{std::move(socket),
                         std::string(mapped ? address.substr(kMapped.size()) : address),
                         port_of(far)};
    }
    switch (errno) {
      case EINTR:
      // Errors that the connection had before it was accepted (accept(2)). It is gone.
      case ECONNABORTED:
      case EHOSTDOWN:
      case EHOSTUNREACH:
      case ENETDOWN:
      case ENETUNREACH:
      case ENONET:
      case ENOPROTOOPT:
      case EOPNOTSUPP:
      case EPERM:
      case EPROTO:
        continue;
      case EAGAIN:
        return absl::DeadlineExceededError("accept: nobody waits");
      case EMFILE:
      case ENFILE:
      case ENOMEM:
      case ENOBUFS:
        return absl::ResourceExhaustedError(absl::StrCat("accept: ", error_text(errno)));
      default:
        return absl::InternalError(absl::StrCat("accept: ", error_text(errno)));
    }
  }
}

absl::Status wait_until_reachable(const std::string& host, uint16_t port, absl::Duration timeout) {
  const SteadyClock::time_point start = SteadyClock::now();
  const auto limit = std::min<absl::Duration>(timeout, absl::Hours(24 * 365));
  const SteadyClock::time_point deadline = start + absl::ToChronoNanoseconds(limit);
  std::chrono::milliseconds pause = kFirstPause;
  std::string reason;
  while (true) {
    absl::StatusOr<AddressList> addresses = resolve(host, port);
    reason = std::string(addresses.status().message());
    if (addresses.ok()) {
      for (const addrinfo* a = addresses->get(); a != nullptr; a = a->ai_next) {
        const int error = try_connect(*a, deadline);
        if (error == 0) return absl::OkStatus();
        reason = error_text(error);
      }
    }
    if (SteadyClock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::DeadlineExceededError(absl::StrCat("nothing answers at ", host, ":", port,
                                                  " within ", absl::FormatDuration(timeout), ": ",
                                                  reason));
}

}  // namespace weft
