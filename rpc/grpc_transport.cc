#include "weft/rpc/grpc_transport.h"

#include <cstdlib>
#include <functional>
#include <malloc.h>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/serving_threads.h"
#include "weft/base/status.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/internal/grpc_stream.h"
#include "weft/rpc/internal/status_wire.h"

namespace weft {
namespace {

using internal::ClientStream;
using internal::GrpcStream;
using internal::ServerStream;
using internal::StreamHandler;
using internal::StreamService;

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kLanes = 2;

grpc::ChannelArguments channel_arguments(bool bulk) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // A connection of its own for each stream; nothing is retried below the session.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  if (bulk) {
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  }
  return arguments;
}

void keep_freed_memory() {
  static const bool once = [] {
    // What the environment sets wins. The second is the largest that glibc allows.
    if (std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) mallopt(M_TRIM_THRESHOLD, 128 << 20);
    if (std::getenv("MALLOC_MMAP_THRESHOLD_") == nullptr) mallopt(M_MMAP_THRESHOLD, 32 << 20);
    return true;
  }();
  (void)once;
}

size_t bulk_size(const Frame& frame) { return frame.payload_bytes() + frame.body.size(); }

// What both ends' connections and streams share with the transport.
struct Shared {
  explicit Shared(GrpcTransportOptions options_in) : options(std::move(options_in)) {}

  const GrpcTransportOptions options;
  internal::BufferPool pool;
  // Of all streams, at both ends; set by listen. One queue, served by one thread at a time:
  // gRPC 1.51 lets one thread of the process wait in epoll for all queues, and a second queue's
  // would be woken to pass events on.
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  Mutex mutex;
  CondVar changed;
  PeerIdentity self ABSL_GUARDED_BY(mutex);
  TransportSink* sink ABSL_GUARDED_BY(mutex) = nullptr;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::map<GrpcStream*, std::weak_ptr<GrpcStream>> streams ABSL_GUARDED_BY(mutex);  // not done yet
  int callbacks ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::function<void()>> waiting ABSL_GUARDED_BY(mutex);  // hellos before start
  uint64_t next_connection ABSL_GUARDED_BY(mutex) = std::random_device()() | 1;

  void add(const std::shared_ptr<GrpcStream>& stream) {
    MutexLock lock(mutex);
    streams.emplace(stream.get(), stream);
  }
  void remove(GrpcStream* stream) {
    MutexLock lock(mutex);
    streams.erase(stream);
    changed.notify_all();
  }
  // Runs `f(sink)` unless the transport has not started or has stopped. While it stops, only what
  // ends is still reported.
  template <class F>
  void with_sink(F f, bool even_stopped = true) {
    TransportSink* target = nullptr;
    {
      MutexLock lock(mutex);
      if (sink == nullptr || (stopped && !even_stopped)) return;
      target = sink;
      ++callbacks;
    }
    f(*target);
    MutexLock lock(mutex);
    --callbacks;
    changed.notify_all();
  }
};
using SharedPtr = std::shared_ptr<Shared>;

