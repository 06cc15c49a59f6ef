// Serves the store of a job over gRPC: with mutual TLS, over unix sockets within one host, or in
// clear.
//
// The process that serves also calls it, without a connection.
//
// Thread safety: all methods may be called from any thread.
// Lifetime: the destructor ends all calls and closes all connections. No call of this process may
// run then.
// Blocking: `call`, as store_calls.h says.
// Errors: `start` returns AlreadyExists (the port or the name is in use), NotFound (unknown host),
// InvalidArgument (a bad address), Unavailable, and ResourceExhausted (the system refuses a thread
// or a descriptor).
// Unknown processes: their connections are bounded as those of a worker are (links/grpc_sockets.h).
// A call takes at most 2 MiB.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weft/security/tls_identity.h"
#include "weft/store/store_calls.h"
#include "weft/store/store_core.h"

namespace weft {

struct StoreServerOptions {
  // HOST:PORT, where port 0 takes a free one, or "unix:" and the name of a listener.
  std::string listen_address = "127.0.0.1:0";
  // With this identity, callers need a certificate of the same job. Null: whoever can connect may
  // call.
  std::shared_ptr<TlsIdentity> tls = nullptr;
  // Whether certificates prove names. If the job's secret has made them, they prove only the job.
  bool proves_names = false;
  std::string own_name;  // of this process, for what it writes if names are proven
  StoreLimits limits;
};

class StoreServer final : public StoreCalls {
 public:
  static absl::StatusOr<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);
  ~StoreServer() override;

  // What clients dial.
  const std::string& address() const;

  absl::StatusOr<wire::StoreReply> call(wire::StoreCall call, TimePoint deadline) override;
  std::string description() const override;

 private:
  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;  // gRPC stays out of this header
};

}  // namespace weft
