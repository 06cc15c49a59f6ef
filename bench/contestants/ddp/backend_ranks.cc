// Contestants that are a c10d::Backend: Weft's own and Gloo. They run allreduce(tensors)->wait().
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/ddp/ddp_step.h"
#include "weft/comm/gloo_backend.h"
#include "weft/comm/same_host_backend.h"

namespace weft::bench {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

constexpr std::chrono::seconds kTimeout(60);
constexpr int64_t kSamples = 16;     // elements checked after every operation, at equal strides
constexpr int64_t kPeriod = 1021;    // of the numbers in prepare(); prime, so no bucket fits it
constexpr double kTolerance = 1e-5;  // of averaged gradients, relative to their norm

struct Kind {
  std::string name;
  Memory memory = Memory::kCopied;
  std::function<Backend(const Store& store, int rank, int ranks)> make_backend;
  std::function<std::unique_ptr<Replica>(const Backend& backend, const Store& store)> make_replica;
};

void train(Replica& replica, const at::Tensor& input) {
  for (at::Tensor& parameter : replica.parameters()) parameter.mutable_grad().reset();
  replica.forward(input).sum().backward();
}

class BackendRank final : public Rank {
 public:
  BackendRank(Kind kind, int rank, int ranks) : kind_(std::move(kind)), rank_(rank), ranks_(ranks) {
    at::set_num_threads(1);
  }

  absl::StatusOr<std::string> listen() override {
    const auto store = open_store(/*is_server=*/true, /*port=*/0);
    store_ = store;
    return absl::StrCat(store->getPort());
  }
  absl::Status join(const std::string& address) override {
    int port = 0;
    if (!absl::SimpleAtoi(address, &port)) return absl::InvalidArgumentError("no port: " + address);
    if (!store_) store_ = open_store(/*is_server=*/false, static_cast<uint16_t>(port));
    backend_ = kind_.make_backend(c10::make_intrusive<c10d::PrefixStore>("backend", store_), rank_,
                                  ranks_);
    return absl::OkStatus();
  }
  absl::Status prepare(const Row& row) override {
    if (row.work == Work::kDdpStep) return prepare_step();
    local_.reset();
    ddp_.reset();
    const int64_t elements = row.amount / static_cast<int64_t>(sizeof(float));
    if (tensors_[0].numel() != elements) {
      tensors_[0].reset();  // free the old tensor before the new one is allocated
      tensors_[0] = kind_.memory == Memory::kResident
                        ? backend_->allocateTensor(elements, at::kFloat)
                        : at::empty({elements}, at::kFloat);
    }
    const absl::Status sum = check_every_element();
    tensors_[0].zero_();
    return sum;
  }
  absl::Status all_reduce() override {
    const int64_t stride = tensors_[0].numel() / kSamples;
    stamp_ = std::fmod(stamp_ + 1, 1 << 16);
    float* const data = tensors_[0].mutable_data_ptr<float>();
    for (int64_t i = 0; i < kSamples; ++i) {
      data[i * stride] = own_share() * (stamp_ + static_cast<float>(i));
    }
    backend_->allreduce(tensors_)->wait();
    for (int64_t i = 0; i < kSamples; ++i) {
      if (data[i * stride] != all_shares() * (stamp_ + static_cast<float>(i))) {
        return absl::DataLossError("wrong sum");
      }
    }
    return absl::OkStatus();
  }
  absl::Status meet() override {
    std::vector<at::Tensor> one = {at::zeros({1})};
    backend_->allreduce(one)->wait();
    return absl::OkStatus();
  }
  absl::Status local_step() override {
    train(*local_, input_);
    return absl::OkStatus();
  }
  absl::Status ddp_step() override {
    train(*ddp_, input_);
    return absl::OkStatus();
  }
  void close() override {
    ddp_.reset();
    tensors_[0].reset();
    backend_.reset();
  }