// One connection at either end: a control stream, and a bulk stream as soon as it stands.
class GrpcConnection final : public Connection,
                             public std::enable_shared_from_this<GrpcConnection> {
 public:
  GrpcConnection(SharedPtr shared, PeerIdentity peer, uint64_t number)
      : shared_(std::move(shared)), peer_(std::move(peer)), number_(number) {}

  bool send(FramePtr frame) override {
    std::shared_ptr<GrpcStream> stream;
    {
      MutexLock lock(mutex_);
      const bool bulk = lanes_[1] != nullptr && bulk_size(*frame) > shared_->options.bulk_from;
      stream = lanes_[bulk ? 1 : 0];
    }
    return stream != nullptr && stream->send(std::move(frame));
  }
  void close() override {
    for (const auto& stream : lanes()) stream->end();
  }
  const PeerIdentity& peer() const override { return peer_; }
  size_t queued_bytes() const override {
    size_t total = 0;
    for (const auto& stream : lanes()) total += stream->queued_bytes();
    return total;
  }

  uint64_t number() const { return number_; }
  void set_lane(size_t lane, std::shared_ptr<GrpcStream> stream) {
    {
      MutexLock lock(mutex_);
      if (!closed_) {
        lanes_[lane] = std::move(stream);
        return;
      }
    }
    stream->end();  // the other lane took the connection down
  }
  void received(Frame frame) {
    {
      MutexLock lock(mutex_);
      if (closed_) return;  // the bulk lane may end after the connection
      ++delivering_;
    }
    shared_->with_sink(
        [&](TransportSink& sink) { sink.on_frame(shared_from_this(), std::move(frame)); });
    {
      MutexLock lock(mutex_);
      if (--delivering_ > 0 || !closed_) return;
    }
    report_closed();
  }
  // The control lane's end is the connection's; so is a bulk lane that was cut, since what was on
  // it is lost. A bulk lane that ends in order has delivered everything.
  void lane_ended(GrpcStream& ended, absl::Status reason) {
    std::vector<std::shared_ptr<GrpcStream>> rest;
    bool report = false;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      if (lanes_[0].get() != &ended && reason.ok()) {
        if (lanes_[1].get() == &ended) lanes_[1] = nullptr;
        return;
      }
      closed_ = true;
      for (auto& stream : lanes_) {
        if (stream != nullptr) rest.push_back(std::move(stream));
        stream = nullptr;
      }
      // The far end answers an error on one lane by ending the other in order.
      for (const auto& stream : rest) {
        if (reason.ok() && stream.get() != &ended) reason = stream->reason();
      }
      reason_ = std::move(reason);
      report = delivering_ == 0;
    }
    for (const auto& stream : rest) stream->end();
    if (report) report_closed();
  }

 private:
  std::vector<std::shared_ptr<GrpcStream>> lanes() const {
    std::vector<std::shared_ptr<GrpcStream>> all;
    MutexLock lock(mutex_);
    for (const auto& stream : lanes_) {
      if (stream != nullptr) all.push_back(stream);
    }
    return all;
  }

  // Once: by the lane that ended, or by the last frame that was being delivered then.
  void report_closed() {
    absl::Status reason;
    {
      MutexLock lock(mutex_);
      reason = reason_;
    }
    shared_->with_sink(
        [&](TransportSink& sink) { sink.on_closed(shared_from_this(), std::move(reason)); });
  }

  const SharedPtr shared_;
  const PeerIdentity peer_;
  const uint64_t number_;
  mutable Mutex mutex_;
  std::shared_ptr<GrpcStream> lanes_[kLanes] ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // of the end
  int delivering_ ABSL_GUARDED_BY(mutex_) = 0;   // frames that the sink has and has not returned
};
using GrpcConnectionPtr = std::shared_ptr<GrpcConnection>;

// Connections that this worker has accepted, for the bulk streams that follow.
struct Accepted {
  Mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<GrpcConnection>> by_number
      ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<wire::Hello> parse_hello(const std::string& text) {
  wire::Hello hello;
  if (!hello.ParseFromString(text)) return absl::InvalidArgumentError("a hello cannot be parsed");
  if (hello.protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("protocol version ", hello.protocol(),
                                                      ", this program speaks ", kProtocolVersion));
  }
  return hello;
}

