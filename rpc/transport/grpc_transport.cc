#include "weft/rpc/transport/grpc_transport.h"

#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/base/freed_memory.h"
#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/links/grpc_settings.h"
#include "weft/rpc/transport/internal/grpc_completions.h"
#include "weft/rpc/transport/internal/grpc_handshake.h"

namespace weft {
namespace {

using rpc_internal::GrpcStream;
using rpc_internal::kBulkStream;
using rpc_internal::kControlStream;
using rpc_internal::kHeartbeatStream;
using rpc_internal::kStreams;
using rpc_internal::ServerStream;
using rpc_internal::StreamService;

constexpr int kLookahead = 16 << 20;     // what a far end may send ahead of the reader, per stream
constexpr int kMostMetadata = 16 << 10;  // all metadata of a stream, base64 or not
constexpr int kMostStreams = 4;          // of one TCP connection; each stream has its own
constexpr int kIdleMs = 10'000;          // of a TCP connection without a stream

}  // namespace

class GrpcTransport::Impl {
 public:
  Impl(Clock& clock, GrpcTransportOptions options)
      : shared_(std::make_shared<rpc_internal::GrpcShared>(clock, std::move(options))),
        accepted_(std::make_shared<rpc_internal::GrpcAccepted>()) {}

  absl::Status listen() {
    if (server_ != nullptr) return absl::OkStatus();
    // gRPC reads into memory from malloc and frees it. Fresh pages cost several times the copy.
    keep_freed_memory();
    prepare_grpc();
    const std::string& wanted = shared_->options.listen_address;
    if (!shared_->sockets->local()) {
      WEFT_RETURN_IF_ERROR(prepend("cannot listen: ", rpc_internal::check_host_and_port(wanted)));
    }
    if (shared_->options.tls != nullptr) {
      if (shared_->sockets->local()) {
        return absl::InvalidArgumentError("unix sockets are used without TLS");
      }
      if (shared_->tls == nullptr) {
        WEFT_ASSIGN_OR_RETURN(shared_->tls, GrpcTls::create(shared_->options.tls));
      }
    }
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(rpc_internal::kMostMessage);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kLookahead);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMostMetadata);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostStreams);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kIdleMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
    for (const auto& [name, value] : kGiveUpArguments) {
      builder.AddChannelArgument(name, value);
    }
    using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        External::FROM_FD, shared_->tls != nullptr ? shared_->tls->for_listening()
                                                   : grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    shared_->queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    completions_.emplace(*shared_->queue, shared_->options.spin);
    if (absl::Status listening = accept_connections(); !listening.ok()) {
      return end_unserved(listening);
    }
    threads_.emplace([this] { return completions_->serve_one(); });
    if (absl::Status started = threads_->started(); !started.ok()) return end_unserved(started);
    for (size_t kind = 0; kind < kStreams; ++kind) accept(kind);
    return absl::OkStatus();
  }

  const std::string& address() const { return shared_->sockets->address(); }
  uint64_t looks() const { return completions_.has_value() ? completions_->looks() : 0; }

  absl::Status start(PeerIdentity self, TransportSink* sink) {
    WEFT_RETURN_IF_ERROR(listen());
    decltype(shared_->waiting) waiting;
    {
      MutexLock lock(shared_->mutex);
      shared_->self = std::move(self);
      shared_->sink = sink;
      waiting.swap(shared_->waiting);
    }
    for (const auto& [stream, resume] : waiting) resume();
    return absl::OkStatus();
  }

  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) {
    uint64_t number = 0;
    {
      MutexLock lock(shared_->mutex);
      number = shared_->next_connection++;
    }
    auto connection = std::make_shared<rpc_internal::GrpcConnection>(shared_, expected, number);
    auto handler = rpc_internal::dial_stream(
        shared_, address, connection, kControlStream,
        [shared = shared_, address, connection,
         callback = std::move(callback)](absl::Status status) mutable {
          if (status.ok()) {
            connection->set_heartbeat_dialler([shared, address, weak = std::weak_ptr(connection)] {
              if (auto alive = weak.lock()) {
                rpc_internal::dial_further_stream(shared, address, alive, kHeartbeatStream);
              }
            });
          }
          shared->with_sink([&](TransportSink&) {
            if (!status.ok()) {
              callback(std::move(status));
              return;
            }
            callback(ConnectionPtr(connection));
          });
          if (status.ok()) {
            // Small frames need not wait for the bulk stream. Until it is open, all frames travel
            // on the control stream.
            rpc_internal::dial_further_stream(shared, address, connection, kBulkStream);
          }
        });
    if (deadline != kNever) rpc_internal::give_up_at(shared_->clock, deadline, handler);
  }

  void stop() {
    std::vector<std::shared_ptr<GrpcStream>> streams;
    {
      MutexLock lock(shared_->mutex);
      if (shared_->stopped) return;
      shared_->stopped = true;
      for (auto& [raw, weak] : shared_->streams) {
        if (auto stream = weak.lock()) streams.push_back(std::move(stream));
      }
      shared_->waiting.clear();
    }
    for (const auto& stream : streams) stream->end();
    wait_for_streams(std::chrono::steady_clock::now() + shared_->options.grace);
    {
      MutexLock lock(shared_->mutex);
      shared_->sink = nullptr;
      while (shared_->callbacks > 0) shared_->changed.wait(shared_->mutex);
      streams.clear();
      for (auto& [raw, weak] : shared_->streams) {
        if (auto stream = weak.lock()) streams.push_back(std::move(stream));
      }
    }
    for (const auto& stream : streams) stream->cut();
    streams.clear();
    shared_->sockets->stop();
    {
      MutexLock lock(requests_mutex_);
      shutting_down_ = true;
    }
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    {
      // The server cuts a stream that is accepted just now. Its callback adds the stream to
      // `streams` before it counts down `accepting`.
      MutexLock lock(shared_->mutex);
      while (shared_->accepting > 0) shared_->changed.wait(shared_->mutex);
    }
    wait_for_streams(kNever);
    end_threads();
    keep_grpc_if_threads_are_refused();
  }

 private:
  absl::Status accept_connections() {
    if (server_ == nullptr) return absl::ResourceExhaustedError("gRPC cannot start a server");
    const absl::Status status = shared_->sockets->listen([this](FileDescriptor connection) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = connection.release();
      acceptor_->HandleNewConnection(&parameters);
    });
    if (!absl::IsAlreadyExists(status) && !absl::IsNotFound(status) &&
        !absl::IsUnavailable(status)) {
      return status;
    }
    return absl::UnavailableError(absl::StrCat("cannot listen: ", status.message()));
  }
  // Accepts the next stream of this kind, without blocking, and then calls itself again. It stops
  // doing so when the server shuts down.
  void accept(size_t kind) {
    // gRPC 1.51 asks once whether the server shuts down, and then queues the request. A request
    // that it queues after the shutdown would never end. (gRPC makes requests of its own, for
    // methods that do not exist. They have the same fault, after a call of such a method.)
    MutexLock lock(requests_mutex_);
    if (shutting_down_) return;
    auto stream = std::make_shared<ServerStream>(shared_->options.limits, shared_->pool);
    shared_->count_accepting(1);
    // The callback may use `this`, because stop() waits until the count is 0.
    stream->accept(service_, kind, *shared_->queue,
                   [this, kind](const std::shared_ptr<ServerStream>& opened) {
                     if (opened != nullptr) {
                       accept(kind);
                       opened->set_handler(rpc_internal::make_accept_handler(shared_, accepted_));
                       shared_->add(opened);
                     }
                     shared_->count_accepting(-1);
                   });
  }
  // Undoes `listen` if the system has no thread for the queue, or no socket.
  absl::Status end_unserved(absl::Status why) {
    shared_->renew_sockets();  // for a later `listen`
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    shared_->queue->Shutdown();
    while (completions_->serve_one()) {
    }
    threads_.reset();
    server_ = nullptr;
    keep_grpc_if_threads_are_refused();
    return why;
  }
  void end_threads() {
    if (!threads_.has_value()) return;
    shared_->queue->Shutdown();
    threads_->join();
    threads_.reset();
  }
  void wait_for_streams(TimePoint deadline) {
    MutexLock lock(shared_->mutex);
    while (!shared_->streams.empty()) {
      if (!shared_->changed.wait_until(shared_->mutex, deadline)) return;
    }
  }

  const rpc_internal::GrpcSharedPtr shared_;
  const std::shared_ptr<rpc_internal::GrpcAccepted> accepted_;
  StreamService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::optional<rpc_internal::GrpcCompletions> completions_;  // of shared_->queue
  std::optional<ServingThreads> threads_;                     // they serve the queue
  Mutex requests_mutex_;  // held while gRPC is asked for a further stream
  bool shutting_down_ ABSL_GUARDED_BY(requests_mutex_) = false;
};

GrpcTransport::GrpcTransport(Clock& clock, GrpcTransportOptions options)
    : impl_(std::make_unique<Impl>(clock, std::move(options))) {}
GrpcTransport::~GrpcTransport() { stop(); }

absl::Status GrpcTransport::listen() { return impl_->listen(); }
std::string GrpcTransport::address() const { return impl_->address(); }
absl::Status GrpcTransport::start(PeerIdentity self, TransportSink* sink) {
  return impl_->start(std::move(self), sink);
}
void GrpcTransport::connect(const std::string& address, const PeerIdentity& expected,
                            TimePoint deadline, ConnectCallback callback) {
  impl_->connect(address, expected, deadline, std::move(callback));
}
void GrpcTransport::stop() { impl_->stop(); }
uint64_t GrpcTransport::looks() const { return impl_->looks(); }

}  // namespace weft
