#include "weft/rpc/same_host/fallback_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"

namespace weft {

FallbackTransport::FallbackTransport(Clock& clock, std::unique_ptr<Transport> local,
                                     std::unique_ptr<Transport> other)
    : clock_(clock), local_(std::move(local)), other_(std::move(other)) {}

absl::Status FallbackTransport::listen() {
  WEFT_RETURN_IF_ERROR(other_->listen());
  if (local_ == nullptr) return absl::OkStatus();
  const absl::Status local = local_->listen();
  local_listens_ = local.ok();
  if (!local.ok()) log_info("no shared memory for calls on this host: ", local.message());
  return absl::OkStatus();
}

std::string FallbackTransport::address() const {
  if (!local_listens_) return other_->address();
  return absl::StrCat(other_->address(), ";", local_->address());
}

absl::Status FallbackTransport::start(PeerIdentity self, TransportSink* sink) {
  WEFT_RETURN_IF_ERROR(other_->start(self, sink));
  if (local_listens_) WEFT_RETURN_IF_ERROR(local_->start(std::move(self), sink));
  return absl::OkStatus();
}

void FallbackTransport::connect(const std::string& address, const PeerIdentity& expected,
                                TimePoint deadline, ConnectCallback callback) {
  const size_t split = address.find(';');
  const std::string far = address.substr(0, split);
  if (split == std::string::npos || !local_listens_) {
    other_->connect(far, expected, deadline, std::move(callback));
    return;
  }
  const TimePoint now = clock_.now();
  const Nanoseconds left = deadline == kNever ? kLocalDialTimeout : (deadline - now) / 2;
  local_->connect(address.substr(split + 1), expected, now + std::min(left, kLocalDialTimeout),
                  [this, far, expected, deadline, callback = std::move(callback)](
                      absl::StatusOr<ConnectionPtr> connection) mutable {
                    if (connection.ok() || answered_by_peer(connection.status())) {
                      callback(std::move(connection));
                      return;
                    }
                    say_once(expected, connection.status());
                    other_->connect(far, expected, deadline, std::move(callback));
                  });
}

void FallbackTransport::say_once(const PeerIdentity& peer, const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    constexpr size_t kMost = 4096;
    if (said_.size() == kMost || !said_.insert(peer.id.bits()).second) return;
  }
  log_info("no shared memory with worker '", peer.name, "': ", why.message());
}

void FallbackTransport::stop() {
  // The local one first: its failed dials go to the other one.
  if (local_ != nullptr) local_->stop();
  other_->stop();
}

}  // namespace weft
