// The contestant "weft": two workers of one group, over gRPC on loopback.
//
// The callee already owns the tensor that arrives, so `send` and `echo` do not copy it again.
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/worker/rendezvous.h"
#include "weft/worker/worker.h"

namespace weft::bench {
namespace weft_functions {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
WEFT_REGISTER_FUNCTION(add);

at::Tensor sample(const at::Tensor& tensor, int64_t stride) {
  return tensor.slice(0, 0, tensor.numel(), stride);
}
WEFT_REGISTER_FUNCTION(sample);

at::Tensor echo(const at::Tensor& tensor) { return tensor; }
WEFT_REGISTER_FUNCTION(echo);

}  // namespace weft_functions

namespace {

constexpr char kServer[] = "server";

WorkerOptions options(uint32_t rank, std::shared_ptr<RendezvousStore> store, Waiting waiting) {
  WorkerOptions options;
  options.place.rank = rank;
  options.place.world_size = 2;
  options.place.master_addr = "127.0.0.1";
  options.name = rank == 0 ? kServer : "client";
  options.store = std::move(store);
  if (waiting == Waiting::kBlocking) options.spin = Nanoseconds::zero();
  return options;
}

absl::Status guarded(const std::function<absl::Status()>& operation) {
  try {
    return operation();
  } catch (const RpcError& error) {
    return error.status();
  }
}

class WeftServer final : public Server {
 public:
  explicit WeftServer(Waiting waiting) : waiting_(waiting) {}
  absl::StatusOr<std::string> listen() override {
    auto hosted = host_rendezvous_store({.port = 0});
    if (!hosted.ok()) return hosted.status();
    store_ = std::move(hosted->store);
    return absl::StrCat(hosted->port);
  }
  absl::Status serve() override {
    return guarded([&] {
      worker_ = Worker::join(options(0, store_, waiting_));
      return absl::OkStatus();
    });
  }
  int64_t live_objects() override {
    return static_cast<int64_t>(worker_->debug_info().owned_values);
  }
  void close() override { worker_->shutdown(std::chrono::seconds(5)); }

 private:
  const Waiting waiting_;
  std::shared_ptr<RendezvousStore> store_;
  std::optional<Worker> worker_;
};

class WeftClient final : public Client {
 public:
  explicit WeftClient(Waiting waiting) : waiting_(waiting) {}
  absl::Status connect(const std::string& address) override {
    int port = 0;
    if (!absl::SimpleAtoi(address, &port)) return absl::InvalidArgumentError("no port: " + address);
    auto store = connect_rendezvous_store({.port = static_cast<uint16_t>(port)});
    if (!store.ok()) return store.status();
    return guarded([&] {
      worker_ = Worker::join(options(1, *std::move(store), waiting_));
      return absl::OkStatus();
    });
  }

  absl::Status add() override {
    return guarded(
        [&] { return check_sum(rpc_sync(kServer, weft_functions::add, left_, right_)); });
  }
  absl::Status start_add(int slot) override {
    if (static_cast<size_t>(slot) >= slots_.size()) slots_.resize(slot + 1);
    return guarded([&] {
      slots_[slot] = rpc_async(kServer, weft_functions::add, left_, right_);
      return absl::OkStatus();
    });
  }
  absl::Status finish_add(int slot) override {
    return guarded([&] { return check_sum(slots_.at(slot).wait()); });
  }
  absl::Status send(int64_t bytes) override {
    return guarded([&] {
      const int64_t stride = stamp_argument(bytes);
      return check_stamp(rpc_sync(kServer, weft_functions::sample, argument_, stride), 1);
    });
  }
  absl::Status echo(int64_t bytes) override {
    return guarded([&] {
      const int64_t stride = stamp_argument(bytes);
      const at::Tensor back = rpc_sync(kServer, weft_functions::echo, argument_);
      if (back.numel() != argument_.numel()) return absl::DataLossError("echo changed the size");
      return check_stamp(back, stride);
    });
  }
  absl::Status autograd_round() override {
    return guarded([&] {
      dist_autograd::Context context;
      const at::Tensor left = at::ones({2, 2}).requires_grad_();
      const at::Tensor right = at::ones({2, 2}).requires_grad_();
      const at::Tensor sum = rpc_sync(kServer, weft_functions::add, left, right);
      context.backward({sum.sum()});
      if (is_ones(context.gradient(left)) && is_ones(context.gradient(right))) {
        return absl::OkStatus();
      }
      return absl::DataLossError("wrong gradients");
    });
  }
  absl::Status rref_life() override {
    return guarded(
        [&] { return check_sum(remote(kServer, weft_functions::add, left_, right_).to_here()); });
  }
  void close() override { worker_->shutdown(std::chrono::seconds(5)); }

 private:
  static bool is_ones(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() != 4) return false;
    const float* data = tensor.const_data_ptr<float>();
    return data[0] == 1 && data[3] == 1;
  }
  static absl::Status check_sum(const at::Tensor& sum) {
    const float* data = sum.const_data_ptr<float>();
    if (sum.numel() == 4 && data[0] == 3 && data[3] == 3) return absl::OkStatus();
    return absl::DataLossError("wrong sum");
  }
  // As in torch_peer.cc: writes new numbers into the sampled elements and returns their stride.
  int64_t stamp_argument(int64_t bytes) {
    const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
    if (argument_.numel() != elements) argument_ = at::zeros({elements});
    const int64_t stride = elements / kSampledElements;
    stamp_ = std::fmod(stamp_ + 1, 1 << 20);
    float* data = argument_.mutable_data_ptr<float>();
    for (int64_t i = 0; i < kSampledElements; ++i) {
      data[i * stride] = stamp_ + static_cast<float>(i);
    }
    return stride;
  }
  absl::Status check_stamp(const at::Tensor& tensor, int64_t stride) const {
    if (tensor.numel() < kSampledElements * stride) return absl::DataLossError("reply too short");
    const float* data = tensor.const_data_ptr<float>();
    for (int64_t i = 0; i < kSampledElements; ++i) {
      if (data[i * stride] != stamp_ + static_cast<float>(i)) {
        return absl::DataLossError("wrong data");
      }
    }
    return absl::OkStatus();
  }

  const Waiting waiting_;
  const at::Tensor left_ = at::full({2, 2}, 1.0f);
  const at::Tensor right_ = at::full({2, 2}, 2.0f);
  std::optional<Worker> worker_;
  std::vector<Future<at::Tensor>> slots_;
  at::Tensor argument_ = at::zeros({0});
  float stamp_ = 0;
};

}  // namespace

Contestant weft_contestant(Waiting waiting) {
  return {.name = waiting == Waiting::kSpinning ? "weft" : "weft blocking",
          .make_server = [waiting] { return std::make_unique<WeftServer>(waiting); },
          .make_client = [waiting] { return std::make_unique<WeftClient>(waiting); }};
}

}  // namespace weft::bench
