#include "weft/rpc/transport/internal/grpc_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/async/serving_threads.h"
#include "weft/base/log.h"
#include "weft/proto/weft.pb.h"
#include "weft/rpc/transport/status_wire.h"

namespace weft::rpc_internal {
namespace {

// After a read with several frames, so many reads count as busy.
constexpr int kCrowdedFor = 16;
// Bytes of a refusal's text. It travels twice, and escaped, and a dialler takes 8 KiB of metadata.
constexpr size_t kMostRefusal = 512;

}  // namespace

void GrpcOperation::ended(bool ok) {
  (stream_.*ended_)(ok);
  stream_.count_off();  // may destroy the stream
}

void GrpcStream::set_handler(std::shared_ptr<StreamHandler> handler) {
  MutexLock lock(mutex_);
  handler_ = std::move(handler);
}

GrpcStream::Next GrpcStream::next() {
  Next next;
  if (open_ && !writing_ && !broken_ && !closed_ && !drained()) {
    writing_ = true;
    ++under_way_;
    if (!hello_.empty()) writer_.push_hello(std::exchange(hello_, {}));
    for (FramePtr& frame : queue_) writer_.push(std::move(frame));
    queue_.clear();
    queued_bytes_ = 0;
    writer_bytes_ = writer_.queued_bytes();
    next.write = true;
    return next;
  }
  if (open_ && !writing_ && !closed_ && (broken_ || (ending_ && drained()))) {
    closed_ = true;
    next.last_write = !accepting() && !read_over_;  // otherwise nobody reads it
    if (next.last_write) ++under_way_;
  }
  // The accepting end finishes once it has written all, the dialling end once it has read all.
  if (!finishing_ && !writing_ && !starting_read_ && (accepting() ? closed_ : read_over_)) {
    closed_ = finishing_ = true;
    ++under_way_;
    next.finish = true;
  }
  return next;
}

void GrpcStream::start(Next next) {
  if (next.write) {
    outgoing_ = writer_.next();
    start_write(outgoing_, &write_);
  }
  if (next.last_write) start_last_write(&last_write_);
  if (next.finish) start_finish(&finish_);
}

void GrpcStream::opened() {
  Next todo;
  {
    MutexLock lock(mutex_);
    open_ = true;
    todo = next();
  }
  start(todo);
}

void GrpcStream::begin_reading() {
  {
    MutexLock lock(mutex_);
    if (finishing_) return;
    ++under_way_;  // what read_on counts off
  }
  read_on();
}

absl::Status GrpcStream::greet(std::string hello) {
  std::shared_ptr<StreamHandler> handler;
  {
    MutexLock lock(mutex_);
    handler = handler_;
  }
  return handler->on_hello(*this, std::move(hello));
}

void GrpcStream::send_hello(std::string hello) {
  Next todo;
  {
    MutexLock lock(mutex_);
    hello_ = std::move(hello);
    todo = next();
  }
  start(todo);
}

void GrpcStream::refuse(absl::Status why) {
  Next todo;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    refusal_ = std::move(why);
    closed_ = true;
    todo = next();
  }
  start(todo);
}

bool GrpcStream::send(FrameBatch frames) {
  Next todo;
  {
    MutexLock lock(mutex_);
    if (broken_ || ending_ || closed_) return false;
    for (FramePtr& frame : frames) {
      queued_bytes_ += frame->cost();
      taken_bytes_ += frame->cost();
      queue_.push_back(std::move(frame));
    }
    todo = next();
  }
  start(todo);
  return true;
}

void GrpcStream::end() {
  Next todo;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    todo = next();
  }
  start(todo);
}

StreamBytes GrpcStream::bytes() const {
  MutexLock lock(mutex_);
  return {taken_bytes_, taken_bytes_ - queued_bytes_ - writer_bytes_};
}

absl::Status GrpcStream::reason() const {
  MutexLock lock(mutex_);
  return reason_;
}

void GrpcStream::read_ended() {
  Next todo;
  {
    MutexLock lock(mutex_);
    broken_ = read_over_ = true;
    todo = next();
  }
  start(todo);
}

void GrpcStream::read_done(bool ok) {
  if (!ok) {
    read_ended();
    return;
  }
  std::shared_ptr<StreamHandler> handler;
  {
    MutexLock lock(mutex_);
    handler = handler_;
  }
  std::vector<Frame> frames;
  absl::Status status = reader_.read(
      incoming_, [&](std::string hello) { return handler->on_hello(*this, std::move(hello)); },
      frames);
  incoming_.Clear();
  crowded_ = frames.size() > 1 ? kCrowdedFor : std::max(crowded_ - 1, 0);
  if (!frames.empty()) handler->on_frames(*this, std::move(frames));
  if (!status.ok()) {
    {
      MutexLock lock(mutex_);
      if (reason_.ok()) reason_ = std::move(status);  // known before the far end reacts to the cut
    }
    cut();
    read_ended();
    return;
  }
  note_started();  // what read_on counts off
  // gRPC sends a window update with a new read, which costs as much as a reply. If many frames
  // come, the next read is deferred until they are handled. If frames come one by one, it starts at
  // once: the update wakes the far end while this end still works.
  if (crowded_ == 0 ||
      !ServingThreads::defer_to_end([self = shared_from_this()] { self->read_on(); })) {
    read_on();
  }
}

