// GrpcStream is one end of a bidirectional gRPC stream of records. The dialling end (ClientStream)
// and the accepting end (ServerStream) share most of their code.
//
// Thread safety: the public methods of GrpcStream may be called from any thread. The handler's
// methods run one at a time, without a lock, on the thread that serves the completion queue. on_end
// may also run inside begin_reading().
// Lifetime: a stream keeps itself alive while gRPC has an operation of it. It holds its handler by
// shared_ptr until its last operation is complete, so that no completion finds the handler gone.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "weft/base/mutex.h"
#include "weft/rpc/transport/internal/heartbeat_routes.h"
#include "weft/rpc/transport/internal/stream_codec.h"

namespace weft::rpc_internal {

class GrpcStream;

// A tag of a completion queue: the queue returns it when this operation of the stream is complete.
class GrpcOperation {
 public:
  using Ended = void (GrpcStream::*)(bool ok);
  GrpcOperation(GrpcStream& stream, Ended ended) : stream_(stream), ended_(ended) {}
  void ended(bool ok);

 private:
  GrpcStream& stream_;
  const Ended ended_;
};

class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // The far end's hello came. If this returns an error, the stream closes with it. The accepting
  // end reads nothing more before begin_reading().
  virtual absl::Status on_hello(GrpcStream& stream, std::string hello) = 0;
  virtual void on_frames(GrpcStream& stream, std::vector<Frame> frames) = 0;
  // The last call: nothing more is read or written.
  virtual void on_end(GrpcStream& stream, absl::Status reason) = 0;
};

class GrpcStream : public std::enable_shared_from_this<GrpcStream> {
 public:
  virtual ~GrpcStream() = default;

  void set_handler(std::shared_ptr<StreamHandler> handler) ABSL_LOCKS_EXCLUDED(mutex_);
  // The accepting end answers the hello that the stream was opened with. It accepts with send_hello
  // and then begin_reading. Or it refuses: the stream closes now, with `why` in its gRPC status.
  void send_hello(std::string hello) ABSL_LOCKS_EXCLUDED(mutex_);
  void begin_reading() ABSL_LOCKS_EXCLUDED(mutex_);
  void refuse(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues frames and does not block. Returns false if the stream has closed.
  bool send(FrameBatch frames) ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes the stream once all queued frames are written.
  void end() ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes the stream now. If the network hangs, `on_end` may come late: gRPC keeps a write that
  // waits for the socket until TCP gives up (grpc_sockets.h). Unix sockets give up only when the
  // transport stops.
  void cut() ABSL_LOCKS_EXCLUDED(mutex_);
  StreamBytes bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // At the accepting end: the URIs in the certificate that the far end has shown.
  virtual std::vector<std::string> far_uris() const { return {}; }
  // At the accepting end: gRPC's name for the far end's address.
  virtual std::string far_address() const { return ""; }
  // The first error of the stream so far. It is known here before on_end reports it.
  absl::Status reason() const ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  GrpcStream(const TransportLimits& limits, BufferPool& pool, FrameReader::Begins begins)
      : reader_(limits, pool, begins) {}

  virtual void start_read(grpc::ByteBuffer* buffer, void* tag) = 0;
  virtual void start_write(const grpc::ByteBuffer& buffer, void* tag) = 0;
  // At the dialling end only: tells the far end that nothing more will be written.
  virtual void start_last_write(void* tag) = 0;
  // Starts the last operation. It sends the stream's gRPC status (accepting end) or receives it.
  virtual void start_finish(void* tag) = 0;
  virtual bool accepting() const = 0;
  virtual void try_cancel() = 0;
  // The gRPC status as an error of Weft, known once start_finish is complete. The accepting end
  // returns OK.
  virtual absl::Status final_status() const = 0;

  // Call it before the first operation: the stream then lives until all operations are complete.
  void keep_alive() { self_ = shared_from_this(); }
  // Writes may begin now.
  void opened() ABSL_LOCKS_EXCLUDED(mutex_);
  // The stream could not be opened, or nothing more can be read.
  void read_ended() ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts an operation that a derived class starts. GrpcOperation::ended counts it off.
  void note_started() ABSL_LOCKS_EXCLUDED(mutex_);
  // Notes that the far end or the network cut the stream, so that it did not close in order.
  void note_cut() ABSL_LOCKS_EXCLUDED(mutex_);
  // At the accepting end only: the error that refuse() was given, for start_finish.
  const absl::Status& refusal() const { return refusal_; }
  // Gives the far end's hello to the handler.
  absl::Status greet(std::string hello) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class GrpcOperation;
  // The operations to start after the lock is released: gRPC may write to the socket in that call.
  struct Next {
    bool write = false;
    bool last_write = false;
    bool finish = false;
  };
  Next next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether nothing waits to be written. Call it only while no write runs: during a write, the
  // write operation uses writer_ without the lock.
  bool drained() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return hello_.empty() && queue_.empty() && writer_.empty();
  }
  void start(Next next);

