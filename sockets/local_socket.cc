#include "weft/sockets/local_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft {
namespace {

using TimePoint = LocalSocket::TimePoint;

constexpr int kBacklog = 1024;
constexpr std::string_view kPrefix = "weft-";

absl::Status failed(std::string_view call, int error_number) {
  const absl::Status named =
      absl::ErrnoToStatus(error_number, absl::StrCat("local socket: ", absl_view(call)));
  const absl::string_view text = named.message();
  switch (error_number) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
      return absl::UnavailableError(text);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ETOOMANYREFS:
      return absl::ResourceExhaustedError(text);
    case EMSGSIZE:
      return absl::InvalidArgumentError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status late(std::string_view what) {
  return absl::DeadlineExceededError(
      absl::StrCat("local socket: ", absl_view(what), " took longer than allowed"));
}

// Waits until the descriptor is ready for `events`, or has an error.
absl::Status wait_for(int descriptor, short events, TimePoint deadline, std::string_view what) {
  while (true) {
    int patience = -1;
    if (deadline != TimePoint::max()) {
      const TimePoint now = std::chrono::steady_clock::now();
      if (now >= deadline) return late(what);
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
      patience = static_cast<int>(std::min<int64_t>(left.count(), 60'000));
    }
    pollfd one = {descriptor, events, 0};
    const int ready = ::poll(&one, 1, patience);
    if (ready > 0) return absl::OkStatus();  // the caller's next call reports an error, if any
    if (ready < 0 && errno != EINTR) return failed("poll", errno);
  }
}

absl::StatusOr<std::pair<sockaddr_un, socklen_t>> address_of(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // A first byte of 0 marks an abstract name, so the name starts at the second.
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("local socket: '", name, "' is no name of a listener"));
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return std::pair(address,
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

absl::StatusOr<FileDescriptor> open_socket(LocalSocket::Kind kind) {
  const int type = kind == LocalSocket::Kind::kStream ? SOCK_STREAM : SOCK_SEQPACKET;
  FileDescriptor descriptor(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!descriptor.valid()) return failed("socket", errno);
  return descriptor;
}

std::string random_name() {
  std::random_device random;
  const auto draw = [&random] { return (uint64_t{random()} << 32) | random(); };
  return absl::StrCat(absl_view(kPrefix), absl::Hex(draw(), absl::kZeroPad16),
                      absl::Hex(draw(), absl::kZeroPad16));
}

// The pidfd of the far end. Invalid if the kernel does not report the end of a process.
absl::StatusOr<FileDescriptor> process_of(int socket, pid_t process) {
  constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, since Linux 6.5
  int descriptor = -1;
  socklen_t size = sizeof(descriptor);
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &descriptor, &size) == 0) {
    return FileDescriptor(descriptor);
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) return failed("SO_PEERPIDFD", errno);
  if (errno != ENOPROTOOPT) return FileDescriptor();
  // An older kernel. If the process has died already, another one may have its number by now. Then
  // the end of that one is reported instead.
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

}  // namespace

// ---- one connection

absl::StatusOr<LocalSocket> LocalSocket::known(FileDescriptor descriptor, Kind kind) {
  ucred who = {};
  socklen_t size = sizeof(who);
  if (::getsockopt(descriptor.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    return failed("SO_PEERCRED", errno);
  }
  if (who.uid != ::geteuid() && who.uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "local socket: process ", who.pid, " belongs to user ", who.uid, ", not to ", ::geteuid()));
  }
  FileDescriptor process;
  if (kind == Kind::kMessages) {
    WEFT_ASSIGN_OR_RETURN(process, process_of(descriptor.get(), who.pid));
  }
  return LocalSocket(std::move(descriptor), std::move(process), who.pid);
}

absl::StatusOr<LocalSocket> LocalSocket::connect(const std::string& name, TimePoint deadline,
                                                 Kind kind) {
  WEFT_ASSIGN_OR_RETURN(const auto address, address_of(name));
  WEFT_ASSIGN_OR_RETURN(FileDescriptor descriptor, open_socket(kind));
  while (::connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&address.first),
                   address.second) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return failed(absl::StrCat("connect to ", name), errno);
    // The listener's queue is full. The kernel does not signal when it has room again.
    if (std::chrono::steady_clock::now() >= deadline) return late("connecting");
    ::poll(nullptr, 0, 1);
  }
  return known(std::move(descriptor), kind);
}

