// Dials and accepts streams. Each stream begins with a hello: it says who dials, which worker the
// dialler expects, and which connection the stream belongs to.
//
// Thread safety: all functions may be called from any thread.
// Errors: a refused hello closes the stream, and the dialler gets the error:
//
// - InvalidArgument: there is no hello, it is larger than 8 KiB, or it cannot be parsed.
//
// - InvalidArgument: its name is not valid for a worker (check_worker_name), or its group,
//   address or role is not printable.
//
// - PermissionDenied: it has no common protocol version, or its name or role is not the one in the
//   certificate.
//
// - FailedPrecondition: another worker answers, or a further stream belongs to no connection.
//
// - Unavailable: the worker has stopped.
//
// - Aborted: too many streams wait for `start`. The dialler dials again.
//
// - Any other error: the sink's on_accept returned it.
//
// With TLS, a dial that fails before the hello ends with Unauthenticated: one end does not accept
// the certificate of the other, or the far end does not use TLS. If the far end shows the
// certificate of another worker of the job, it is FailedPrecondition.
//
// Protocol: proto/weft.proto, section "Streams" and message Hello.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "weft/rpc/transport/internal/grpc_connection.h"

namespace weft::rpc_internal {

// Connections that this worker has accepted, so that their bulk and heartbeat streams find them.
// The key is the dialler's WorkerId and its number of the connection.
struct GrpcAccepted {
  Mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<GrpcConnection>> by_number
      ABSL_GUARDED_BY(mutex);
};

// InvalidArgument: it is not HOST:PORT or [IPv6]:PORT. gRPC would take other texts for URIs, whose
// scheme decides what it connects to.
absl::Status check_host_and_port(const std::string& address);

// Makes the handler of an accepted stream. It answers the hello and delivers the frames after it.
std::shared_ptr<StreamHandler> make_accept_handler(GrpcSharedPtr shared,
                                                   std::shared_ptr<GrpcAccepted> accepted);

// The dialling end of one stream.
class DialHandler final : public StreamHandler {
 public:
  using Ready = absl::AnyInvocable<void(absl::Status)>;
  // `ready` runs at most once: with OK after the far end's answer, otherwise with the error.
  DialHandler(GrpcSharedPtr shared, GrpcConnectionPtr connection, StreamKind kind, Ready ready)
      : shared_(std::move(shared)),
        connection_(std::move(connection)),
        kind_(kind),
        ready_(std::move(ready)) {}

  // The channel for the stream. With TLS, the far end must prove that it is the expected worker.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> connect(const std::string& address);
  void set_stream(std::weak_ptr<GrpcStream> stream) { stream_ = std::move(stream); }
  // Cuts the stream if the far end has not answered.
  void deadline_passed() {
    if (open_.load()) return;
    late_.store(true);
    if (auto stream = stream_.lock()) stream->cut();
  }

  absl::Status on_hello(GrpcStream& stream, std::string text) override;
  void on_frames(GrpcStream&, std::vector<Frame> frames) override {
    connection_->received(kind_, std::move(frames));
  }
  void on_end(GrpcStream& stream, absl::Status reason) override;
  // The stream is not open and never will be.
  void failed(absl::Status reason);

 private:
  const GrpcSharedPtr shared_;
  const GrpcConnectionPtr connection_;
  const StreamKind kind_;
  const std::shared_ptr<FarEnd> far_end_ = std::make_shared<FarEnd>();
  Ready ready_;
  std::weak_ptr<GrpcStream> stream_;
  std::atomic<bool> open_{false};
  std::atomic<bool> late_{false};
};

// Dials one stream of `connection`, and calls `ready` when it is open or has failed. If the
// transport has stopped, it does nothing.
std::shared_ptr<DialHandler> dial_stream(const GrpcSharedPtr& shared, const std::string& address,
                                         const GrpcConnectionPtr& connection, StreamKind kind,
                                         DialHandler::Ready ready);

// At `deadline`, makes the dial fail with DeadlineExceeded unless it was answered before.
void give_up_at(Clock& clock, TimePoint deadline, const std::shared_ptr<DialHandler>& dial);

// Dials one more stream of `connection`. If that fails, the connection goes on without it.
void dial_further_stream(const GrpcSharedPtr& shared, const std::string& address,
                         const GrpcConnectionPtr& connection, StreamKind kind);

}  // namespace weft::rpc_internal
