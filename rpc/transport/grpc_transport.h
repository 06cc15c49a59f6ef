// GrpcTransport connects workers over gRPC. A connection has up to three bidirectional streams: a
// control stream for small frames, a bulk stream for large ones, and a heartbeat stream. Each
// stream stays open and has a gRPC channel of its own.
//
// Unknown processes: a TCP connection that sends nothing costs one descriptor, and gRPC does not
// see it. Connections whose far ends have proven nothing are bounded, and each is shut down after
// 20 s. This transport reads nothing from a stream before its hello is accepted. So the stream can
// fill only what flow control lets it send (16 MiB). A stream that is opened without a hello is
// refused. A TCP connection may have 4 streams. It is closed if it has none for 10 s.
//
// `listen` changes three settings of the whole process. malloc keeps freed memory
// (base/freed_memory.h). gRPC's errors go to Weft's log (links/grpc_log.h). Abseil
// stops looking for deadlocks, unless the build has assertions.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the clock must outlive the transport. `stop` (or the destructor) closes all streams and
// joins the threads that serve them.
// Errors: `listen` returns InvalidArgument (bad address) or Unavailable (the port is in use, or the
// host is not this one), each with the address. It returns ResourceExhausted if the system
// refuses the thread that serves the streams.
// Protocol: proto/weft.proto, section "Streams", rpc/transport/internal/stream_codec.h and
// links/grpc_tls.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/rpc/transport/transport.h"

namespace weft {

class TlsIdentity;  // security/tls_identity.h

struct GrpcTransportOptions {
  // "host:port"; port 0 takes a free one. The host is what peers dial. "unix:" means unix sockets
  // instead of TCP: only processes of this host, and of this user or root, can connect. Then all
  // peers must have such addresses.
  std::string listen_address = "127.0.0.1:0";
  // With this identity all connections use mutual TLS. Null: whoever reaches the port may connect.
  // An identity that changes is for one transport.
  std::shared_ptr<TlsIdentity> tls = nullptr;
  TransportLimits limits;
  // So many streams may wait for `start`. Further ones are refused, and their diallers dial again.
  size_t most_waiting = 256;
  // The most TCP connections that may be unproven: their far ends have not sent an acceptable
  // hello. The transport allows fewer if this exceeds 1024, or an eighth of the process's
  // descriptors. Each needs one descriptor while it is silent, then two.
  size_t most_unproven = 128;
  // Frames whose body and payloads have more bytes than this travel on the bulk stream.
  size_t bulk_from = size_t{64} << 10;
  // How long the thread that waits for messages spins before it sleeps; 0: never. It spins only if
  // messages come quickly and no other thread needs the processor. If several transports, or other
  // users of gRPC, share a process, one of them waits for all, and spinning gains less.
  Nanoseconds spin = std::chrono::microseconds(100);
  // How long `stop` lets streams close in order before it cuts them.
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

  // How many waits for messages began with spinning.
  uint64_t looks() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;  // gRPC stays out of this header
};

}  // namespace weft
