// Decides how many calls a batch may have and when it begins. It is pure: it gets times and counts,
// and returns decisions.
//
// The size follows the latency goal by additive increase and multiplicative decrease, after
// Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, section
// 4.3.1; docs/batching.md says what is different here.
//
// Thread safety: none. Its owner holds a lock.
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

  // Changes the most calls that a batch may have. Without a goal, this is the new size.
  void set_max_size(size_t max_size) {
    max_size_ = max_size;
    size_ = has_goal_ ? std::min(size_, max_size) : max_size;
  }
  // How many calls a batch may have now.
  size_t size() const { return size_; }
  // Whether calls wait for other calls to join.
  bool waits() const { return max_wait_ > Nanoseconds(0); }
  // The time of one execution: a moving average over about eight of them; zero before the first.
  Nanoseconds usual_run() const { return usual_run_; }

  // When a batch of `waiting` calls must begin if a slot is free. `oldest` is the arrival of the
  // oldest call. TimePoint::min(): now, because the batch is full. kNever: if more calls come.
  TimePoint begins_at(size_t waiting, TimePoint oldest) const {
    if (waiting >= size_ || (adaptive_ && waiting >= expected())) return TimePoint::min();
    const Nanoseconds wait = longest_wait();
    return kNever - oldest < wait ? kNever : oldest + wait;
  }

  // `calls` calls are present now: they wait or run.
  void seen(size_t calls) { this_while_ = std::max(this_while_, calls); }

  // An execution took `run`. `full`: its batch had the most calls that it might have.
  void finished(bool full, Nanoseconds run) {
    usual_run_ = runs_++ == 0 ? run : usual_run_ + (run - usual_run_) / 8;
    if (runs_ % kWhile == 0) last_while_ = std::exchange(this_while_, 0);
    if (!has_goal_) return;
    // A call that arrives just after a batch has begun waits for it and then runs in the next one.
    // So its time is two executions.
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

  // The most calls that were present at the same time during the last 16 to 32 executions.
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