void GrpcStream::read_on() {
  bool may_read = false;
  {
    MutexLock lock(mutex_);
    // A server that has called Finish must not read on.
    may_read = starting_read_ = !finishing_;
    if (may_read) {
      ++under_way_;
    } else {
      read_over_ = true;
    }
  }
  if (may_read) {
    start_read(&incoming_, &read_);
    Next todo;
    {
      MutexLock lock(mutex_);
      starting_read_ = false;
      todo = next();
    }
    start(todo);
  }
  count_off();
}

void GrpcStream::write_done(bool ok) {
  Next todo;
  outgoing_.Clear();
  {
    MutexLock lock(mutex_);
    writing_ = false;
    writer_bytes_ = writer_.queued_bytes();
    if (!ok) broken_ = true;
    todo = next();
  }
  start(todo);
}

void GrpcStream::finish_done(bool) {
  MutexLock lock(mutex_);
  finished_ = true;
}

void GrpcStream::note_started() {
  MutexLock lock(mutex_);
  ++under_way_;
}

void GrpcStream::count_off() {
  std::shared_ptr<StreamHandler> handler;
  absl::Status reason;
  {
    MutexLock lock(mutex_);
    if (--under_way_ > 0) return;
    // gRPC has no operation and will get none. This holds also for a stream that never opened.
    broken_ = read_over_ = closed_ = finishing_ = finished_ = true;
    hello_.clear();
    queue_.clear();
    queued_bytes_ = writer_bytes_ = 0;
    writer_.clear();
    reason = reason_.ok() ? final_status() : reason_;
    handler = std::move(handler_);
  }
  if (handler != nullptr) handler->on_end(*this, std::move(reason));
  const std::shared_ptr<GrpcStream> last = std::move(self_);  // may destroy this object
}

void GrpcStream::cut() {
  MutexLock lock(mutex_);
  if (!finished_) try_cancel();
}

void GrpcStream::note_cut() {
  MutexLock lock(mutex_);
  if (reason_.ok()) reason_ = absl::UnavailableError("the connection was cut");
}

ClientStream::ClientStream(std::shared_ptr<grpc::Channel> channel, const std::string& method,
                           grpc::CompletionQueue& queue, const TransportLimits& limits,
                           BufferPool& pool)
    : GrpcStream(limits, pool, FrameReader::Begins::kWithHello),
      channel_(std::move(channel)),
      stub_(channel_),
      start_(*this, static_cast<GrpcOperation::Ended>(&ClientStream::started)) {
  // If nobody listens at the address, the call must fail at once instead of waiting for a server.
  context_.set_wait_for_ready(false);
  call_ = stub_.PrepareCall(&context_, method, &queue);
}

void ClientStream::start() {
  keep_alive();
  note_started();
  call_->StartCall(&start_);
}

void ClientStream::started(bool ok) {
  if (ok) {
    opened();
    begin_reading();
  } else {
    read_ended();
  }
}

absl::Status ClientStream::final_status() const {
  if (status_.ok()) return absl::OkStatus();
  wire::Hello answer;
  if (!status_.error_details().empty() && answer.ParseFromString(status_.error_details()) &&
      answer.has_refused()) {
    const absl::Status refused = decode_status(answer.refused());
    return absl::Status(refused.code(), printable(std::string(refused.message())));
  }
  return absl::UnavailableError(absl::StrCat("gRPC status ", static_cast<int>(status_.error_code()),
                                             ": ", printable(status_.error_message())));
}

StreamService::StreamService() {
  for (size_t kind = 0; kind < kStreams; ++kind) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        kMethods[kind], grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodAsync(static_cast<int>(kind));
  }
}

ServerStream::ServerStream(const TransportLimits& limits, BufferPool& pool)
    : GrpcStream(limits, pool, FrameReader::Begins::kWithFrames),
      accept_(*this, static_cast<GrpcOperation::Ended>(&ServerStream::accept_done)),
      done_(*this, static_cast<GrpcOperation::Ended>(&ServerStream::call_done)) {}

void ServerStream::accept(StreamService& service, size_t kind, grpc::ServerCompletionQueue& queue,
                          Accepted accepted) {
  accepted_ = std::move(accepted);
  keep_alive();
  note_started();
  context_.AsyncNotifyWhenDone(&done_);
  service.request(kind, &context_, &call_, &queue, &accept_);
}

void ServerStream::accept_done(bool ok) {
  const Accepted accepted = std::exchange(accepted_, nullptr);
  if (!ok) {  // the server shuts down; gRPC does not complete done_
    accepted(nullptr);
    return;
  }
  note_started();  // done_
  accepted(std::static_pointer_cast<ServerStream>(shared_from_this()));
  opened();
  const auto& metadata = context_.client_metadata();
  const auto found = metadata.find(kHelloKey);
  std::string hello;
  if (found != metadata.end()) hello.assign(found->second.data(), found->second.size());
  absl::Status greeted = greet(std::move(hello));
  if (!greeted.ok()) refuse(std::move(greeted));
}

std::vector<std::string> ServerStream::far_uris() const {
  std::vector<std::string> uris;
  for (const grpc::string_ref& uri : context_.auth_context()->FindPropertyValues("peer_uri")) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return uris;
}

// A refusal travels in trailing metadata, which flow control of the far end cannot hold up.
void ServerStream::start_finish(void* tag) {
  if (refusal().ok()) return call_.Finish(grpc::Status::OK, tag);
  const std::string text = printable(std::string(refusal().message()), kMostRefusal);
  wire::Hello answer;
  encode_status(absl::Status(refusal().code(), text), *answer.mutable_refused());
  call_.Finish(
      grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, text, answer.SerializeAsString()), tag);
}

void ServerStream::call_done(bool) {
  if (context_.IsCancelled()) note_cut();
}

}  // namespace weft::rpc_internal