  void read_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts the next read. This function counts as an operation: its caller has counted it, and it
  // counts itself off.
  void read_on() ABSL_LOCKS_EXCLUDED(mutex_);
  void write_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void last_write_done(bool) {}
  void finish_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void count_off() ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<GrpcStream> self_;
  FrameReader reader_;
  grpc::ByteBuffer incoming_;  // the read operation's
  int crowded_ = 0;            // how many more reads count as busy; the read operation's too
  grpc::ByteBuffer outgoing_;  // the write operation's
  // gRPC has at most one of each at a time.
  GrpcOperation read_{*this, &GrpcStream::read_done};
  GrpcOperation write_{*this, &GrpcStream::write_done};
  GrpcOperation last_write_{*this, &GrpcStream::last_write_done};
  GrpcOperation finish_{*this, &GrpcStream::finish_done};

  FrameWriter writer_;    // the write operation's
  absl::Status refusal_;  // written before closed_ is set, read after that

  mutable Mutex mutex_;
  std::shared_ptr<StreamHandler> handler_ ABSL_GUARDED_BY(mutex_);
  std::string hello_ ABSL_GUARDED_BY(mutex_);            // to be written first
  std::vector<FramePtr> queue_ ABSL_GUARDED_BY(mutex_);  // not yet in the writer
  uint64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // since the stream began
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of queue_
  size_t writer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // in the writer, or in the write that runs
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;            // operations that gRPC has
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;     // end() was called: drain, then close
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;     // the far end or the network is gone
  bool read_over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more will be read
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;     // nothing more will be written
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

// The dialler's hello is metadata of the stream's call. So gRPC limits its size, and the accepting
// end has it before it reads anything or allocates memory for it.
constexpr const char* kHelloKey = "weft-hello-bin";

// The dialling end.
class ClientStream final : public GrpcStream {
 public:
  ClientStream(std::shared_ptr<grpc::Channel> channel, const std::string& method,
               grpc::CompletionQueue& queue, const TransportLimits& limits, BufferPool& pool);
  // Call it before `start`.
  void set_hello(const std::string& hello) { context_.AddMetadata(kHelloKey, hello); }
  void start();

 private:
  void start_read(grpc::ByteBuffer* buffer, void* tag) override { call_->Read(buffer, tag); }
  void start_write(const grpc::ByteBuffer& buffer, void* tag) override {
    call_->Write(buffer, tag);
  }
  // The server reads everything that was written, then sees that no more comes, and finishes.
  void start_last_write(void* tag) override { call_->WritesDone(tag); }
  void start_finish(void* tag) override { call_->Finish(&status_, tag); }
  bool accepting() const override { return false; }
  void try_cancel() override { context_.TryCancel(); }
  absl::Status final_status() const override;
  void started(bool ok);

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::Status status_;
  GrpcOperation start_;
};

// The service that the accepting end offers: one method per stream.
class StreamService final : public grpc::Service {
 public:
  static constexpr const char* kMethods[kStreams] = {"/weft.Worker/Stream", "/weft.Worker/Bulk",
                                                     "/weft.Worker/Heartbeats"};

  StreamService();
  void request(size_t kind, grpc::ServerContext* context,
               grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>* call,
               grpc::ServerCompletionQueue* queue, void* tag) {
    RequestAsyncBidiStreaming(static_cast<int>(kind), context, call, queue, queue, tag);
  }
};

// The accepting end.
class ServerStream final : public GrpcStream {
 public:
  // `stream` is null if the server has shut down.
  using Accepted = std::function<void(const std::shared_ptr<ServerStream>& stream)>;

  ServerStream(const TransportLimits& limits, BufferPool& pool);
  // Waits, without blocking, until a peer opens this stream. Then `accepted` runs and must set the
  // handler, which gets the hello. If the server shuts down first, `accepted` runs with null.
  void accept(StreamService& service, size_t kind, grpc::ServerCompletionQueue& queue,
              Accepted accepted);
  std::vector<std::string> far_uris() const override;
  std::string far_address() const override { return context_.peer(); }

 private:
  void start_read(grpc::ByteBuffer* buffer, void* tag) override { call_.Read(buffer, tag); }
  void start_write(const grpc::ByteBuffer& buffer, void* tag) override { call_.Write(buffer, tag); }
  void start_last_write(void*) override {}
  void start_finish(void* tag) override;
  bool accepting() const override { return true; }
  void try_cancel() override { context_.TryCancel(); }
  absl::Status final_status() const override { return absl::OkStatus(); }
  void accept_done(bool ok);
  void call_done(bool ok);

  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> call_{&context_};
  Accepted accepted_;
  GrpcOperation accept_;
  GrpcOperation done_;
};

}  // namespace weft::rpc_internal
