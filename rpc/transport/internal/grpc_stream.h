// One bidirectional gRPC stream of records, the same at the dialling and at the accepting end.
//
// Thread safety: send and end may be called from any thread. The handler's methods run without a
// lock, one at a time, on the thread that serves the stream's completion queue.
// Lifetime: a stream keeps itself alive while an operation of it is in the queue. It holds its
// handler by shared_ptr until its last operation, so that no completion meets a dead handler.
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

// The tag of one operation of a stream: the completion queue hands it back when the operation is
// complete.
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
  // The far end's hello. An error ends the stream with it. At the accepting end nothing else is
  // read before begin_reading().
  virtual absl::Status on_hello(GrpcStream& stream, std::string hello) = 0;
  virtual void on_frames(GrpcStream& stream, std::vector<Frame> frames) = 0;
  // Last call: nothing more is read or written.
  virtual void on_end(GrpcStream& stream, absl::Status reason) = 0;
};

class GrpcStream : public std::enable_shared_from_this<GrpcStream> {
 public:
  virtual ~GrpcStream() = default;

  void set_handler(std::shared_ptr<StreamHandler> handler) ABSL_LOCKS_EXCLUDED(mutex_);
  // The accepting end's answer to the hello that opened the stream. Either it sends its own hello
  // and begins to read, or it refuses: then the stream ends now, with `why` in its gRPC status.
  void send_hello(std::string hello) ABSL_LOCKS_EXCLUDED(mutex_);
  void begin_reading() ABSL_LOCKS_EXCLUDED(mutex_);
  void refuse(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the stream has ended.
  bool send(FrameBatch frames) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream once what is queued was written.
  void end() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it now. If the wire hangs, `on_end` may come late: gRPC keeps a write that waits for the
  // socket until TCP gives up (kGiveUpArguments, grpc_handshake.h).
  void cut() ABSL_LOCKS_EXCLUDED(mutex_);
  StreamBytes bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What has gone wrong on it so far, before on_end tells.
  absl::Status reason() const ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  GrpcStream(const TransportLimits& limits, BufferPool& pool, FrameReader::Begins begins)
      : reader_(limits, pool, begins) {}

  virtual void start_read(grpc::ByteBuffer* buffer, void* tag) = 0;
  virtual void start_write(const grpc::ByteBuffer& buffer, void* tag) = 0;
  // The dialling end alone: tells the far end that nothing more will be written.
  virtual void start_last_write(void* tag) = 0;
  // The last operation: the far end's death record, or ours.
  virtual void start_finish(void* tag) = 0;
  virtual bool accepting() const = 0;
  virtual void try_cancel() = 0;
  // Why the stream ended, known once it has finished.
  virtual absl::Status death_record() const = 0;

  // From here gRPC uses the stream until all its operations have ended.
  void keep_alive() { self_ = shared_from_this(); }
  // Writes may begin.
  void opened() ABSL_LOCKS_EXCLUDED(mutex_);
  // The stream never came to be, or reading is over.
  void read_ended() ABSL_LOCKS_EXCLUDED(mutex_);
  // An operation that is not the base's own was started; its `ended` counts it off.
  void note_started() ABSL_LOCKS_EXCLUDED(mutex_);
  // The far end or the wire was cut, not ended in order.
  void note_cut() ABSL_LOCKS_EXCLUDED(mutex_);
  // The accepting end alone. What refuse() was told, for start_finish.
  const absl::Status& refusal() const { return refusal_; }
  // Gives the far end's hello to the handler.
  absl::Status greet(std::string hello) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class GrpcOperation;
  // The operations to start once the lock is released: gRPC may write to the socket inside the
  // call.
  struct Next {
    bool write = false;
    bool last_write = false;
    bool finish = false;
  };
  Next next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing waits to be written. While no write is under way the writer is the lock holder's.
  bool drained() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return hello_.empty() && queue_.empty() && writer_.empty();
  }
  void start(Next next);

