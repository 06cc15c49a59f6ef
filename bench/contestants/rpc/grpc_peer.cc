// The contestant "grpc unary": unary gRPC, written by hand for speed, on one channel over loopback
// TCP.
//
// Tensors are bare floats in a ByteBuffer, without protobuf messages and LibTorch. The sender's
// data is referenced and not copied. The receiver copies it once into memory of its own from a
// pool, because fresh pages would cost more than the copy. One call at a time uses the synchronous
// client, calls in flight use the asynchronous one. The server is synchronous.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/method_handler.h>

#include "weft/base/mutex.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/loopback_server.h"

namespace weft::bench {
namespace {

constexpr char kAdd[] = "/weft.bench.Plain/Add";
constexpr char kSend[] = "/weft.bench.Plain/Send";
constexpr char kEcho[] = "/weft.bench.Plain/Echo";
constexpr size_t kElementsOfAdd = 4;

// Keeps the most recently freed blocks, because their pages are already mapped.
// Thread safety: all methods may be called from any thread.
class Pool {
 public:
  static Pool& of_process() {
    static Pool& pool = *new Pool;
    return pool;
  }

  // Returns uninitialised memory. Large blocks are aligned like the storage of a tensor.
  void* take(size_t bytes) {
    if (bytes < kLeastKept) return std::malloc(bytes);
    bytes = rounded(bytes);
    {
      MutexLock lock(mutex_);
      for (auto block = free_.begin(); block != free_.end(); ++block) {
        if (block->bytes != bytes) continue;
        void* const data = block->data;
        free_.erase(block);
        return data;
      }
    }
    return std::aligned_alloc(kAlignment, bytes);
  }
  void give_back(void* data, size_t bytes) {
    if (data == nullptr || bytes < kLeastKept) return std::free(data);
    MutexLock lock(mutex_);
    free_.push_front({data, rounded(bytes)});
    if (free_.size() <= kMostKept) return;
    std::free(free_.back().data);
    free_.pop_back();
  }

 private:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kMostKept = 8;
  static constexpr size_t kLeastKept = size_t{64} << 10;  // malloc keeps smaller ones itself
  struct Block {
    void* data;
    size_t bytes;
  };
  static size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  Mutex mutex_;
  std::deque<Block> free_ ABSL_GUARDED_BY(mutex_);  // the newest first
};

class Floats {
 public:
  Floats() = default;
  explicit Floats(size_t count)
      : count_(count), data_(static_cast<float*>(Pool::of_process().take(count * sizeof(float)))) {}
  Floats(Floats&& other) noexcept
      : count_(std::exchange(other.count_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  Floats& operator=(Floats&& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Floats() { Pool::of_process().give_back(data_, count_ * sizeof(float)); }

  size_t size() const { return count_; }
  float* data() { return data_; }
  const float* data() const { return data_; }
  float& operator[](size_t i) { return data_[i]; }
  float operator[](size_t i) const { return data_[i]; }

 private:
  size_t count_ = 0;
  float* data_ = nullptr;
};

// The only copy that the receiver makes.
Floats copy_out(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return {};
  Floats floats(buffer.Length() / sizeof(float));
  char* to = reinterpret_cast<char*>(floats.data());
  for (const grpc::Slice& slice : slices) {
    std::memcpy(to, slice.begin(), slice.size());
    to += slice.size();
  }
  return floats;
}

grpc::ByteBuffer copy_in(const Floats& floats) {
  const grpc::Slice slice(floats.data(), floats.size() * sizeof(float));
  return grpc::ByteBuffer(&slice, 1);
}

// The buffer refers to the floats, which must outlive the call.
grpc::ByteBuffer refer_to(const Floats& floats) {
  const grpc::Slice slice(floats.data(), floats.size() * sizeof(float), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

// The buffer owns the floats.
grpc::ByteBuffer give_away(Floats floats) {
  auto* const owned = new Floats(std::move(floats));
  const grpc::Slice slice(
      owned->data(), owned->size() * sizeof(float),
      [](void* floats) { delete static_cast<Floats*>(floats); }, owned);
  return grpc::ByteBuffer(&slice, 1);
}

class PlainService final : public grpc::Service {
 public:
  PlainService() {
    serve(kAdd, [](Floats both) {
      Floats sum(kElementsOfAdd);
      for (size_t i = 0; i < kElementsOfAdd; ++i) sum[i] = both[i] + both[kElementsOfAdd + i];
      return copy_in(sum);
    });
    serve(kSend, [](Floats tensor) {
      Floats sample(kSampledElements);
      const size_t stride = tensor.size() / kSampledElements;
      for (size_t i = 0; i < kSampledElements; ++i) sample[i] = tensor[i * stride];
      return copy_in(sample);
    });
    serve(kEcho, [](Floats tensor) { return give_away(std::move(tensor)); });
  }

 private:
  using Handler =
      grpc::internal::RpcMethodHandler<PlainService, grpc::ByteBuffer, grpc::ByteBuffer>;

  template <class Function>
  void serve(const char* method, Function function) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        method, grpc::internal::RpcMethod::NORMAL_RPC,
        new Handler(
            [function](PlainService*, grpc::ServerContext*, const grpc::ByteBuffer* request,
                       grpc::ByteBuffer* reply) {
              Floats floats = copy_out(*request);
              if (floats.size() < 2 * kElementsOfAdd) {
                return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "request too short");
              }
              *reply = function(std::move(floats));
              return grpc::Status::OK;
            },
            this)));
  }
};

absl::Status to_absl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

class GrpcClient final : public Client {
 public:
  ~GrpcClient() override {
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  absl::Status connect(const std::string& address) override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = std::make_unique<grpc::GenericStub>(channel_);
    return add();
  }

