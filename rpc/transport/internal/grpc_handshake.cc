#include "weft/rpc/transport/internal/grpc_handshake.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>

#include <grpcpp/create_channel_posix.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/base/log.h"
#include "weft/base/status.h"
#include "weft/links/grpc_errors.h"
#include "weft/links/grpc_settings.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/rendezvous/worker_info.h"
#include "weft/rpc/transport/hello.h"
#include "weft/rpc/transport/status_wire.h"
#include "weft/security/certificate_name.h"

namespace weft::rpc_internal {
namespace {

// A further stream must be answered within this time. Until it is open, the control stream carries
// its frames.
constexpr Nanoseconds kStreamAnswers = std::chrono::seconds(10);

grpc::ChannelArguments channel_arguments(bool bulk) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMostMessage);
  arguments.SetMaxSendMessageSize(-1);
  // Each stream gets a TCP connection of its own. Only the session may resend, so gRPC must not
  // retry.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  for (const auto& [name, value] : kGiveUpArguments) arguments.SetInt(name, value);
  if (bulk) {
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  }
  return arguments;
}

// Whether a socket can be made now. gRPC says only in its error text why it could not make one.
bool has_descriptors() {
  const int probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  ::close(probe);
  return true;
}

// PermissionDenied: the certificate's role is not the one in the hello.
absl::Status check_hello_role(const std::string& role, const wire::Hello& hello) {
  if (role == hello.role()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the certificate of worker '", hello.name(),
                                                  "' has role '", role, "', but its hello has '",
                                                  hello.role(), "'"));
}

// PermissionDenied: a certificate with these URIs does not prove what the hello says.
absl::Status check_certificate(const GrpcTls& tls, const std::vector<std::string>& uris,
                               const wire::Hello& hello) {
  WEFT_ASSIGN_OR_RETURN(const CertificateName name, tls.name_of(uris));
  const uint32_t rank = WorkerId::from_bits(hello.worker()).index;
  if (proves(name.worker, {hello.name(), rank})) return check_hello_role(name.role, hello);
  return absl::PermissionDeniedError(absl::StrCat("the certificate names worker '", name.worker,
                                                  "', but the hello names '", hello.name(),
                                                  "' with rank ", rank));
}

