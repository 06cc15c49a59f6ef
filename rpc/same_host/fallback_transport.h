// Connects workers through shared memory where they have the same host, and through another
// transport (gRPC) otherwise.
//
// It dials shared memory first. If that fails for any reason but the far end's own refusal, it
// dials the other transport and says so in the log, once for each peer. A lost connection is
// dialled the same way, so a peer whose shared memory has failed is reached over the other
// transport.
//
// The address is the other transport's, then ";", then the local one. An address without ";" is of
// a worker without shared memory.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the clock must outlive the transport.
// Errors: those of the other transport, and the far end's refusals.
// Protocol: docs/data_plane.md, "Connections".
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "weft/base/mutex.h"
#include "weft/rpc/same_host/same_host_transport.h"
#include "weft/rpc/transport/transport.h"

namespace weft {

class FallbackTransport final : public Transport {
 public:
  // `local` tells refusals of the far end from other errors by answer_of_peer(). Null: this worker
  // uses no shared memory, and dials the other part of each address.
  FallbackTransport(Clock& clock, std::unique_ptr<Transport> local,
                    std::unique_ptr<Transport> other);
  ~FallbackTransport() override { stop(); }

  absl::Status listen() override;
  std::string address() const override;
  absl::Status start(PeerIdentity self, TransportSink* sink) override;
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override;
  void stop() override;
  std::optional<Payload> shared_memory(size_t bytes) override {
    return local_listens_ ? local_->shared_memory(bytes) : std::nullopt;
  }

 private:
  // The longest that a dial through shared memory may take before the other transport is tried.
  static constexpr Nanoseconds kLocalDialTimeout = std::chrono::seconds(10);

  void say_once(const PeerIdentity& peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  Clock& clock_;
  const std::unique_ptr<Transport> local_;
  const std::unique_ptr<Transport> other_;
  bool local_listens_ = false;  // set by listen()

  Mutex mutex_;
  std::set<uint64_t> said_ ABSL_GUARDED_BY(mutex_);  // peers of which the log has a line
};

}  // namespace weft
