#include "weft/worker/store/tcp_port.h"

#include <algorithm>
#include <chrono>
#include <errno.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::worker_internal {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

constexpr std::chrono::milliseconds kFirstPause(5);
constexpr std::chrono::milliseconds kLongestPause(200);

std::string error_text(int error) { return strerror(error); }

// If `host` is empty: the addresses that stand for all interfaces.
absl::StatusOr<AddressList> resolve(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.empty() ? nullptr : host.c_str(), absl::StrCat(port).c_str(),
                             &hints, &found);
  if (rc == EAI_AGAIN) {
    return absl::UnavailableError(absl::StrCat("host '", host, "': ", gai_strerror(rc)));
  }
  if (rc != 0) return absl::NotFoundError(absl::StrCat("host '", host, "': ", gai_strerror(rc)));
  return AddressList(found, &freeaddrinfo);
}

absl::StatusOr<ListeningPort> listen_at(const addrinfo& address, const std::string& where) {
  Descriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat(where, ": ", error_text(errno)));
  const int on = 1;
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(where, ": the port is in use"));
    }
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", where, ": ", error_text(error)));
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return absl::UnavailableError(absl::StrCat(where, ": ", error_text(errno)));
  }
  ListeningPort result;
  result.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  result.socket = std::move(fd);
  return result;
}

// Returns 0 or errno.
int try_connect(const addrinfo& address, Clock::time_point deadline) {
  Descriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
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

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

int Descriptor::release() { return std::exchange(fd_, -1); }

void Descriptor::close() {
  if (fd_ >= 0) ::close(release());
}

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

std::optional<std::string> address_towards(const std::string& host, uint16_t port) {
  const absl::StatusOr<AddressList> addresses = resolve(host, port);
  for (const addrinfo* a = addresses.ok() ? addresses->get() : nullptr; a != nullptr;
       a = a->ai_next) {
    // Connecting a UDP socket sends nothing. It only chooses the route.
    const Descriptor fd(socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
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
      absl::StatusOr<ListeningPort> result = listen_at(*a, where);
      if (result.ok() || absl::IsAlreadyExists(result.status())) return result;
      problem = result.status();
    }
  }
  return problem;
}

absl::Status wait_until_reachable(const std::string& host, uint16_t port, absl::Duration timeout) {
  const Clock::time_point start = Clock::now();
  const auto limit = std::min<absl::Duration>(timeout, absl::Hours(24 * 365));
  const Clock::time_point deadline = start + absl::ToChronoNanoseconds(limit);
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
    if (Clock::now() + pause >= deadline) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return absl::DeadlineExceededError(absl::StrCat("nothing answers at ", host, ":", port,
                                                  " within ", absl::FormatDuration(timeout), ": ",
                                                  reason));
}

}  // namespace weft::worker_internal