  void read_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // An operation of its own: its caller has counted it, it counts itself off.
  void read_on() ABSL_LOCKS_EXCLUDED(mutex_);
  void write_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void last_write_done(bool) {}
  void finish_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void count_off() ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<GrpcStream> self_;
  FrameReader reader_;
  grpc::ByteBuffer incoming_;  // the read slot's
  int crowded_ = 0;            // so many more reads count as busy; the read slot's too
  grpc::ByteBuffer outgoing_;  // the write slot's
  // At most one of each is under way.
  GrpcOperation read_{*this, &GrpcStream::read_done};
  GrpcOperation write_{*this, &GrpcStream::write_done};
  GrpcOperation last_write_{*this, &GrpcStream::last_write_done};
  GrpcOperation finish_{*this, &GrpcStream::finish_done};

  FrameWriter writer_;    // the write slot's
  absl::Status refusal_;  // written before closed_ is set, read after that

  mutable Mutex mutex_;
  std::shared_ptr<StreamHandler> handler_ ABSL_GUARDED_BY(mutex_);
  std::string hello_ ABSL_GUARDED_BY(mutex_);            // to be written first
  std::vector<FramePtr> queue_ ABSL_GUARDED_BY(mutex_);  // not yet the writer's
  uint64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // since the beginning
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // of the queue
  size_t writer_bytes_ ABSL_GUARDED_BY(mutex_) = 0;      // what the writer has or is writing
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;            // operations that gRPC has
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool starting_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;     // end() was called: drain, then close
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;     // the far end or the wire is gone
  bool read_over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more will be read
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;     // nothing more will be written
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

// The hello of a stream is metadata of its call: so gRPC bounds it, and the accepting end knows it
// before it reads, or makes room for, anything.
constexpr const char* kHelloKey = "weft-hello-bin";

// The dialling end.
class ClientStream final : public GrpcStream {
 public:
  ClientStream(std::shared_ptr<grpc::Channel> channel, const std::string& method,
               grpc::CompletionQueue& queue, const TransportLimits& limits, BufferPool& pool);
  // Before `start`.
  void set_hello(const std::string& hello) { context_.AddMetadata(kHelloKey, hello); }
  void start();

 private:
  void start_read(grpc::ByteBuffer* buffer, void* tag) override { call_->Read(buffer, tag); }
  void start_write(const grpc::ByteBuffer& buffer, void* tag) override {
    call_->Write(buffer, tag);
  }
  // The server sees the end of the stream after all that was written, and finishes.
  void start_last_write(void* tag) override { call_->WritesDone(tag); }
  void start_finish(void* tag) override { call_->Finish(&status_, tag); }
  bool accepting() const override { return false; }
  void try_cancel() override { context_.TryCancel(); }
  absl::Status death_record() const override;
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
  // Null: the server has ended.
  using Accepted = std::function<void(const std::shared_ptr<ServerStream>& stream)>;

  ServerStream(const TransportLimits& limits, BufferPool& pool);
  // Waits for one stream to be opened; `accepted` then sets its handler, which gets the hello.
  // Without a call when the server ends.
  void accept(StreamService& service, size_t kind, grpc::ServerCompletionQueue& queue,
              Accepted accepted);

 private:
  void start_read(grpc::ByteBuffer* buffer, void* tag) override { call_.Read(buffer, tag); }
  void start_write(const grpc::ByteBuffer& buffer, void* tag) override { call_.Write(buffer, tag); }
  void start_last_write(void*) override {}
  void start_finish(void* tag) override;
  bool accepting() const override { return true; }
  void try_cancel() override { context_.TryCancel(); }
  absl::Status death_record() const override { return absl::OkStatus(); }
  void accept_done(bool ok);
  void call_done(bool ok);

  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> call_{&context_};
  Accepted accepted_;
  GrpcOperation accept_;
  GrpcOperation done_;
};

}  // namespace weft::rpc_internal
