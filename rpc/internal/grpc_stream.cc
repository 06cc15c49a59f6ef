#include "weft/rpc/internal/grpc_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::internal {

void GrpcStream::set_handler(std::shared_ptr<StreamHandler> handler) {
  MutexLock lock(mutex_);
  handler_ = std::move(handler);
}

bool GrpcStream::claim_write() {
  if (writing_ || broken_ || released_ || writer_.empty()) return false;
  writing_ = true;
  outgoing_ = writer_.next();
  return true;
}

bool GrpcStream::may_release() {
  if (released_ || writing_ || !(broken_ || (ending_ && writer_.empty()))) return false;
  released_ = true;
  return true;
}

void GrpcStream::write_or_release(bool write, bool let_go) {
  // Outside the lock: gRPC may write to the socket right here.
  if (write) start_write(&outgoing_);
  if (let_go) release();
}

void GrpcStream::send_hello(std::string hello) {
  bool write = false;
  {
    MutexLock lock(mutex_);
    writer_.push_hello(std::move(hello));
    write = claim_write();
  }
  write_or_release(write, false);
}

bool GrpcStream::send(FramePtr frame) {
  bool write = false;
  {
    MutexLock lock(mutex_);
    if (broken_ || ending_ || released_) return false;
    writer_.push(std::move(frame));
    write = claim_write();
  }
  write_or_release(write, false);
  return true;
}

void GrpcStream::end() {
  bool let_go = false;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    let_go = may_release();
  }
  write_or_release(false, let_go);
}

size_t GrpcStream::queued_bytes() const {
  MutexLock lock(mutex_);
  return writer_.queued_bytes();
}

absl::Status GrpcStream::reason() const {
  MutexLock lock(mutex_);
  return reason_;
}

void GrpcStream::fail(absl::Status reason) {
  bool let_go = false;
  {
    MutexLock lock(mutex_);
    broken_ = true;
    if (reason_.ok()) reason_ = std::move(reason);
    let_go = may_release();
  }
  write_or_release(false, let_go);
}

void GrpcStream::read_done(bool ok) {
  if (!ok) {
    fail(absl::OkStatus());
    return;
  }
  std::shared_ptr<StreamHandler> handler;
  {
    MutexLock lock(mutex_);
    handler = handler_;
  }
  absl::Status status = reader_.read(
      incoming_, [&](std::string hello) { return handler->on_hello(*this, std::move(hello)); },
      [&](Frame frame) { handler->on_frame(*this, std::move(frame)); });
  incoming_.Clear();
  if (!status.ok()) {
    {
      MutexLock lock(mutex_);
      if (reason_.ok()) reason_ = status;  // known before the far end can react to the cut
    }
    cut();  // first: after fail() gRPC may be done with the call
    fail(std::move(status));
    return;
  }
  MutexLock lock(mutex_);
  // A server that has finished must not read on; a client reads until the server's end.
  if (!released_ || reads_after_release()) start_read(&incoming_);
}

void GrpcStream::write_done(bool ok) {
  bool write = false, let_go = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    outgoing_.Clear();
    if (!ok) broken_ = true;
    write = claim_write();
    let_go = may_release();
  }
  write_or_release(write, let_go);
}

void GrpcStream::cut() {
  MutexLock lock(mutex_);
  if (!done_) try_cancel();
}

void GrpcStream::note_cut() {
  MutexLock lock(mutex_);
  if (reason_.ok()) reason_ = absl::UnavailableError("the connection was cut");
}

void GrpcStream::all_done(absl::Status reason) {
  std::shared_ptr<StreamHandler> handler;
  {
    MutexLock lock(mutex_);
    broken_ = true;
    released_ = true;
    done_ = true;
    writer_.clear();
    if (!reason_.ok()) reason = reason_;
    handler = std::move(handler_);
  }
  if (handler != nullptr) handler->on_end(*this, std::move(reason));
  const std::shared_ptr<GrpcStream> last = std::move(self_);  // may end this object
}

ClientStream::ClientStream(std::shared_ptr<grpc::Channel> channel, const TransportLimits& limits,
                           BufferPool& pool)
    : GrpcStream(limits, pool), channel_(std::move(channel)), stub_(channel_) {}

void ClientStream::start() {
  // A dead address must fail at once, not wait for somebody to appear.
  context_.set_wait_for_ready(false);
  stub_.PrepareBidiStreamingCall(&context_, "/weft.Worker/Stream", grpc::StubOptions(), this);
  keep_alive();
  AddHold();  // writes start outside of reactions; release() gives the hold back
  read_next();
  StartCall();
}

void ClientStream::release() {
  // The server sees the end of the stream after all that was written, and finishes.
  StartWritesDone();
  RemoveHold();
}

void ClientStream::OnDone(const grpc::Status& status) {
  all_done(status.ok() ? absl::OkStatus()
                       : absl::UnavailableError(absl::StrCat("gRPC status ",
                                                             static_cast<int>(status.error_code()),
                                                             ": ", status.error_message())));
}

void ServerStream::OnDone() { all_done(absl::OkStatus()); }

}  // namespace weft::internal
