// The server of a gRPC contestant: one service on a free port of loopback TCP.
//
// Thread safety: that of Server.
// Lifetime: owns the service, which outlives the gRPC server.
// Errors: Unavailable if the server does not start.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "weft/bench/contestants/contestant.h"

namespace weft::bench {

template <class Service>
class LoopbackServer final : public Server {
 public:
  // Registers the service and sets further options of the server.
  using Configure = void (*)(grpc::ServerBuilder& builder, Service& service);
  explicit LoopbackServer(Configure configure) : configure_(configure) {}

  absl::StatusOr<std::string> listen() override {
    constexpr char kHost[] = "127.0.0.1";
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat(kHost, ":0"), grpc::InsecureServerCredentials(), &port);
    configure_(builder, service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("the gRPC server does not start");
    return absl::StrCat(kHost, ":", port);
  }
  absl::Status serve() override { return absl::OkStatus(); }
  void close() override { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  const Configure configure_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace weft::bench