// The accepting end of one stream.
class AcceptHandler final : public StreamHandler,
                            public std::enable_shared_from_this<AcceptHandler> {
 public:
  AcceptHandler(GrpcSharedPtr shared, std::shared_ptr<GrpcAccepted> accepted)
      : shared_(std::move(shared)), accepted_(std::move(accepted)) {}

  absl::Status on_hello(GrpcStream& stream, std::string text) override {
    WEFT_ASSIGN_OR_RETURN(wire::Hello hello, parse_hello(text));
    if (shared_->tls != nullptr) {
      const absl::Status checked = check_certificate(*shared_->tls, stream.far_uris(), hello);
      if (!checked.ok()) {
        shared_->refusals.warn(
            absl::StrCat("worker '", hello.name(), "' was refused: ", checked.message()));
        return checked;
      }
    }
    auto resume = [self = shared_from_this(), stream = stream.shared_from_this(), hello] {
      self->answer(stream, hello);
    };
    {
      MutexLock lock(shared_->mutex);
      if (shared_->sink == nullptr && !shared_->stopped) {
        if (shared_->waiting.size() >= shared_->options.most_waiting) {
          return absl::AbortedError(absl::StrCat(shared_->waiting.size(),
                                                 " streams wait for this worker to start already"));
        }
        shared_->waiting.emplace_back(&stream, resume);
        shared_->sockets->mark_proven(stream.far_address());  // as far as it can before `start`
        return absl::OkStatus();
      }
    }
    resume();
    return absl::OkStatus();
  }
  void on_frames(GrpcStream&, std::vector<Frame> frames) override {
    const Opened opened = this->opened();  // open() sets it before it reads
    opened.connection->received(opened.kind, std::move(frames));
  }
  void on_end(GrpcStream& stream, absl::Status reason) override {
    {
      MutexLock lock(mutex_);
      ended_ = true;
      reason_ = std::move(reason);
      if (answering_) return;
    }
    finish(stream);
  }

 private:
  // The connection to which the stream belongs.
  struct Opened {
    GrpcConnectionPtr connection;  // null before open() has accepted the stream
    StreamKind kind = kControlStream;
  };

  // A stream may close while its hello waits for `start`. Then nothing is opened. If it closes
  // while this runs on the thread that called `start`, on_end leaves the report to this function.
  void answer(const std::shared_ptr<GrpcStream>& stream, const wire::Hello& hello) {
    {
      MutexLock lock(mutex_);
      if (ended_) return;
      answering_ = true;
    }
    open(stream, hello);
    {
      MutexLock lock(mutex_);
      answering_ = false;
      if (!ended_) return;
    }
    finish(*stream);
  }

  void finish(GrpcStream& stream) {
    const auto [connection, kind] = opened();
    if (connection != nullptr) {
      connection->stream_ended(kind, stream, take_reason());
      MutexLock lock(accepted_->mutex);
      auto found = accepted_->by_number.find({connection->peer().id.bits(), connection->number()});
      if (found != accepted_->by_number.end() && kind == kControlStream) {
        accepted_->by_number.erase(found);
      }
    }
    shared_->remove(&stream);
  }

  void open(const std::shared_ptr<GrpcStream>& stream, const wire::Hello& hello) {
    PeerIdentity self;
    {
      MutexLock lock(shared_->mutex);
      self = shared_->self;
    }
    absl::Status refused;
    GrpcConnectionPtr connection;
    bool first = false;  // whether the stream opens a connection
    const PeerIdentity peer = identity_of(hello);
    const absl::StatusOr<uint32_t> protocol = common_protocol(hello, self.protocols);
    if (!protocol.ok()) {
      refused = protocol.status();
    } else if (WorkerId::from_bits(hello.expected()) != self.id) {
      refused = absl::FailedPreconditionError(
          absl::StrCat("worker '", self.name, "' (", self.id.to_string(), ") answers there"));
    } else if (hello.stream() == 0) {
      refused = absl::UnavailableError("the worker has stopped");
      shared_->with_sink([&](TransportSink& sink) { refused = sink.on_accept(peer); }, false);
      if (refused.ok()) {
        connection = std::make_shared<GrpcConnection>(shared_, peer, hello.connection());
        MutexLock lock(accepted_->mutex);
        accepted_->by_number[{peer.id.bits(), hello.connection()}] = connection;
        first = true;
      }
    } else {
      MutexLock lock(accepted_->mutex);
      auto found = accepted_->by_number.find({peer.id.bits(), hello.connection()});
      if (found != accepted_->by_number.end()) connection = found->second.lock();
      if (connection == nullptr || hello.stream() >= kStreams ||
          connection->peer().group != peer.group || connection->peer().name != peer.name ||
          connection->peer().role != peer.role) {
        refused = absl::FailedPreconditionError("a further stream of no connection");
      }
    }
    if (!refused.ok()) return stream->refuse(std::move(refused));
    shared_->sockets->mark_proven(stream->far_address());
    const auto kind = static_cast<StreamKind>(hello.stream());
    {
      MutexLock lock(mutex_);
      opened_ = {connection, kind};
    }
    stream->send_hello(answer_of(self, *protocol).SerializeAsString());
    connection->set_stream(kind, stream);
    if (first) {
      shared_->with_sink([&](TransportSink& sink) { sink.on_open(connection); });
    }
    stream->begin_reading();
  }

  Opened opened() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return opened_;
  }
  absl::Status take_reason() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    return std::move(reason_);
  }

  const GrpcSharedPtr shared_;
  const std::shared_ptr<GrpcAccepted> accepted_;

  Mutex mutex_;
  Opened opened_ ABSL_GUARDED_BY(mutex_);
  bool answering_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // why the stream closed; set with ended_
};

}  // namespace

absl::Status check_host_and_port(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string_view host =
      std::string_view(address).substr(0, std::min(colon, address.size()));
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string_view inner = bracketed ? host.substr(1, host.size() - 2) : host;
  const std::string_view marks = bracketed ? ":.%-_" : ".-_";
  const auto fits = [marks](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || marks.find(c) != marks.npos;
  };
  uint32_t port = 0;
  if (colon != std::string::npos && !inner.empty() &&
      std::all_of(inner.begin(), inner.end(), fits) &&
      absl::SimpleAtoi(address.substr(colon + 1), &port) && port <= 65535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("address '", printable(address), "' is not HOST:PORT"));
}

std::shared_ptr<StreamHandler> make_accept_handler(GrpcSharedPtr shared,
                                                   std::shared_ptr<GrpcAccepted> accepted) {
  return std::make_shared<AcceptHandler>(std::move(shared), std::move(accepted));
}

absl::Status DialHandler::on_hello(GrpcStream& stream, std::string text) {
  auto hello = parse_hello(text);
  if (!hello.ok()) return hello.status();
  if (hello->worker() != connection_->peer().id.bits()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker '", hello->name(), "' answers there"));
  }
  ProtocolRange protocols;
  {
    MutexLock lock(shared_->mutex);
    protocols = shared_->self.protocols;
  }
  WEFT_RETURN_IF_ERROR(common_protocol(*hello, protocols).status());
  if (shared_->tls != nullptr) {
    const std::optional<std::string> role = far_end_->role();
    if (!role.has_value()) return absl::PermissionDeniedError("the far end shows no certificate");
    WEFT_RETURN_IF_ERROR(check_hello_role(*role, *hello));
  }
  if (kind_ == kControlStream) {
    connection_->set_peer_role(hello->role());
  } else if (hello->role() != connection_->peer().role) {
    return absl::PermissionDeniedError("a further stream of another role");
  }
  open_.store(true);
  connection_->set_stream(kind_, stream.shared_from_this());
  if (auto ready = std::exchange(ready_, nullptr)) ready(absl::OkStatus());
  return absl::OkStatus();
}