  absl::Status add() override {
    absl::StatusOr<Floats> sum = call(kAdd, copy_in(both_));
    if (!sum.ok()) return sum.status();
    return check_sum(*sum);
  }

  absl::Status start_add(int slot) override {
    if (static_cast<size_t>(slot) >= slots_.size()) slots_.resize(slot + 1);
    slots_[slot] = std::make_unique<Slot>();
    Slot& call = *slots_[slot];
    call.reader = stub_->PrepareUnaryCall(&call.context, kAdd, copy_in(both_), &queue_);
    call.reader->StartCall();
    call.reader->Finish(&call.reply, &call.status, &call);
    return absl::OkStatus();
  }

  absl::Status finish_add(int slot) override {
    Slot& call = *slots_.at(slot);
    while (!call.done) {
      void* tag = nullptr;
      bool ok = false;
      if (!queue_.Next(&tag, &ok)) return absl::InternalError("the completion queue ended");
      static_cast<Slot*>(tag)->done = true;
    }
    WEFT_RETURN_IF_ERROR(to_absl(call.status));
    return check_sum(copy_out(call.reply));
  }

  absl::Status send(int64_t bytes) override {
    stamp_argument(bytes);
    absl::StatusOr<Floats> sample = call(kSend, refer_to(argument_));
    if (!sample.ok()) return sample.status();
    return check_stamp(*sample, 1);
  }

  bool mixes() const override { return true; }

  absl::Status echo(int64_t bytes) override {
    const size_t stride = stamp_argument(bytes);
    absl::StatusOr<Floats> back = call(kEcho, refer_to(argument_));
    if (!back.ok()) return back.status();
    if (back->size() != argument_.size()) return absl::DataLossError("echo changed the size");
    return check_stamp(*back, stride);
  }

 private:
  struct Slot {
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader;
    bool done = false;
  };

  absl::StatusOr<Floats> call(const char* method, const grpc::ByteBuffer& request) {
    grpc::ClientContext context;
    grpc::ByteBuffer reply;
    const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::NORMAL_RPC);
    WEFT_RETURN_IF_ERROR(
        to_absl(grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
            channel_.get(), rpc, &context, request, &reply)));
    return copy_out(reply);
  }

  static Floats make_both() {
    Floats both(2 * kElementsOfAdd);
    for (size_t i = 0; i < both.size(); ++i) both[i] = i < kElementsOfAdd ? 1.0f : 2.0f;
    return both;
  }

  static absl::Status check_sum(const Floats& sum) {
    if (sum.size() == kElementsOfAdd && sum[0] == 3 && sum[3] == 3) return absl::OkStatus();
    return absl::DataLossError("wrong sum");
  }

  // As in the torch peer: writes a new number into the sampled elements and returns their stride.
  size_t stamp_argument(int64_t bytes) {
    const size_t elements = static_cast<size_t>(bytes) / sizeof(float);
    if (argument_.size() != elements) {
      argument_ = Floats(elements);
      std::memset(argument_.data(), 0, elements * sizeof(float));
    }
    const size_t stride = elements / kSampledElements;
    stamp_ = std::fmod(stamp_ + 1, 1 << 20);
    for (size_t i = 0; i < kSampledElements; ++i)
      argument_[i * stride] = stamp_ + static_cast<float>(i);
    return stride;
  }

  absl::Status check_stamp(const Floats& floats, size_t stride) const {
    if (floats.size() < kSampledElements * stride) return absl::DataLossError("reply too short");
    for (size_t i = 0; i < kSampledElements; ++i) {
      if (floats[i * stride] != stamp_ + static_cast<float>(i))
        return absl::DataLossError("wrong data");
    }
    return absl::OkStatus();
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Slot>> slots_;
  const Floats both_ = make_both();
  Floats argument_;
  float stamp_ = 0;
};

}  // namespace

Contestant grpc_contestant() {
  return {.name = "grpc unary",
          .spins_when_idle = false,
          .make_server =
              [] {
                return std::make_unique<LoopbackServer<PlainService>>(
                    [](grpc::ServerBuilder& builder, PlainService& service) {
                      builder.SetMaxReceiveMessageSize(-1).SetMaxSendMessageSize(-1);
                      builder.RegisterService(&service);
                    });
              },
          .make_client = [] { return std::make_unique<GrpcClient>(); }};
}

}  // namespace weft::bench
