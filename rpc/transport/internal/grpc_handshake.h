// The hello that each stream begins with, at both ends: who dials, whom it expects, and which
// connection the stream belongs to.
//
// Thread safety: all functions may be called from any thread.
// Errors: a refused hello ends the stream with the reason, which the dialler gets. InvalidArgument:
// there is none, it is larger than 8 KiB or cannot be parsed, its name is none of a worker
// (check_worker_name), or its group or address is not printable. Aborted: too many wait for the
// start; dial again.
// Protocol: proto/weft.proto (Hello).
#pragma once

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "weft/rpc/transport/internal/grpc_connection.h"

namespace weft::rpc_internal {

// Makes TCP give up a connection, at either end, if the far end has taken nothing for 30 s. Until
// then gRPC keeps a write that waits for the socket, even one of a stream that was cut. gRPC sets
// the socket's TCP_USER_TIMEOUT only if it sends pings. So pings are on, and due in 24 days.
inline constexpr std::pair<const char*, int> kGiveUpArguments[] = {
    {GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max() - 1},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 30'000},
};

// Connections that this worker has accepted, for the bulk streams that follow.
struct GrpcAccepted {
  Mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<GrpcConnection>> by_number
      ABSL_GUARDED_BY(mutex);
};

// Answers the hello of a stream that was accepted, and delivers what comes after it.
std::shared_ptr<StreamHandler> make_accept_handler(GrpcSharedPtr shared,
                                                   std::shared_ptr<GrpcAccepted> accepted);

// The dialling end of one stream.
class DialHandler final : public StreamHandler {
 public:
  using Ready = absl::AnyInvocable<void(absl::Status)>;
  // `ready` runs once: OK after the far end's answer, else why not.
  DialHandler(GrpcSharedPtr shared, GrpcConnectionPtr connection, StreamKind kind, Ready ready)
      : shared_(std::move(shared)),
        connection_(std::move(connection)),
        kind_(kind),
        ready_(std::move(ready)) {}

  void set_stream(std::weak_ptr<GrpcStream> stream) { stream_ = std::move(stream); }
  // Gives up if the far end has not answered.
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

 private:
  const GrpcSharedPtr shared_;
  const GrpcConnectionPtr connection_;
  const StreamKind kind_;
  Ready ready_;
  std::weak_ptr<GrpcStream> stream_;
  std::atomic<bool> open_{false};
  std::atomic<bool> late_{false};
};

// Dials one stream of `connection`.
std::shared_ptr<DialHandler> dial_stream(const GrpcSharedPtr& shared, const std::string& address,
                                         const GrpcConnectionPtr& connection, StreamKind kind,
                                         DialHandler::Ready ready);

// Has the dial fail with DeadlineExceeded then, unless it was answered.
void give_up_at(Clock& clock, TimePoint deadline, const std::shared_ptr<DialHandler>& dial);

// Dials one more stream of `connection`, which does without it if that fails.
void dial_further_stream(const GrpcSharedPtr& shared, const std::string& address,
                         const GrpcConnectionPtr& connection, StreamKind kind);

}  // namespace weft::rpc_internal
