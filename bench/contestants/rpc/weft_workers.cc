// The contestant "weft" of rows of many workers: each worker is a rank, and calls all the others.
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/contestants/rpc/weft_member.h"
#include "weft/bench/contestants/rpc/weft_mode.h"
#include "weft/rpc/function.h"
#include "weft/rpc/verbs.h"

namespace weft::bench {
namespace worker_functions {

// The argument names the caller, so the sum tells whether the right worker answered the right call.
at::Tensor add_rank(const at::Tensor& tensor, int64_t rank) { return at::add(tensor, rank); }
WEFT_REGISTER_FUNCTION(add_rank);

at::Tensor sample_of_worker(const at::Tensor& tensor, int64_t stride) {
  return tensor.slice(0, 0, tensor.numel(), stride);
}
WEFT_REGISTER_FUNCTION(sample_of_worker);

}  // namespace worker_functions

namespace {

constexpr auto kAllLeaveTimeout = std::chrono::seconds(20);
constexpr int64_t kAddElementsOfWorker = 4;
constexpr double kStampRange = 1 << 20;  // integers below it are exact as float

class WeftWorker final : public Rank {
 public:
  WeftWorker(WeftMode mode, int rank, int workers) : mode_(mode), rank_(rank), workers_(workers) {
    for (int other = 0; other < workers; ++other) names_.push_back(absl::StrCat("worker", other));
  }

  absl::StatusOr<std::string> listen() override { return member_.listen(); }
  absl::Status join(const std::string& address) override {
    WorkerOptions options;
    options.name = names_[static_cast<size_t>(rank_)];
    set_mode(options, mode_);
    return member_.join(address, rank_, workers_, std::move(options));
  }

  absl::Status prepare(const Row& row) override {
    if (row.work != Work::kAllToAllAdd && row.work != Work::kAllToAllSend) {
      return absl::UnimplementedError("no row of many workers");
    }
    const bool sends = row.work == Work::kAllToAllSend;
    const int64_t elements =
        sends ? row.amount / static_cast<int64_t>(sizeof(float)) : kAddElementsOfWorker;
    stride_ = sends ? elements / kSampledElements : 0;
    // A tensor that is on its way must not be written, so each call in flight has its own.
    arguments_.clear();
    for (int i = 0; i < (sends ? kAllToAllTensors : kAllToAllCalls); ++i) {
      arguments_.push_back(at::zeros({elements}));
    }
    return call_others();
  }

  absl::Status call_others() override {
    return guarded([&]() -> absl::Status {
      std::deque<Call> open;
      for (int i = 0; i < kAllToAllCalls; ++i) {
        if (open.size() == arguments_.size()) WEFT_RETURN_IF_ERROR(finish_oldest(open));
        const size_t argument = static_cast<size_t>(i) % arguments_.size();
        open.push_back(start((rank_ + 1 + i % (workers_ - 1)) % workers_, arguments_[argument]));
      }
      while (!open.empty()) WEFT_RETURN_IF_ERROR(finish_oldest(open));
      return absl::OkStatus();
    });
  }

  void close() override { member_.leave({.timeout = kAllLeaveTimeout}); }

 private:
  struct Call {
    int to;
    float stamp;  // of the first sampled element of the argument; the next is one more
    Future<at::Tensor> reply;
  };

  Call start(int to, at::Tensor& argument) {
    stamp_ = stamp_ + 1 < kStampRange ? stamp_ + 1 : 0;
    const auto stamp = static_cast<float>(stamp_);
    float* data = argument.mutable_data_ptr<float>();
    const int64_t samples = stride_ > 0 ? kSampledElements : kAddElementsOfWorker;
    const int64_t stride = stride_ > 0 ? stride_ : 1;
    for (int64_t i = 0; i < samples; ++i) data[i * stride] = stamp + static_cast<float>(i);
    const std::string& name = names_[static_cast<size_t>(to)];
    if (stride_ > 0) {
      return {to, stamp, rpc_async(name, worker_functions::sample_of_worker, argument, stride_)};
    }
    return {to, stamp, rpc_async(name, worker_functions::add_rank, argument, rank_)};
  }

  absl::Status finish_oldest(std::deque<Call>& open) const {
    const Call call = std::move(open.front());
    open.pop_front();
    const at::Tensor reply = call.reply.wait();
    const int64_t samples = stride_ > 0 ? kSampledElements : kAddElementsOfWorker;
    const float added = stride_ > 0 ? 0.0f : static_cast<float>(rank_);
    if (reply.numel() == samples) {
      const float* data = reply.const_data_ptr<float>();
      int64_t right = 0;
      while (right < samples && data[right] == call.stamp + static_cast<float>(right) + added) {
        ++right;
      }
      if (right == samples) return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("a wrong reply from ", names_[static_cast<size_t>(call.to)]));
  }

  const WeftMode mode_;
  const int rank_;
  const int workers_;
  std::vector<std::string> names_;  // of all workers, by rank
  WeftMember member_;
  int64_t stride_ = 0;  // of the sampled elements; 0 in the row of small calls
  std::vector<at::Tensor> arguments_;
  double stamp_ = 0;
};

}  // namespace

RankContestant weft_workers(WeftMode mode) {
  return {name_of(mode), [mode](int rank, int workers) {
            return std::make_unique<WeftWorker>(mode, rank, workers);
          }};
}

}  // namespace weft::bench
