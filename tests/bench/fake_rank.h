// A rank whose operations take no real time. They only advance a manual clock.
//
// Thread safety: none needed; one thread.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/bench/contestants/rank.h"

namespace weft::bench {

class FakeRank final : public Rank {
 public:
  explicit FakeRank(ManualClock& clock) : clock_(clock) {}

  absl::StatusOr<std::string> listen() override { return "the address"; }
  absl::Status join(const std::string& address) override {
    address_ = address;
    clock_.advance(std::chrono::milliseconds(1500));
    return absl::OkStatus();
  }
  absl::Status prepare(const Row& row) override {
    prepared_ += row.name + ";";
    return prepare_status_;
  }
  absl::Status all_reduce() override {
    ++sums_;
    // Only a few are slow: they change the 99th percentile and the mean, not the median.
    clock_.advance(std::chrono::microseconds(sums_ % 20 == 0 ? 50 : 10));
    return sums_ == fail_at_ ? absl::DataLossError("wrong sum") : absl::OkStatus();
  }
  absl::Status meet() override {
    steps_ += 'm';
    clock_.advance(std::chrono::microseconds(100));
    return absl::OkStatus();
  }
  absl::Status local_step() override {
    steps_ += 'l';
    drift_us_ += 1000;
    clock_.advance(std::chrono::microseconds(drift_us_));
    return absl::OkStatus();
  }
  absl::Status ddp_step() override {
    steps_ += 'd';
    clock_.advance(std::chrono::microseconds(drift_us_ + 600));
    return absl::OkStatus();
  }
  absl::Status call_others() override {
    ++rounds_;
    clock_.advance(std::chrono::microseconds(640));
    return absl::OkStatus();
  }
  void close() override { closed_ = true; }

  ManualClock& clock_;
  std::string address_;
  std::string prepared_;
  absl::Status prepare_status_;
  int sums_ = 0;
  int rounds_ = 0;
  int fail_at_ = -1;
  std::string steps_;  // the operations, a letter each
  int drift_us_ = 0;   // the machine gets slower from step to step
  bool closed_ = false;
};

}  // namespace weft::bench
