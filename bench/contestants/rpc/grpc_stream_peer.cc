// The contestant "grpc stream" for calls in flight: one bidirectional gRPC stream between two
// processes, on loopback TCP.
//
// Each message of the stream holds all calls, or all replies, that have gathered since the previous
// message was sent. This is the fastest way for small calls over gRPC. A call is a bare 64-byte
// envelope without protobuf and LibTorch. Both sides use gRPC's callback API. This contestant has
// only the rows of small calls.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/loopback_server.h"

namespace weft::bench {
namespace {

constexpr char kMethod[] = "/weft.bench.Packed/Add";
constexpr size_t kElements = 4;  // of each summand and of the sum
// How long the client polls for a reply before it sleeps. Weft's workers have the same default.
constexpr std::chrono::microseconds kSpin(100);

struct alignas(64) Envelope {
  uint64_t slot = 0;
  float values[2 * kElements] = {};
};
using Envelopes = std::vector<Envelope>;

grpc::ByteBuffer packed(const Envelopes& envelopes) {
  const grpc::Slice slice(envelopes.data(), envelopes.size() * sizeof(Envelope));
  return grpc::ByteBuffer(&slice, 1);
}

Envelopes unpacked(const grpc::ByteBuffer& message) {
  Envelopes envelopes(message.Length() / sizeof(Envelope));
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return {};
  char* to = reinterpret_cast<char*>(envelopes.data());
  size_t left = envelopes.size() * sizeof(Envelope);
  for (const grpc::Slice& slice : slices) {
    const size_t bytes = std::min(left, slice.size());
    std::memcpy(to, slice.begin(), bytes);
    to += bytes;
    left -= bytes;
  }
  return envelopes;
}

// The writing half of one side of a stream. Envelopes that arrive while a message is being written
// leave together in the next message.
// Thread safety: all methods may be called from any thread.
template <class Reactor>
class Packer {
 public:
  explicit Packer(Reactor& stream) : stream_(stream) {}

  void append(const Envelopes& envelopes) {
    MutexLock lock(mutex_);
    gathered_.insert(gathered_.end(), envelopes.begin(), envelopes.end());
    if (!writing_) write();
  }
  void written(bool ok) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (ok && !gathered_.empty()) write();
  }

 private:
  void write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    message_ = packed(gathered_);
    gathered_.clear();
    writing_ = true;
    stream_.StartWrite(&message_);
  }

  Reactor& stream_;
  Mutex mutex_;
  Envelopes gathered_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer message_ ABSL_GUARDED_BY(mutex_);  // belongs to gRPC while it is written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

class ServerStream final : public grpc::ServerGenericBidiReactor {
 public:
  ServerStream() { StartRead(&read_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Envelopes calls = unpacked(read_);
    for (Envelope& call : calls) {
      for (size_t i = 0; i < kElements; ++i) call.values[i] += call.values[kElements + i];
    }
    replies_.append(calls);
    StartRead(&read_);
  }
  void OnWriteDone(bool ok) override { replies_.written(ok); }
  void OnDone() override { delete this; }

 private:
  grpc::ByteBuffer read_;
  Packer<ServerStream> replies_{*this};
};

class Service final : public grpc::CallbackGenericService {
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new ServerStream;  // deletes itself
  }
};

class StreamClient final : public Client,
                           private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ~StreamClient() override {
    if (stub_ == nullptr) return;
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!ended_) changed_.wait(mutex_);
  }

  absl::Status connect(const std::string& address) override {
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    stub_->PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    StartRead(&read_);
    StartCall();
    return add();
  }

  absl::Status add() override {
    WEFT_RETURN_IF_ERROR(start_add(0));
    return finish_add(0);
  }
  absl::Status start_add(int slot) override {
    Envelope call{.slot = static_cast<uint64_t>(slot)};
    for (size_t i = 0; i < 2 * kElements; ++i) call.values[i] = i < kElements ? 1.0f : 2.0f;
    {
      MutexLock lock(mutex_);
      if (call.slot >= replies_.size()) replies_.resize(call.slot + 1);
      replies_[call.slot] = {};
    }
    calls_.append({call});
    return absl::OkStatus();
  }
  absl::Status finish_add(int slot) override {
    const auto index = static_cast<size_t>(slot);
    const auto until = std::chrono::steady_clock::now() + kSpin;
    while (!is_over(index) && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    MutexLock lock(mutex_);
    while (!replies_[index].came && !ended_) changed_.wait(mutex_);
    if (!replies_[index].came) return absl::UnavailableError("the stream ended");
    const Envelope& sum = replies_[index].sum;
    if (sum.values[0] != 3 || sum.values[kElements - 1] != 3) {
      return absl::DataLossError("wrong sum");
    }
    return absl::OkStatus();
  }

 private:
  struct Reply {
    bool came = false;
    Envelope sum;
  };

  bool is_over(size_t index) {
    MutexLock lock(mutex_);
    return replies_[index].came || ended_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      MutexLock lock(mutex_);
      for (const Envelope& sum : unpacked(read_)) {
        if (sum.slot < replies_.size()) replies_[sum.slot] = {true, sum};
      }
      changed_.notify_all();
    }
    StartRead(&read_);
  }
  void OnWriteDone(bool ok) override { calls_.written(ok); }
  void OnDone(const grpc::Status&) override {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  using Stream = grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer read_;
  Packer<Stream> calls_{*this};
  Mutex mutex_;
  CondVar changed_;
  std::vector<Reply> replies_ ABSL_GUARDED_BY(mutex_);  // by slot
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

Contestant grpc_stream_contestant() {
  return {.name = "grpc stream",
          .spins_when_idle = false,
          .make_server =
              [] {
                return std::make_unique<LoopbackServer<Service>>(
                    [](grpc::ServerBuilder& builder, Service& service) {
                      builder.RegisterCallbackGenericService(&service);
                    });
              },
          .make_client = [] { return std::make_unique<StreamClient>(); }};
}

}  // namespace weft::bench
