#include "weft/links/grpc_sockets.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "weft/base/status.h"

namespace weft {
namespace {

// An honest dialler gives up earlier (AgentOptions::connect_timeout).
constexpr Nanoseconds kProvesWithin = std::chrono::seconds(20);
// The kernel ends a connection whose far end has acknowledged nothing for so long. gRPC sets this
// only on sockets that it has made itself (kGiveUpArguments, grpc_handshake.h).
constexpr int kUserTimeoutMs = 30'000;
constexpr LocalSocket::TimePoint kAtOnce = LocalSocket::TimePoint::min();

absl::StatusOr<FileDescriptor> second_of(const FileDescriptor& connection) {
  FileDescriptor second(::fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!second.valid()) return absl::ErrnoToStatus(errno, "a second descriptor of a connection");
  return second;
}

std::string key_of(std::string_view address, uint16_t port) {
  // gRPC writes the zone of a link-local address in another way than the kernel.
  return absl::StrCat(absl_view(address.substr(0, address.find('%'))), " ", port);
}

// gRPC writes ipv4:127.0.0.1:80 and ipv6:%5B::1%5D:80. Empty: it is no TCP address.
std::string key_of_grpc(std::string_view peer) {
  const std::string text =
      absl::StrReplaceAll(absl_view(peer), {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  const size_t scheme = text.find(':');
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (scheme == std::string::npos || scheme == colon ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port)) {
    return "";
  }
  return key_of(std::string_view(text).substr(scheme + 1, colon - scheme - 1),
                static_cast<uint16_t>(port));
}

}  // namespace

bool is_local(std::string_view address) { return address.starts_with(kLocalScheme); }

absl::Status GrpcSockets::listen(Accept accept, Listen open) {
  accept_ = std::move(accept);
  WEFT_RETURN_IF_ERROR(local() ? listen_locally() : listen_on_tcp(open));
  WEFT_RETURN_IF_ERROR(watcher_->start());
  watcher_->post([this] {
    for (AcceptLoop& loop : loops_) loop.start();
  });
  return absl::OkStatus();
}

absl::Status GrpcSockets::listen_locally() {
  const std::string name = wanted_.substr(kLocalScheme.size());
  WEFT_ASSIGN_OR_RETURN(
      listener_, name.empty() ? LocalListener::create(LocalSocket::Kind::kStream)
                              : LocalListener::create_named(name, LocalSocket::Kind::kStream));
  address_ = absl::StrCat(absl_view(kLocalScheme), listener_->name());
  loops_.emplace_back(clock_, watcher_, listener_->descriptor(), "connections within this host",
                      [this] { return accept_local(); });
  return absl::OkStatus();
}

absl::Status GrpcSockets::listen_on_tcp(Listen open) {
  const size_t colon = wanted_.rfind(':');
  const std::string host = wanted_.substr(0, colon);
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(wanted_.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("'", wanted_, "' is not HOST:PORT"));
  }
  WEFT_ASSIGN_OR_RETURN(ports_, open(host, static_cast<uint16_t>(port)));
  for (const ListeningPort& each : ports_) {
    const int listening = each.socket.get();
    loops_.emplace_back(clock_, watcher_, listening, absl::StrCat("connections to ", wanted_),
                        [this, listening] { return accept_from(listening); });
  }
  address_ = absl::StrCat(host, ":", ports_.front().port);
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> GrpcSockets::connect(const std::string& address) {
  if (!is_local(address) || !LocalListener::is_name(address.substr(kLocalScheme.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is no address on this host"));
  }
  absl::StatusOr<LocalSocket> socket = LocalSocket::connect(address.substr(kLocalScheme.size()),
                                                            kAtOnce, LocalSocket::Kind::kStream);
  if (!socket.ok()) {
    const absl::Status& status = socket.status();
    if (absl::IsPermissionDenied(status)) return absl::FailedPreconditionError(status.message());
    if (absl::IsDeadlineExceeded(status)) return absl::AbortedError(status.message());
    return status;
  }
  FileDescriptor connection = socket->take_descriptor();
  WEFT_ASSIGN_OR_RETURN(const int second, keep(connection));
  // If the watch fails, the second descriptor stays until `stop`. gRPC has shut the socket down
  // when it closes its own, so the far end learns of it.
  watcher_->post([this, second] { (void)watch_end(second); });
  return connection;
}

void GrpcSockets::stop() {
  watcher_->stop();
  if (late_.has_value()) clock_.cancel(*std::exchange(late_, std::nullopt));
  loops_.clear();
  listener_.reset();
  ports_.clear();
  accepted_local_.reset();
  accepted_.reset();
  for (const auto& [number, connection] : connections_) {
    ::shutdown(connection.own.get(), SHUT_RDWR);
  }
  connections_.clear();
  std::map<int, FileDescriptor> left;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    left.swap(kept_);
  }
  for (const auto& [descriptor, owner] : left) ::shutdown(descriptor, SHUT_RDWR);
}

// ---- TCP

size_t GrpcSockets::bound(size_t most) {
  constexpr size_t kMost = 1024;  // choosing one to give up looks at all
  rlimit descriptors = {};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return std::min(most, kMost);
  return std::min({most, kMost, std::max<size_t>(descriptors.rlim_cur / 8, 8)});
}

absl::Status GrpcSockets::accept_from(int listening) {
  if (!accepted_.has_value()) {
    absl::StatusOr<AcceptedTcp> accepted = accept_tcp(listening);
    if (absl::IsResourceExhausted(accepted.status())) {
      if (const auto lost = unproven_.silent_to_give_up(clock_.now())) drop(*lost);
    }
    WEFT_ASSIGN_OR_RETURN(accepted_, std::move(accepted));
  }
  if (unproven_.full()) drop_proven();
  if (unproven_.full()) {
    const std::optional<uint64_t> lost = unproven_.to_give_up(clock_.now());
    if (!lost.has_value()) return absl::ResourceExhaustedError("too many have proven nothing yet");
    drop(*lost);
  }
  const uint64_t number = next_number_;
  const int descriptor = accepted_->socket.get();
  // A far end that has sent its first bytes is reported at once.
  if (!watcher_->watch(descriptor, Watcher::Event::kReadable,
                       [this, number] { receive_first(number); })) {
    return absl::ResourceExhaustedError("no memory to watch it");
  }
  ++next_number_;
  const int on = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
  AcceptedTcp accepted = *std::exchange(accepted_, std::nullopt);
  std::string peer = key_of(accepted.address, accepted.port);
  by_peer_.emplace(peer, number);
  connections_.emplace(number, Unproven{std::move(accepted.socket), std::move(peer)});
  unproven_.add(number, accepted.address, clock_.now());
  drop_late_in_time();
  receive_first(number);  // usually it is there, and then the connection is not taken for silent
  return absl::OkStatus();
}

void GrpcSockets::receive_first(uint64_t number) {
  Unproven& connection = connections_.at(number);
  char byte;
  const ssize_t size = ::recv(connection.own.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return drop(number);  // it has gone
  watcher_->unwatch(connection.own.get());
  absl::StatusOr<FileDescriptor> second = second_of(connection.own);
  if (!second.ok()) {  // it counts no more, and ends when gRPC ends it
    FileDescriptor only = std::move(connection.own);
    forget_unproven(number);
    return accept_(std::move(only));
  }
  FileDescriptor first = std::exchange(connection.own, *std::move(second));
  unproven_.speaks(number);
  // If the watcher has no memory for this, the connection counts until it is late.
  watcher_->watch(connection.own.get(), Watcher::Event::kHungUp, [this, number] { drop(number); });
  accept_(std::move(first));
}

void GrpcSockets::mark_proven(std::string_view peer) {
  if (local()) return;
  std::string key = key_of_grpc(peer);
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    proven_.insert(std::move(key));  // at once: the watcher may be about to give it up
  }
  watcher_->post([this] { drop_proven(); });
}

void GrpcSockets::drop_proven() {
  std::set<std::string> keys;
  {
    MutexLock lock(mutex_);
    keys = proven_;
  }
  for (const std::string& key : keys) {
    for (auto found = by_peer_.find(key); found != by_peer_.end(); found = by_peer_.find(key)) {
      drop(found->second);
    }
  }
  MutexLock lock(mutex_);
  for (const std::string& key : keys) proven_.erase(key);
}

void GrpcSockets::drop(uint64_t number) {
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  watcher_->unwatch(found->second.own.get());
  {
    MutexLock lock(mutex_);
    // gRPC may have a descriptor of it. If it is proven, only this object's own one goes.
    if (!proven_.contains(found->second.peer)) ::shutdown(found->second.own.get(), SHUT_RDWR);
  }
  forget_unproven(number);
}

void GrpcSockets::forget_unproven(uint64_t number) {
  const auto found = connections_.find(number);
  auto [peer, end] = by_peer_.equal_range(found->second.peer);
  while (peer != end && peer->second != number) ++peer;
  if (peer != end) by_peer_.erase(peer);
  unproven_.remove(number);
  connections_.erase(found);
}

void GrpcSockets::drop_late() {
  late_.reset();
  for (const uint64_t number : unproven_.until(clock_.now() - kProvesWithin)) drop(number);
  drop_late_in_time();
}

void GrpcSockets::drop_late_in_time() {
  const std::optional<TimePoint> oldest = unproven_.oldest();
  if (late_.has_value() || !oldest.has_value()) return;
  late_ = clock_.call_at(*oldest + kProvesWithin,
                         [this, watcher = watcher_] { watcher->post([this] { drop_late(); }); });
}

// ---- within this host

absl::Status GrpcSockets::accept_local() {
  if (!accepted_local_.valid()) {
    WEFT_ASSIGN_OR_RETURN(LocalSocket socket, listener_->accept(kAtOnce));
    accepted_local_ = socket.take_descriptor();
  }
  WEFT_ASSIGN_OR_RETURN(const int second, keep(accepted_local_));
  if (!watch_end(second)) {
    MutexLock lock(mutex_);
    kept_.erase(second);
    return absl::ResourceExhaustedError("no memory to watch it");
  }
  accept_(std::move(accepted_local_));
  return absl::OkStatus();
}

absl::StatusOr<int> GrpcSockets::keep(const FileDescriptor& connection) {
  WEFT_ASSIGN_OR_RETURN(FileDescriptor second, second_of(connection));
  const int number = second.get();
  MutexLock lock(mutex_);
  if (stopped_) return absl::UnavailableError("this transport has stopped");
  kept_.emplace(number, std::move(second));
  return number;
}

bool GrpcSockets::watch_end(int descriptor) {
  return watcher_->watch(descriptor, Watcher::Event::kHungUp,
                         [this, descriptor] { forget(descriptor); });
}

// The far end has closed the connection, or gRPC has at this end. The second descriptor must not
// keep it open. gRPC may still write to a far end that only reads nothing more: that must fail.
void GrpcSockets::forget(int descriptor) {
  ::shutdown(descriptor, SHUT_RDWR);
  watcher_->unwatch(descriptor);
  MutexLock lock(mutex_);
  kept_.erase(descriptor);
}

}  // namespace weft