// The accepting end of one stream.
class AcceptHandler final : public StreamHandler,
                            public std::enable_shared_from_this<AcceptHandler> {
 public:
  AcceptHandler(SharedPtr shared, std::shared_ptr<Accepted> accepted)
      : shared_(std::move(shared)), accepted_(std::move(accepted)) {}

  absl::Status on_hello(GrpcStream& stream, std::string text) override {
    auto hello = parse_hello(text);
    if (connection_ != nullptr) return absl::InvalidArgumentError("a second hello");
    bool wait = false;
    auto resume = [self = shared_from_this(), stream = stream.shared_from_this(), hello] {
      self->answer(stream, hello);
    };
    {
      MutexLock lock(shared_->mutex);
      wait = shared_->sink == nullptr && !shared_->stopped;
      if (wait) shared_->waiting.push_back(resume);
    }
    if (!wait) resume();
    return absl::OkStatus();
  }
  void on_frame(GrpcStream& stream, Frame frame) override {
    if (connection_ != nullptr) {
      connection_->received(std::move(frame));
    } else {
      stream.cut();  // frames before the answer to the hello
    }
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
  // A stream may end while its hello waits for the start: then nothing is opened. Ended while this
  // runs, on the starting thread, it is reported once it was opened.
  void answer(const std::shared_ptr<GrpcStream>& stream, const absl::StatusOr<wire::Hello>& hello) {
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
    if (connection_ != nullptr) {
      connection_->lane_ended(stream, std::move(reason_));
      MutexLock lock(accepted_->mutex);
      auto found =
          accepted_->by_number.find({connection_->peer().id.bits(), connection_->number()});
      if (found != accepted_->by_number.end() && lane_ == 0) accepted_->by_number.erase(found);
    }
    shared_->remove(&stream);
  }

  void open(const std::shared_ptr<GrpcStream>& stream, const absl::StatusOr<wire::Hello>& hello) {
    PeerIdentity self;
    {
      MutexLock lock(shared_->mutex);
      self = shared_->self;
    }
    absl::Status refused = hello.status();
    bool opened = false;
    if (refused.ok()) {
      const PeerIdentity peer{hello->group(), hello->name(), WorkerId::from_bits(hello->worker())};
      if (WorkerId::from_bits(hello->expected()) != self.id) {
        refused = absl::FailedPreconditionError(
            absl::StrCat("worker '", self.name, "' (", self.id.to_string(), ") answers there"));
      } else if (hello->lane() == 0) {
        refused = absl::UnavailableError("the worker has stopped");
        shared_->with_sink([&](TransportSink& sink) { refused = sink.on_accept(peer); }, false);
        if (refused.ok()) {
          connection_ = std::make_shared<GrpcConnection>(shared_, peer, hello->connection());
          MutexLock lock(accepted_->mutex);
          accepted_->by_number[{peer.id.bits(), hello->connection()}] = connection_;
          opened = true;
        }
      } else {
        MutexLock lock(accepted_->mutex);
        auto found = accepted_->by_number.find({peer.id.bits(), hello->connection()});
        if (found != accepted_->by_number.end()) connection_ = found->second.lock();
        if (connection_ == nullptr || hello->lane() != 1) {
          refused = absl::FailedPreconditionError("a bulk stream of no connection");
          connection_ = nullptr;
        }
      }
    }
    wire::Hello reply;
    reply.set_protocol(kProtocolVersion);
    reply.set_group(self.group);
    reply.set_name(self.name);
    reply.set_worker(self.id.bits());
    if (!refused.ok()) internal::encode_status(refused, *reply.mutable_refused());
    stream->send_hello(reply.SerializeAsString());
    if (!refused.ok()) {
      stream->end();
      return;
    }
    lane_ = hello->lane();
    connection_->set_lane(lane_, stream);
    if (opened) {
      shared_->with_sink([&](TransportSink& sink) { sink.on_open(connection_); });
    }
  }

  const SharedPtr shared_;
  const std::shared_ptr<Accepted> accepted_;
  size_t lane_ = 0;
  GrpcConnectionPtr connection_;  // set by open(), before the dialler may send frames
  Mutex mutex_;
  bool answering_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_;  // of the end; set before ended_
};

// The dialling end of one stream.
class DialHandler final : public StreamHandler {
 public:
  using Ready = absl::AnyInvocable<void(absl::Status)>;
  // `ready` runs once: OK after the far end's answer, else why not.
  DialHandler(SharedPtr shared, GrpcConnectionPtr connection, size_t lane, Ready ready)
      : shared_(std::move(shared)),
        connection_(std::move(connection)),
        lane_(lane),
        ready_(std::move(ready)) {}

  void set_stream(std::weak_ptr<GrpcStream> stream) { stream_ = std::move(stream); }
  // Gives up if the far end has not answered.
  void deadline_passed() {
    if (open_.load()) return;
    late_.store(true);
    if (auto stream = stream_.lock()) stream->cut();
  }

  absl::Status on_hello(GrpcStream& stream, std::string text) override {
    auto hello = parse_hello(text);
    if (!hello.ok()) return hello.status();
    if (hello->has_refused()) return internal::decode_status(hello->refused());
    if (hello->worker() != connection_->peer().id.bits()) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker '", hello->name(), "' answers there"));
    }
    open_.store(true);
    connection_->set_lane(lane_, stream.shared_from_this());
    if (auto ready = std::exchange(ready_, nullptr)) ready(absl::OkStatus());
    return absl::OkStatus();
  }
  void on_frame(GrpcStream&, Frame frame) override { connection_->received(std::move(frame)); }
  void on_end(GrpcStream& stream, absl::Status reason) override {
    if (open_) {
      connection_->lane_ended(stream, std::move(reason));
    } else if (auto ready = std::exchange(ready_, nullptr)) {
      if (late_.load()) reason = absl::DeadlineExceededError("no answer before the deadline");
      ready(reason.ok() ? absl::UnavailableError("the stream ended before its first answer")
                        : std::move(reason));
    }
    shared_->remove(&stream);
  }

 private:
  const SharedPtr shared_;
  const GrpcConnectionPtr connection_;
  const size_t lane_;
  Ready ready_;
  std::weak_ptr<GrpcStream> stream_;
  std::atomic<bool> open_{false};
  std::atomic<bool> late_{false};
};

