// gRPC between workers of one process that reach each other only through a TCP proxy.
//
// Thread safety: all methods may be called from any thread.
// Blocking: ProxiedNetwork::cut() and cut_after() wait until no dial is in progress.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/tests/rpc/transport/tcp_proxy.h"

namespace weft::testing {

// The proxy of one test cluster. Connections are cut while they are in use, not while they are
// being made: a cut waits for the dials that have begun.
class ProxiedNetwork {
 public:
  TcpProxy& proxy() { return proxy_; }

  // Waits for the dials that have begun, and then cuts as TcpProxy::cut() does.
  size_t cut(TcpProxy::Cut how = TcpProxy::Cut::kReset) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    while (dials_ > 0) changed_.wait(mutex_);
    return proxy_.cut(how);
  }
  // Cuts later, after so many bytes. Dials that begin before that do not wait for it.
  void cut_after(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    while (dials_ > 0) changed_.wait(mutex_);
    proxy_.cut_after(bytes);
  }

 private:
  friend class ProxiedTransport;
  void dial_begins() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    ++dials_;
  }
  void dial_ended() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    --dials_;
    changed_.notify_all();
  }

  TcpProxy proxy_;
  Mutex mutex_;
  CondVar changed_;
  int dials_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ProxiedTransport final : public Transport {
 public:
  // Shared, because a worker that a test leaves behind may be the last to use the network.
  ProxiedTransport(Clock& clock, std::shared_ptr<ProxiedNetwork> network,
                   const GrpcTransportOptions& options = {})
      : clock_(clock), network_(std::move(network)), inner_(clock, options) {}

  absl::Status listen() override {
    WEFT_RETURN_IF_ERROR(inner_.listen());
    if (door_.empty()) door_ = network_->proxy().open_door(inner_.address());
    return absl::OkStatus();
  }
  std::string address() const override { return door_; }
  absl::Status start(PeerIdentity self, TransportSink* sink) override {
    return inner_.start(std::move(self), sink);
  }
  // Each dial gets a minute, because these tests are not about how soon a busy machine answers.
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint,
               ConnectCallback callback) override {
    network_->dial_begins();
    inner_.connect(address, expected, clock_.now() + std::chrono::minutes(1),
                   [network = network_, callback = std::move(callback)](
                       absl::StatusOr<ConnectionPtr> connection) mutable {
                     callback(std::move(connection));
                     network->dial_ended();
                   });
  }
  void stop() override { inner_.stop(); }

 private:
  Clock& clock_;
  const std::shared_ptr<ProxiedNetwork> network_;
  GrpcTransport inner_;
  std::string door_;
};

}  // namespace weft::testing