void DialHandler::on_end(GrpcStream& stream, absl::Status reason) {
  if (open_) {
    connection_->stream_ended(kind_, stream, std::move(reason));
  } else {
    failed(std::move(reason));
  }
  shared_->remove(&stream);
}

void DialHandler::failed(absl::Status reason) {
  auto ready = std::exchange(ready_, nullptr);
  if (ready == nullptr) return;
  if (late_.load()) reason = absl::DeadlineExceededError("no answer before the deadline");
  const absl::Status tls =
      shared_->tls != nullptr ? tls_failure(*far_end_, reason) : absl::OkStatus();
  if (!tls.ok()) {
    reason = tls;
  } else if (!was_heard(reason)) {
    reason = absl::DeadlineExceededError(reason.message());
  }
  if (!reason.ok() && !has_descriptors()) {
    reason = absl::ResourceExhaustedError("this process has no file descriptor left");
  }
  ready(reason.ok() ? absl::UnavailableError("the stream ended before its first answer")
                    : std::move(reason));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> DialHandler::connect(const std::string& address) {
  const grpc::ChannelArguments arguments = channel_arguments(kind_ == kBulkStream);
  if (is_local(address) != shared_->sockets->local()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "one end uses unix sockets and the other TCP. All workers of a group must have the same "
        "WEFT_SECURITY and the same kind of listen_host"));
  }
  if (shared_->sockets->local()) {
    WEFT_ASSIGN_OR_RETURN(FileDescriptor socket, shared_->sockets->connect(address));
    return grpc::CreateCustomInsecureChannelFromFd("weft", socket.release(), arguments);
  }
  WEFT_RETURN_IF_ERROR(check_host_and_port(address));
  if (shared_->options.tls != nullptr && shared_->tls == nullptr) {
    return absl::InternalError("the transport does not listen yet");
  }
  const PeerIdentity& peer = connection_->peer();
  return grpc::CreateCustomChannel(
      absl::StrCat("dns:///", address),
      shared_->tls != nullptr
          ? shared_->tls->for_dialling(WorkerClaim{peer.name, peer.id.index}, far_end_)
          : grpc::InsecureChannelCredentials(),
      arguments);
}

std::shared_ptr<DialHandler> dial_stream(const GrpcSharedPtr& shared, const std::string& address,
                                         const GrpcConnectionPtr& connection, StreamKind kind,
                                         DialHandler::Ready ready) {
  auto handler = std::make_shared<DialHandler>(shared, connection, kind, std::move(ready));
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = handler->connect(address);
  if (!channel.ok()) {
    // `ready` must not run inside this call.
    shared->clock.call_at(shared->clock.now(),
                          [handler, why = channel.status()] { handler->failed(why); });
    return handler;
  }
  auto stream =
      std::make_shared<ClientStream>(*std::move(channel), StreamService::kMethods[kind],
                                     *shared->queue, shared->options.limits, shared->pool);
  handler->set_stream(stream);
  stream->set_handler(handler);
  wire::Hello hello;
  {
    MutexLock lock(shared->mutex);
    hello = hello_of(shared->self);
    if (shared->stopped) return handler;
    shared->streams.emplace(stream.get(), stream);
  }
  hello.set_expected(connection->peer().id.bits());
  hello.set_connection(connection->number());
  hello.set_stream(static_cast<uint32_t>(kind));
  stream->set_hello(hello.SerializeAsString());
  stream->start();
  return handler;
}

void dial_further_stream(const GrpcSharedPtr& shared, const std::string& address,
                         const GrpcConnectionPtr& connection, StreamKind kind) {
  const auto dial = dial_stream(shared, address, connection, kind, [=](const absl::Status&) {
    if (kind == kHeartbeatStream) connection->heartbeats_dialled();
  });
  give_up_at(shared->clock, shared->clock.now() + kStreamAnswers, dial);
}

void give_up_at(Clock& clock, TimePoint deadline, const std::shared_ptr<DialHandler>& dial) {
  clock.call_at(deadline, [weak = std::weak_ptr<DialHandler>(dial)] {
    if (const auto waiting = weak.lock()) waiting->deadline_passed();
  });
}

}  // namespace weft::rpc_internal
