#include "weft/rpc/transport/internal/local_sockets.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/socket.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

constexpr int kMostAtOnce = 64;  // accepted before other descriptors have their turn
constexpr Nanoseconds kAcceptAgainAfter = std::chrono::milliseconds(100);
constexpr Nanoseconds kBetweenWarnings = std::chrono::seconds(10);
constexpr LocalSocket::TimePoint kAtOnce = LocalSocket::TimePoint::min();

}  // namespace

bool is_local(std::string_view address) { return address.starts_with(kLocalScheme); }

absl::Status LocalSockets::listen(Accept accept) {
  WEFT_ASSIGN_OR_RETURN(listener_, LocalListener::create(LocalSocket::Kind::kStream));
  name_ = listener_->name();
  accept_ = std::move(accept);
  WEFT_RETURN_IF_ERROR(watcher_->start());
  watcher_->post([this] { watch_listener(); });
  return absl::OkStatus();
}

std::string LocalSockets::address() const { return absl::StrCat(absl_view(kLocalScheme), name_); }

absl::StatusOr<FileDescriptor> LocalSockets::connect(const std::string& address) {
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

void LocalSockets::stop() {
  watcher_->stop();
  if (pause_.has_value()) clock_.cancel(*std::exchange(pause_, std::nullopt));
  listener_.reset();
  accepted_.reset();
  std::map<int, FileDescriptor> left;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    left.swap(kept_);
  }
  for (const auto& [descriptor, owner] : left) ::shutdown(descriptor, SHUT_RDWR);
}

void LocalSockets::watch_listener() {
  pause_.reset();
  if (watcher_->watch(listener_->descriptor(), Watcher::Event::kReadable,
                      [this] { accept_some(); })) {
    return;
  }
  pause(absl::ResourceExhaustedError("no memory to watch for them"));
}

void LocalSockets::accept_some() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    if (!accepted_.valid()) {
      absl::StatusOr<LocalSocket> socket = listener_->accept(kAtOnce);
      if (absl::IsDeadlineExceeded(socket.status())) return;
      if (!socket.ok()) return pause(socket.status());
      accepted_ = socket->take_descriptor();
    }
    // To close it now would look like the death of this worker. The dialler waits.
    if (absl::Status status = hand_over(accepted_); !status.ok()) return pause(status);
  }
}

absl::Status LocalSockets::hand_over(FileDescriptor& connection) {
  WEFT_ASSIGN_OR_RETURN(const int second, keep(connection));
  if (!watch_end(second)) {
    MutexLock lock(mutex_);
    kept_.erase(second);
    return absl::ResourceExhaustedError("no memory to watch it");
  }
  accept_(std::move(connection));
  return absl::OkStatus();
}

// The listener stays readable, so without a pause the watcher would try again at once, for ever.
void LocalSockets::pause(const absl::Status& why) {
  if (clock_.now() >= next_warning_) {
    next_warning_ = clock_.now() + kBetweenWarnings;
    log_warning("connections within this host wait to be accepted: ", why.message());
  }
  watcher_->unwatch(listener_->descriptor());
  pause_ = clock_.call_at(clock_.now() + kAcceptAgainAfter, [this, watcher = watcher_] {
    watcher->post([this] { watch_listener(); });
  });
}

absl::StatusOr<int> LocalSockets::keep(const FileDescriptor& connection) {
  FileDescriptor second(::fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!second.valid()) {
    return absl::ErrnoToStatus(errno, "a second descriptor of a connection within this host");
  }
  const int number = second.get();
  MutexLock lock(mutex_);
  if (stopped_) return absl::UnavailableError("this transport has stopped");
  kept_.emplace(number, std::move(second));
  return number;
}

bool LocalSockets::watch_end(int descriptor) {
  return watcher_->watch(descriptor, Watcher::Event::kHungUp,
                         [this, descriptor] { forget(descriptor); });
}

// The far end has closed the connection, or gRPC has at this end. The second descriptor must not
// keep it open. gRPC may still write to a far end that only reads nothing more: that must fail.
void LocalSockets::forget(int descriptor) {
  ::shutdown(descriptor, SHUT_RDWR);
  watcher_->unwatch(descriptor);
  MutexLock lock(mutex_);
  kept_.erase(descriptor);
}

}  // namespace weft::rpc_internal
