// Connects workers over gRPC: up to three long-lived bidirectional streams per connection, each on
// a channel of its own: one for small frames, one for large ones, one for heartbeats.
//
// Unknown processes: nothing is read from a stream whose hello has not been accepted, so all that
// it may hold here is what flow control lets it send (16 MiB). A stream brings its hello when it is
// opened, or is ended. A TCP connection may have 4 streams, and is closed if it has none for 10 s.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the clock outlives the transport. `stop` (or the destructor) ends all streams and joins
// the threads that serve them.
// Errors: listen: InvalidArgument (bad address), Unavailable (port in use), each naming the
// address. Protocol: rpc/internal/stream_codec.h (records), proto/weft.proto (Hello).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/rpc/transport/transport.h"

namespace weft {

struct GrpcTransportOptions {
  // "host:port"; port 0 takes a free one. The host is what peers dial.
  std::string listen_address = "127.0.0.1:0";
  TransportLimits limits;
  // So many streams may wait for `start`; more are refused, and their diallers try again.
  size_t most_waiting = 256;
  // Frames with payloads above this travel on the bulk stream.
  size_t bulk_from = size_t{64} << 10;
  // Has malloc keep freed memory, in the whole process (base/freed_memory.h): gRPC reads into
  // memory that it gets from malloc and frees again, and fresh pages cost several times the copy.
  bool keep_freed_memory = true;
  // Switches abseil's deadlock detection off in the whole process: Debian's abseil has it on in
  // release builds too, and gRPC pays for it with every lock. Builds of Weft with assertions keep
  // it.
  bool stop_deadlock_detection = true;
  // How long the thread that waits for messages looks for the next one before it sleeps, where they
  // come quickly and nobody else needs the processor; 0: never. Where several transports, or other
  // users of gRPC, share a process, one of them waits for all and looking gains less.
  Nanoseconds spin = std::chrono::microseconds(100);
  // How long `stop` lets streams end in order before it cuts them.
  Nanoseconds grace = std::chrono::seconds(1);
};

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(Clock& clock, GrpcTransportOptions options = {});
  ~GrpcTransport() override;

  absl::Status listen() override;
  std::string address() const override;
  absl::Status start(PeerIdentity self, TransportSink* sink) override;
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override;
  void stop() override;

  // How many waits for messages began awake.
  uint64_t looks() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;  // gRPC stays out of this header
};

}  // namespace weft