std::shared_ptr<DialHandler> dial_lane(const SharedPtr& shared, const std::string& address,
                                       const GrpcConnectionPtr& connection, size_t lane,
                                       DialHandler::Ready ready) {
  auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                           channel_arguments(lane == 1));
  auto stream = std::make_shared<ClientStream>(
      channel, StreamService::kMethods[lane], *shared->queue, shared->options.limits, shared->pool);
  auto handler = std::make_shared<DialHandler>(shared, connection, lane, std::move(ready));
  handler->set_stream(stream);
  stream->set_handler(handler);
  wire::Hello hello;
  hello.set_protocol(kProtocolVersion);
  hello.set_expected(connection->peer().id.bits());
  hello.set_connection(connection->number());
  hello.set_lane(static_cast<uint32_t>(lane));
  {
    MutexLock lock(shared->mutex);
    hello.set_group(shared->self.group);
    hello.set_name(shared->self.name);
    hello.set_worker(shared->self.id.bits());
    if (shared->stopped) return handler;
    shared->streams.emplace(stream.get(), stream);
  }
  stream->start();
  stream->send_hello(hello.SerializeAsString());
  return handler;
}

}  // namespace

class GrpcTransport::Impl {
 public:
  Impl(Clock& clock, GrpcTransportOptions options)
      : clock_(clock),
        shared_(std::make_shared<Shared>(std::move(options))),
        accepted_(std::make_shared<Accepted>()) {}

  absl::Status listen() {
    if (server_ != nullptr) return absl::OkStatus();
    if (shared_->options.keep_freed_memory) keep_freed_memory();
    const std::string& wanted = shared_->options.listen_address;
    const size_t colon = wanted.rfind(':');
    if (colon == std::string::npos || colon == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("listen address '", wanted, "' is not host:port"));
    }
    int port = 0;
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    // A port that another process has is an error, not something to share.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
    builder.AddListeningPort(wanted, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    shared_->queue = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    threads_.emplace([queue = shared_->queue.get()] { return internal::serve_completion(*queue); });
    if (server_ == nullptr || port == 0) {
      server_ = nullptr;
      end_threads();
      return absl::UnavailableError(absl::StrCat("cannot listen on ", wanted,
                                                 ": the port is in use or the host is not here"));
    }
    address_ = absl::StrCat(wanted.substr(0, colon), ":", port);
    for (size_t lane = 0; lane < kLanes; ++lane) accept(lane);
    return absl::OkStatus();
  }

  const std::string& address() const { return address_; }

  absl::Status start(PeerIdentity self, TransportSink* sink) {
    WEFT_RETURN_IF_ERROR(listen());
    std::vector<std::function<void()>> waiting;
    {
      MutexLock lock(shared_->mutex);
      shared_->self = std::move(self);
      shared_->sink = sink;
      waiting.swap(shared_->waiting);
    }
    for (const auto& resume : waiting) resume();
    return absl::OkStatus();
  }

  void connect(const std::string& address, const PeerIdentity& expected, TimePoint deadline,
               ConnectCallback callback) {
    uint64_t number = 0;
    {
      MutexLock lock(shared_->mutex);
      number = shared_->next_connection++;
    }
    auto connection = std::make_shared<GrpcConnection>(shared_, expected, number);
    auto handler = dial_lane(shared_, address, connection, 0,
                             [shared = shared_, address, connection,
                              callback = std::move(callback)](absl::Status status) mutable {
                               shared->with_sink([&](TransportSink&) {
                                 if (!status.ok()) {
                                   callback(std::move(status));
                                   return;
                                 }
                                 callback(ConnectionPtr(connection));
                               });
                               if (status.ok()) {
                                 // Small frames need not wait for it, and without it all travel on
                                 // the first.
                                 dial_lane(shared, address, connection, 1, [](absl::Status) {});
                               }
                             });
    if (deadline != kNever) {
      clock_.call_at(deadline, [weak = std::weak_ptr<DialHandler>(handler)] {
        if (auto dial = weak.lock()) dial->deadline_passed();
      });
    }
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
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    wait_for_streams(kNever);
    end_threads();
  }

 private:
  // Waits, without blocking, for the next stream of this lane. The server's end ends the chain.
  void accept(size_t lane) {
    auto stream = std::make_shared<ServerStream>(shared_->options.limits, shared_->pool);
    stream->accept(service_, lane, *shared_->queue,
                   [this, lane](const std::shared_ptr<ServerStream>& opened) {
                     accept(lane);
                     opened->set_handler(std::make_shared<AcceptHandler>(shared_, accepted_));
                     shared_->add(opened);
                   });
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

  Clock& clock_;
  const SharedPtr shared_;
  const std::shared_ptr<Accepted> accepted_;
  StreamService service_;
  std::unique_ptr<grpc::Server> server_;
  std::optional<ServingThreads> threads_;  // of the queue
  std::string address_;
};

GrpcTransport::GrpcTransport(Clock& clock, GrpcTransportOptions options)
    : impl_(std::make_shared<Impl>(clock, std::move(options))) {}
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

}  // namespace weft
