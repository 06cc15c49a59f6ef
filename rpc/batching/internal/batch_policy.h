// Decides how many calls a batch may have and when it begins. Pure: times and counts in, decisions
// out.
//
// The size follows the latency goal by additive increase and multiplicative decrease, after
// Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, section
// 4.3.1; docs/batching.md says what is different here.
//
// Thread safety: none; its owner locks.
#pragma once

#include <algorithm>
#include <utility>

#include "weft/rpc/batching/batch_options.h"

namespace weft::rpc_internal {

class BatchPolicy {
 public:
  explicit BatchPolicy(const BatchOptions& options)
      : max_size_(options.max_size),
        max_wait_(options.max_wait),
        has_goal_(options.latency_goal.is_set() && !options.latency_goal.infinite()),
        goal_(options.latency_goal.limit()),
        adaptive_(options.adaptive),
        size_(has_goal_ ? 1 : options.max_size) {}

  // The bound of what a batch may have; as if it had been so from the beginning.
  void set_max_size(size_t max_size) {
    max_size_ = max_size;
    size_ = has_goal_ ? std::min(size_, max_size) : max_size;
  }
  // Calls that a batch may have now.
  size_t size() const { return size_; }
  // Calls may wait for company.
  bool waits() const { return max_wait_ > Nanoseconds(0); }
  // A moving average over about eight executions; zero before the first.
  Nanoseconds usual_run() const { return usual_run_; }

  // When a batch of `waiting` calls, the oldest of which came at `oldest`, is to begin if it may:
  // TimePoint::min() if it is full, kNever if only more calls can make it begin.
  TimePoint begins_at(size_t waiting, TimePoint oldest) const {
    if (waiting >= size_ || (adaptive_ && waiting >= expected())) return TimePoint::min();
    const Nanoseconds wait = longest_wait();
    return kNever - oldest < wait ? kNever : oldest + wait;
  }

  // So many calls are there now: they wait or run.
  void seen(size_t calls) { this_while_ = std::max(this_while_, calls); }

  // An execution of `calls` calls took `run`; when it began, the batch had all it might.
  void finished(bool full, Nanoseconds run) {
    usual_run_ = runs_++ == 0 ? run : usual_run_ + (run - usual_run_) / 8;
    if (runs_ % kWhile == 0) last_while_ = std::exchange(this_while_, 0);
    if (!has_goal_) return;
    // Whoever comes just after a batch has begun waits for it and then runs himself.
    if (run > goal_ / 2) {
      size_ = std::max<size_t>(1, size_ - std::max<size_t>(1, size_ / 10));
    } else if (full) {
      size_ = std::min(size_ + 1, max_size_);
    }
  }

  bool late(Nanoseconds from_arrival_to_result) const {
    return has_goal_ && from_arrival_to_result > goal_;
  }

 private:
  static constexpr uint64_t kWhile = 16;  // executions

  // The most calls that were there at the same time, in this while and the one before it.
  size_t expected() const { return std::max(this_while_, last_while_); }

  Nanoseconds longest_wait() const {
    if (!has_goal_) return max_wait_;
    return std::min(max_wait_, std::max(Nanoseconds(0), goal_ - 2 * usual_run_));
  }

  size_t max_size_;
  const Nanoseconds max_wait_;
  const bool has_goal_;
  const Nanoseconds goal_;
  const bool adaptive_;
  size_t this_while_ = 0;
  size_t last_while_ = 0;
  size_t size_;
  uint64_t runs_ = 0;
  Nanoseconds usual_run_{};
};

}  // namespace weft::rpc_internal