absl::Status LocalSocket::send(std::string_view bytes, std::span<const int> descriptors,
                               TimePoint deadline) {
  if (bytes.empty() || bytes.size() > kMostBytes || descriptors.size() > kMostDescriptors) {
    return absl::InvalidArgumentError(absl::StrCat(
        "local socket: a message has 1 to ", kMostBytes, " bytes and at most ", kMostDescriptors,
        " descriptors, not ", bytes.size(), " and ", descriptors.size()));
  }
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (::sendmsg(descriptor_.get(), &message, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return failed("sendmsg", errno);
    WEFT_RETURN_IF_ERROR(wait_for(descriptor_.get(), POLLOUT, deadline, "sending"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalSocket::Message> LocalSocket::receive(TimePoint deadline) {
  std::string bytes(kMostBytes, '\0');
  iovec part = {bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
  msghdr message = {};
  ssize_t size;
  while (true) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    size = ::recvmsg(descriptor_.get(), &message, MSG_CMSG_CLOEXEC);
    if (size >= 0) break;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return failed("recvmsg", errno);
    WEFT_RETURN_IF_ERROR(wait_for(descriptor_.get(), POLLIN, deadline, "receiving"));
  }
  // Take the descriptors before any check: this process owns them now, and must close them also if
  // the message is refused.
  Message received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number;
      std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(number);
    }
  }
  if (size == 0) return absl::UnavailableError("local socket: the far end has closed it");
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("local socket: a message of more than ", kMostBytes, " bytes came"));
  }
  // The kernel also sets this flag if this process may not open more descriptors.
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::ResourceExhaustedError("local socket: not all descriptors of a message came");
  }
  bytes.resize(static_cast<size_t>(size));
  received.bytes = std::move(bytes);
  return received;
}

bool LocalSocket::closed_by_peer() const {
  pollfd both[] = {{descriptor_.get(), POLLRDHUP, 0}, {process_.get(), POLLIN, 0}};
  return ::poll(both, 2, 0) > 0;
}

void LocalSocket::shut_down_sending() { ::shutdown(descriptor_.get(), SHUT_WR); }

void LocalSocket::shut_down() { ::shutdown(descriptor_.get(), SHUT_RDWR); }

// ---- the listener

absl::StatusOr<LocalListener> LocalListener::create(LocalSocket::Kind kind) {
  return create_named(random_name(), kind);
}

absl::StatusOr<LocalListener> LocalListener::create_named(const std::string& name,
                                                          LocalSocket::Kind kind) {
  if (!is_name(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("local socket: '", name, "' is no name of a listener"));
  }
  WEFT_ASSIGN_OR_RETURN(const auto address, address_of(name));
  WEFT_ASSIGN_OR_RETURN(FileDescriptor descriptor, open_socket(kind));
  if (::bind(descriptor.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) !=
      0) {
    if (errno != EADDRINUSE) return failed("bind", errno);
    return absl::AlreadyExistsError(absl::StrCat("local socket: another process is '", name, "'"));
  }
  if (::listen(descriptor.get(), kBacklog) != 0) return failed("listen", errno);
  return LocalListener(std::move(descriptor), name, kind);
}

bool LocalListener::is_name(std::string_view name) {
  constexpr size_t kMost = 64;
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
  };
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.size() <= kPrefix.size() + kMost &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), fits);
}

absl::StatusOr<LocalSocket> LocalListener::accept(TimePoint deadline) {
  while (true) {
    FileDescriptor accepted(
        ::accept4(descriptor_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.valid()) {
      absl::StatusOr<LocalSocket> socket = LocalSocket::known(std::move(accepted), kind_);
      if (socket.ok() || !absl::IsPermissionDenied(socket.status())) return socket;
      // Another user who dials without end must not keep this thread here.
      if (std::chrono::steady_clock::now() >= deadline) return late("accepting");
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno != EAGAIN) return failed("accept", errno);
    WEFT_RETURN_IF_ERROR(wait_for(descriptor_.get(), POLLIN, deadline, "accepting"));
  }
}

}  // namespace weft
