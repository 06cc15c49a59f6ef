// One bidirectional gRPC stream of records, the same at the dialling and at the accepting end.
//
// Thread safety: send and end may be called from any thread; the handler's methods run on gRPC's
// threads, one at a time per stream, without a lock.
// Lifetime: a stream keeps itself alive from start until gRPC reports it done; handlers are held by
// shared_ptr until then, so that a callback never meets a dead one.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "weft/base/mutex.h"
#include "weft/rpc/internal/stream_codec.h"

namespace weft::internal {

class GrpcStream;

class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  virtual absl::Status on_hello(GrpcStream& stream, std::string hello) = 0;
  virtual void on_frame(GrpcStream& stream, Frame frame) = 0;
  // Last call: nothing more is read or written.
  virtual void on_end(GrpcStream& stream, absl::Status reason) = 0;
};

class GrpcStream : public std::enable_shared_from_this<GrpcStream> {
 public:
  virtual ~GrpcStream() = default;

  void set_handler(std::shared_ptr<StreamHandler> handler) ABSL_LOCKS_EXCLUDED(mutex_);
  void send_hello(std::string hello) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the stream has ended.
  bool send(FramePtr frame) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream once what is queued was written.
  void end() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it now.
  void cut() ABSL_LOCKS_EXCLUDED(mutex_);
  size_t queued_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What has gone wrong on it so far, before on_end tells.
  absl::Status reason() const ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  GrpcStream(const TransportLimits& limits, BufferPool& pool) : reader_(limits, pool) {}

  virtual void start_read(grpc::ByteBuffer* buffer) = 0;
  virtual void start_write(const grpc::ByteBuffer* buffer) = 0;
  // No read or write will be started any more: let gRPC finish.
  virtual void release() = 0;
  virtual bool reads_after_release() const = 0;
  virtual void try_cancel() = 0;

  void read_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void write_done(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // The far end or the wire was cut, not ended in order.
  void note_cut() ABSL_LOCKS_EXCLUDED(mutex_);
  void all_done(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);
  void read_next() { start_read(&incoming_); }
  // gRPC uses the stream from here until all_done.
  void keep_alive() { self_ = shared_from_this(); }

 private:
  // Takes the write slot if it is free and there is something to write.
  bool claim_write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void write_or_release(bool write, bool let_go);
  bool may_release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void fail(absl::Status reason) ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<GrpcStream> self_;
  FrameReader reader_;
  grpc::ByteBuffer incoming_;  // the read slot's
  grpc::ByteBuffer outgoing_;  // the write slot's
  mutable Mutex mutex_;
  std::shared_ptr<StreamHandler> handler_ ABSL_GUARDED_BY(mutex_);
  FrameWriter writer_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;  // end() was called: drain, then release
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the far end or the wire is gone
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC has let go of the call
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

// The dialling end.
class ClientStream final : public GrpcStream,
                           public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ClientStream(std::shared_ptr<grpc::Channel> channel, const TransportLimits& limits,
               BufferPool& pool);
  void start();

 private:
  void try_cancel() override { context_.TryCancel(); }
  void start_read(grpc::ByteBuffer* buffer) override { StartRead(buffer); }
  void start_write(const grpc::ByteBuffer* buffer) override { StartWrite(buffer); }
  void release() override;
  bool reads_after_release() const override { return true; }
  void OnReadDone(bool ok) override { read_done(ok); }
  void OnWriteDone(bool ok) override { write_done(ok); }
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
};

// The accepting end.
class ServerStream final : public GrpcStream, public grpc::ServerGenericBidiReactor {
 public:
  ServerStream(grpc::GenericCallbackServerContext& context, const TransportLimits& limits,
               BufferPool& pool)
      : GrpcStream(limits, pool), context_(context) {}
  void start() {
    keep_alive();
    read_next();
  }

 private:
  void try_cancel() override { context_.TryCancel(); }
  void start_read(grpc::ByteBuffer* buffer) override { StartRead(buffer); }
  void start_write(const grpc::ByteBuffer* buffer) override { StartWrite(buffer); }
  void release() override { Finish(grpc::Status::OK); }
  bool reads_after_release() const override { return false; }
  void OnReadDone(bool ok) override { read_done(ok); }
  void OnWriteDone(bool ok) override { write_done(ok); }
  void OnCancel() override { note_cut(); }
  void OnDone() override;

  grpc::GenericCallbackServerContext& context_;  // gRPC's, until OnDone
};

}  // namespace weft::internal
