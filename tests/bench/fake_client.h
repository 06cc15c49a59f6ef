// A contestant whose operations take no real time. They only advance a manual clock.
//
// Thread safety: one thread for each kind of operation.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/bench/contestants/contestant.h"

namespace weft::bench {

class FakeClient final : public Client {
 public:
  explicit FakeClient(ManualClock& clock) : clock_(clock) {}

  absl::Status connect(const std::string& address) override {
    address_ = address;
    return absl::OkStatus();
  }
  absl::Status add() override {
    ++adds_;
    // Only a few are slow: they change the 99th percentile and the mean, not the median.
    pass(std::chrono::microseconds(adds_ % 20 == 0 ? 50 : 10));
    return adds_ == fail_at_ ? absl::DataLossError("wrong sum") : absl::OkStatus();
  }
  absl::Status start_add(int slot) override {
    if (!open_.insert(slot).second) return absl::InternalError("slot started twice");
    deepest_ = std::max(deepest_, open_.size());
    return absl::OkStatus();
  }
  absl::Status finish_add(int slot) override {
    if (open_.erase(slot) == 0) return absl::InternalError("slot finished, not started");
    pass(std::chrono::microseconds(2));
    return absl::OkStatus();
  }
  absl::Status send(int64_t bytes) override {
    if (++sends_ == fail_send_at_) return absl::DataLossError("wrong tensor");
    pass(std::chrono::nanoseconds(bytes));  // 1 GB/s
    return absl::OkStatus();
  }
  absl::Status echo(int64_t bytes) override {
    pass(std::chrono::nanoseconds(bytes));
    return absl::OkStatus();
  }
  absl::Status give(int64_t /*bytes*/) override {
    ++gives_;
    pass(std::chrono::microseconds(15));
    return absl::OkStatus();
  }
  bool mixes() const override { return true; }
  absl::Status autograd_round(int depth, int width) override {
    rounds_.push_back({depth, width});
    pass(std::chrono::microseconds(100));
    return absl::OkStatus();
  }
  void close() override { closed_ = true; }

  // Times of two threads add up, because each advance begins where the other one has ended.
  void pass(Nanoseconds time) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    clock_.advance(time);
  }

  ManualClock& clock_;
  Mutex mutex_;
  std::string address_;
  int adds_ = 0;
  int sends_ = 0;
  int gives_ = 0;
  std::vector<std::pair<int, int>> rounds_;  // depth and width
  int fail_at_ = -1;
  int fail_send_at_ = -1;
  std::set<int> open_;
  size_t deepest_ = 0;
  bool closed_ = false;
};

class FakeServer final : public Server {
 public:
  absl::StatusOr<std::string> listen() override { return "the address"; }
  absl::Status serve() override { return absl::OkStatus(); }
  int64_t live_objects() override { return live_objects_; }
  void close() override { closed_ = true; }

  int64_t live_objects_ = 0;
  bool closed_ = false;
};

}  // namespace weft::bench
