// Makes the ends of every kind of transport in a test.
//
// Thread safety: a fixture is for the test's own thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "weft/async/future.h"
#include "weft/rpc/same_host/fallback_transport.h"
#include "weft/rpc/same_host/same_host_transport.h"
#include "weft/rpc/transport/grpc_transport.h"
#include "weft/rpc/transport/inproc_transport.h"
#include "weft/security/tls_identity.h"
#include "weft/tests/rpc/transport/recorder.h"
#include "weft/tests/support/agent_world.h"

namespace weft::testing {

inline FramePtr numbered_frame(uint64_t number, size_t payload = 0) {
  Frame frame = frame_of("body " + std::to_string(number), payload);
  frame.header.kind = FrameKind::kCall;
  frame.header.sequence = number;
  return std::make_shared<const Frame>(std::move(frame));
}

// Credentials of a worker of the job "group".
inline std::shared_ptr<TlsIdentity> credentials_of(
    const std::string& worker, std::string_view secret = "a secret of the tests of transports") {
  auto made = JobAuthority::from_secret(SecretBytes(secret), "group")
                  ->issue(*certificate_name("group", "default", worker));
  EXPECT_TRUE(made.ok()) << made.status();
  return std::make_shared<TlsIdentity>(*std::move(made));
}

inline Future<ConnectionPtr> dial(End& from, const std::string& address,
                                  const PeerIdentity& expected,
                                  TimePoint deadline = std::chrono::steady_clock::now() +
                                                       kPatience) {
  from.sink.expect_dialling();
  Promise<ConnectionPtr> promise;
  Future<ConnectionPtr> future = promise.future();
  from.transport->connect(address, expected, deadline,
                          [promise = std::move(promise)](absl::StatusOr<ConnectionPtr> result) {
                            promise.set(std::move(result));
                          });
  return future;
}

// Makes ends of every kind of transport, and connections between them.
class TransportConformanceTest : public ::testing::TestWithParam<TransportKind> {
 protected:
  TransportConformanceTest()
      : wires_(clock_, {.name = "wires", .threads = 3}), network_(clock_, wires_) {}
  ~TransportConformanceTest() override { wires_.stop(); }

  // `worker` is the name in the certificate.
  std::unique_ptr<Transport> make(const std::string& worker, TransportLimits limits = {}) {
    if (GetParam() == TransportKind::kInproc) {
      return std::make_unique<InprocTransport>(network_, limits);
    }
    GrpcTransportOptions grpc;
    grpc.limits = limits;
    if (GetParam() == TransportKind::kGrpcSpinning) grpc.spin = kPatience;
    if (GetParam() == TransportKind::kGrpcLocal) grpc.listen_address = "unix:";
    if (GetParam() == TransportKind::kGrpcTls) grpc.tls = credentials_of(worker);
    SameHostTransportOptions local;
    local.limits = limits;
    if (GetParam() == TransportKind::kSameHostSpinning) local.spin = kPatience;
    switch (GetParam()) {
      case TransportKind::kSameHost:
      case TransportKind::kSameHostSpinning:
        return std::make_unique<SameHostTransport>(clock_, local);
      case TransportKind::kFallback:
        return std::make_unique<FallbackTransport>(
            clock_, std::make_unique<SameHostTransport>(clock_, local),
            std::make_unique<GrpcTransport>(clock_, grpc));
      default:
        return std::make_unique<GrpcTransport>(clock_, grpc);
    }
  }
  std::unique_ptr<End> listening(uint32_t index, TransportLimits limits = {}) {
    auto end = std::make_unique<End>();
    end->identity = {"group", "w" + std::to_string(index), {index, 1}};
    end->identity.role = "default";
    end->transport = make(end->identity.name, limits);
    EXPECT_TRUE(end->transport->listen().ok());
    return end;
  }
  std::unique_ptr<End> started(uint32_t index, TransportLimits limits = {}) {
    auto end = listening(index, limits);
    EXPECT_TRUE(end->transport->start(end->identity, &end->sink).ok());
    return end;
  }
  Future<ConnectionPtr> dial(End& from, const std::string& address, const PeerIdentity& expected,
                             Nanoseconds patience = kPatience) {
    return testing::dial(from, address, expected, clock_.now() + patience);
  }
  absl::StatusOr<ConnectionPtr> connect(End& from, End& to) {
    return dial(from, to.transport->address(), to.identity).result();
  }

  SystemClock clock_;
  ThreadExecutor wires_;
  InprocNetwork network_;
};

}  // namespace weft::testing
