// A gRPC stream to a worker from a program that is no worker: it writes what it is given.
//
// Thread safety: wait(), ended() and taken() may be called from any thread. gRPC's threads write.
// Blocking: the destructor cancels the stream and waits for its end.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "weft/async/future.h"

namespace weft::testing {

class RawStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // Writes the messages one after the other, as far as the far end takes them, and then half-closes
  // the stream. `hello` goes into the stream's metadata.
  RawStream(const std::string& address, std::vector<std::string> messages,
            const std::optional<std::string>& hello = std::nullopt)
      : messages_(std::move(messages)),
        stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())) {
    if (hello) context_.AddMetadata("weft-hello-bin", *hello);
    stub_.PrepareBidiStreamingCall(&context_, "/weft.Worker/Stream", grpc::StubOptions(), this);
    StartRead(&answer_);
    write_next();
    StartCall();
  }
  ~RawStream() override {
    context_.TryCancel();
    (void)ended_.result();
  }

  // Waits for the far end to close the stream and returns its status. Unavailable: it did not
  // within a minute.
  grpc::Status wait() const {
    if (!ended_.wait_for(std::chrono::seconds(60))) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "it goes on");
    }
    return *ended_.result();
  }
  bool ended() const { return ended_.done(); }
  // Bytes that were written: the far end's machine has them, or its flow control admits them.
  size_t taken() const { return taken_.load(); }

  void OnReadDone(bool ok) override {
    if (ok) StartRead(&answer_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    taken_ += messages_[next_++].size();
    write_next();
  }
  void OnDone(const grpc::Status& status) override { end_.set(status); }

 private:
  void write_next() {
    if (next_ == messages_.size()) {
      StartWritesDone();
      return;
    }
    const grpc::Slice slice(messages_[next_]);
    message_ = grpc::ByteBuffer(&slice, 1);
    StartWrite(&message_);
  }

  const std::vector<std::string> messages_;
  size_t next_ = 0;  // an index into messages_
  std::atomic<size_t> taken_{0};
  Promise<grpc::Status> end_{nullptr};
  const Future<grpc::Status> ended_ = end_.future();
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::ByteBuffer message_, answer_;
};

}  // namespace weft::testing
