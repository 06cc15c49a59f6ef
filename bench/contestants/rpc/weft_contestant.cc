// The contestants "weft", "weft blocking" and "weft tcp": two workers of one group on one host.
//
// The callee already owns the tensor that arrives, so `send` and `echo` do not copy it again.
#include <cmath>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/weft_member.h"
#include "weft/bench/contestants/rpc/weft_mode.h"
#include "weft/dist_autograd/context.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"
#include "weft/rref/rref.h"
#include "weft/worker/shared_empty.h"

namespace weft::bench {
namespace weft_functions {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }
WEFT_REGISTER_FUNCTION(add);

at::Tensor sample(const at::Tensor& tensor, int64_t stride) {
  return tensor.slice(0, 0, tensor.numel(), stride);
}
WEFT_REGISTER_FUNCTION(sample);

// The caller gives the tensor away.
at::Tensor take(at::Tensor tensor, int64_t stride) { return sample(tensor, stride); }
WEFT_REGISTER_FUNCTION(take);

at::Tensor echo(const at::Tensor& tensor) { return tensor; }
WEFT_REGISTER_FUNCTION(echo);

}  // namespace weft_functions

namespace {

constexpr char kServer[] = "server";
constexpr int kWorkers = 2;
constexpr auto kLeaveTimeout = std::chrono::seconds(5);

WorkerOptions options_of(const std::string& name, WeftMode mode) {
  WorkerOptions options;
  options.name = name;
  set_mode(options, mode);
  return options;
}

// A tensor that the caller will give away. Its contents are undefined.
at::Tensor tensor_to_give(int64_t bytes) {
  return shared_empty({bytes / static_cast<int64_t>(sizeof(float))});
}

class WeftServer final : public Server {
 public:
  explicit WeftServer(WeftMode mode) : mode_(mode) {}
  absl::StatusOr<std::string> listen() override { return member_.listen(); }
  absl::Status serve() override {
    return member_.join(/*address=*/"", /*rank=*/0, kWorkers, options_of(kServer, mode_));
  }
  int64_t live_objects() override {
    return static_cast<int64_t>(member_.worker().debug_info().owned_values);
  }
  void close() override { member_.leave({.timeout = kLeaveTimeout}); }

 private:
  const WeftMode mode_;
  WeftMember member_;
};

class WeftClient final : public Client {
 public:
  explicit WeftClient(WeftMode mode) : mode_(mode) {}
  absl::Status connect(const std::string& address) override {
    return member_.join(address, /*rank=*/1, kWorkers, options_of("client", mode_));
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
  absl::Status give(int64_t bytes) override {
    return guarded([&] {
      at::Tensor tensor = tensor_to_give(bytes);
      const int64_t stride = stamp(tensor);
      return check_stamp(rpc_sync(kServer, weft_functions::take, std::move(tensor), stride), 1);
    });
  }
  bool mixes() const override { return true; }
  absl::Status autograd_round(int depth, int width) override {
    return guarded([&] {
      dist_autograd::Context context;
      const at::Tensor left = at::ones({2, 2}).requires_grad_();
      const at::Tensor right = at::ones({2, 2}).requires_grad_();
      std::vector<at::Tensor> branches(static_cast<size_t>(width), left);
      for (int hop = 0; hop < depth; ++hop) add_on_server(branches, right);
      at::Tensor loss = branches[0].sum();
      for (size_t i = 1; i < branches.size(); ++i) loss = at::add(loss, branches[i].sum());
      context.backward({loss});
      if (is_all(context.gradient(left), width) && is_all(context.gradient(right), width * depth)) {
        return absl::OkStatus();
      }
      return absl::DataLossError("wrong gradients");
    });
  }
  absl::Status rref_life() override {
    return guarded(
        [&] { return check_sum(remote(kServer, weft_functions::add, left_, right_).to_here()); });
  }
  void close() override { member_.leave({.timeout = kLeaveTimeout}); }

 private:
  // One hop: adds `right` to each tensor on the server. A single call waits for its own reply.
  static void add_on_server(std::vector<at::Tensor>& tensors, const at::Tensor& right) {
    if (tensors.size() == 1) {
      tensors[0] = rpc_sync(kServer, weft_functions::add, tensors[0], right);
      return;
    }
    std::vector<Future<at::Tensor>> sums;
    for (const at::Tensor& tensor : tensors) {
      sums.push_back(rpc_async(kServer, weft_functions::add, tensor, right));
    }
    for (size_t i = 0; i < sums.size(); ++i) tensors[i] = sums[i].wait();
  }
  static bool is_all(const at::Tensor& tensor, int value) {
    if (!tensor.defined() || tensor.numel() != 4) return false;
    const float* data = tensor.const_data_ptr<float>();
    return data[0] == static_cast<float>(value) && data[3] == static_cast<float>(value);
  }
  static absl::Status check_sum(const at::Tensor& sum) {
    const float* data = sum.const_data_ptr<float>();
    if (sum.numel() == 4 && data[0] == 3 && data[3] == 3) return absl::OkStatus();
    return absl::DataLossError("wrong sum");
  }
  // As in torch_peer.cc: makes argument_ a tensor of `bytes` bytes, stamps it and returns the
  // stride.
  int64_t stamp_argument(int64_t bytes) {
    const int64_t elements = bytes / static_cast<int64_t>(sizeof(float));
    if (argument_.numel() != elements) argument_ = at::zeros({elements});
    return stamp(argument_);
  }
  // Writes new numbers into the sampled elements and returns their stride.
  int64_t stamp(at::Tensor& tensor) {
    const int64_t stride = tensor.numel() / kSampledElements;
    stamp_ = std::fmod(stamp_ + 1, 1 << 20);
    float* data = tensor.mutable_data_ptr<float>();
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

  const WeftMode mode_;
  const at::Tensor left_ = at::full({2, 2}, 1.0f);
  const at::Tensor right_ = at::full({2, 2}, 2.0f);
  WeftMember member_;
  std::vector<Future<at::Tensor>> slots_;
  at::Tensor argument_ = at::zeros({0});
  float stamp_ = 0;
};

}  // namespace

Contestant weft_contestant(WeftMode mode) {
  return {.name = name_of(mode),
          .make_server = [mode] { return std::make_unique<WeftServer>(mode); },
          .make_client = [mode] { return std::make_unique<WeftClient>(mode); }};
}

}  // namespace weft::bench