 private:
  static c10::intrusive_ptr<c10d::TCPStore> open_store(bool is_server, uint16_t port) {
    c10d::TCPStoreOptions options;
    options.isServer = is_server;
    options.port = port;
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  // The summands of this rank and of all ranks are small whole numbers, so their sums are exact.
  float own_share() const { return static_cast<float>(rank_ + 1); }
  float all_shares() const { return static_cast<float>(ranks_ * (ranks_ + 1) / 2); }

  absl::Status check_every_element() {
    float* const data = tensors_[0].mutable_data_ptr<float>();
    const int64_t elements = tensors_[0].numel();
    for (int64_t i = 0; i < elements; ++i) data[i] = own_share() * static_cast<float>(i % kPeriod);
    backend_->allreduce(tensors_)->wait();
    for (int64_t i = 0; i < elements; ++i) {
      if (data[i] != all_shares() * static_cast<float>(i % kPeriod)) {
        return absl::DataLossError(absl::StrCat("wrong sum in element ", i));
      }
    }
    return absl::OkStatus();
  }

  absl::Status prepare_step() {
    if (!kind_.make_replica) return absl::UnimplementedError("no DDP of its own");
    tensors_[0] = at::empty({0});
    if (!local_) {
      local_ = bare_replica();
      ddp_ = kind_.make_replica(backend_, c10::make_intrusive<c10d::PrefixStore>("ddp", store_));
      at::manual_seed(static_cast<uint64_t>(rank_) + 2);
      input_ = at::randn({kBatch, kFeatures});
    }
    return check_gradients();
  }

  // Checks that a step with DDP gives the gradients of a step without it, averaged over the ranks.
  absl::Status check_gradients() {
    train(*local_, input_);
    train(*ddp_, input_);
    const std::vector<at::Tensor> local = local_->parameters();
    const std::vector<at::Tensor> averaged = ddp_->parameters();
    for (size_t i = 0; i < local.size(); ++i) {
      if (!averaged[i].grad().defined()) {
        return absl::DataLossError(absl::StrCat("no gradient ", i));
      }
      std::vector<at::Tensor> expected = {local[i].grad().clone()};
      backend_->allreduce(expected)->wait();
      expected[0].div_(ranks_);
      const double error = (averaged[i].grad() - expected[0]).norm().item<double>();
      if (!(error <= kTolerance * expected[0].norm().item<double>())) {
        return absl::DataLossError(absl::StrCat("wrong gradient ", i));
      }
    }
    return absl::OkStatus();
  }

  const Kind kind_;
  const int rank_;
  const int ranks_;
  Store store_;
  Backend backend_;
  std::vector<at::Tensor> tensors_ = {at::empty({0})};
  float stamp_ = 0;
  std::unique_ptr<Replica> local_;
  std::unique_ptr<Replica> ddp_;
  at::Tensor input_;
};

RankContestant ranks_of(Kind kind) {
  return {.name = kind.name, .make_rank = [kind](int rank, int ranks) {
            return std::make_unique<BackendRank>(kind, rank, ranks);
          }};
}

}  // namespace

RankContestant weft_ranks(const std::string& name, std::chrono::microseconds spin, Memory memory) {
  Kind kind{.name = name,
            .memory = memory,
            .make_backend =
                [spin](const Store& store, int rank, int ranks) {
                  return create_same_host_backend(store, rank, ranks,
                                                  {.timeout = kTimeout, .spin = spin});
                },
            .make_replica = {}};
  // DDP decides itself where its gradients lie, so the kCopied contestant has no replica.
  if (memory == Memory::kResident) kind.make_replica = weft_replica;
  return ranks_of(std::move(kind));
}

RankContestant gloo_ranks() {
  return ranks_of({.name = "gloo",
                   .memory = Memory::kCopied,
                   .make_backend =
                       [](const Store& store, int rank, int ranks) {
                         return create_gloo_backend(store, rank, ranks, kTimeout, "lo");
                       },
                   .make_replica = torch_replica});
}

}  // namespace weft::bench
