// gRPC behind a proxy in another process: peers dial the proxy, and the proxy learns this port.
//
// Thread safety: all methods may be called from any thread.
#pragma once

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "weft/base/clock.h"
#include "weft/base/status.h"
#include "weft/rpc/transport/grpc_transport.h"

namespace weft::chaos {

class DoorTransport final : public Transport {
 public:
  // `door`: the address that peers dial. `port_file`: the file in which the proxy finds this
  // transport's port.
  DoorTransport(Clock& clock, std::string door, std::string port_file, GrpcTransportOptions options)
      : door_(std::move(door)),
        port_file_(std::move(port_file)),
        inner_(clock, std::move(options)) {}

  absl::Status listen() override {
    WEFT_RETURN_IF_ERROR(inner_.listen());
    const std::string address = inner_.address();
    const std::string fresh = port_file_ + ".new";
    std::ofstream(fresh) << address.substr(address.rfind(':') + 1) << "\n";
    // Rename is atomic: the proxy reads the file for each connection.
    if (std::rename(fresh.c_str(), port_file_.c_str()) == 0) return absl::OkStatus();
    return absl::InternalError("cannot write " + port_file_);
  }
  std::string address() const override { return door_; }
  absl::Status start(PeerIdentity self, TransportSink* sink) override {
    return inner_.start(std::move(self), sink);
  }
  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) override {
    inner_.connect(address, expected, deadline, std::move(callback));
  }
  void stop() override { inner_.stop(); }

 private:
  const std::string door_;
  const std::string port_file_;
  GrpcTransport inner_;
};

}  // namespace weft::chaos
