#include "weft/bench/contestants/block.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "weft/base/status.h"
#include "weft/bench/statistics.h"

namespace weft::bench {
namespace {

constexpr double kWarmUpPart = 0.1;  // of the block's time, in addition to it
constexpr int64_t kFewestCalls = 2;
// Fraction of a step without DDP. The time of communication is a difference of two such times, so
// noise can make it small or negative. Ratios are not computed from smaller values.
constexpr double kLeastCommunicationShare = 0.01;

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

absl::Status run_once(Client& client, const Row& row) {
  switch (row.work) {
    case Work::kAdd:
    case Work::kAddAfterIdle:
      return client.add();
    case Work::kSend:
      return client.send(row.amount);
    case Work::kEcho:
      return client.echo(row.amount);
    case Work::kAutograd:
      return client.autograd_round();
    case Work::kRref:
      return client.rref_life();
    case Work::kAddInFlight:
    case Work::kAllReduce:
    case Work::kDdpStep:
    case Work::kTwoCalls:
    case Work::kOneCall:
    case Work::kBatched1:
    case Work::kBatched16:
    case Work::kPipeline:
      break;
  }
  return absl::InternalError("not an operation that one client runs one at a time");
}

double bytes_per_call(const Row& row) {
  if (row.work == Work::kSend) return static_cast<double>(row.amount);
  if (row.work == Work::kEcho) return 2.0 * static_cast<double>(row.amount);
  return 0;
}

absl::StatusOr<BlockResult> run_one_at_a_time(Client& client, const Row& row, double seconds,
                                              Clock& clock) {
  const Usage usage_before = usage_of_this_process();
  const TimePoint warm_from = clock.now();
  int64_t warm_calls = 0;
  if (row.work != Work::kAddAfterIdle) {
    do {
      WEFT_RETURN_IF_ERROR(run_once(client, row));
      ++warm_calls;
    } while (seconds_between(warm_from, clock.now()) < seconds * kWarmUpPart);
  }

  const int64_t fewest = row.work == Work::kAddAfterIdle ? 1 : kFewestCalls;
  if (row.work == Work::kAddAfterIdle) seconds = 0;
  std::vector<double> latencies_us;
  latencies_us.reserve(1 << 16);
  const TimePoint begin = clock.now();
  TimePoint now = begin;
  int64_t calls = 0;
  while (calls < fewest || seconds_between(begin, now) < seconds) {
    WEFT_RETURN_IF_ERROR(run_once(client, row));
    const TimePoint then = std::exchange(now, clock.now());
    latencies_us.push_back(seconds_between(then, now) * 1e6);
    ++calls;
  }
  return BlockResult{.calls = calls,
                     .seconds = seconds_between(begin, now),
                     .median_us = median(latencies_us),
                     .p99_us = quantile(latencies_us, 0.99),
                     .bytes = bytes_per_call(row) * static_cast<double>(calls),
                     .all_calls = warm_calls + calls,
                     .usage = usage_of_this_process() - usage_before};
}

// Counts only from the moment when all slots have been used once until the time is over. So neither
// filling nor draining the window is part of the rate.
absl::StatusOr<BlockResult> run_in_flight(Client& client, int depth, double seconds, Clock& clock) {
  const Usage usage_before = usage_of_this_process();
  for (int slot = 0; slot < depth; ++slot) WEFT_RETURN_IF_ERROR(client.start_add(slot));
  const auto turn = [&](int slot) -> absl::Status {
    WEFT_RETURN_IF_ERROR(client.finish_add(slot));
    return client.start_add(slot);
  };
  for (int slot = 0; slot < depth; ++slot) WEFT_RETURN_IF_ERROR(turn(slot));

  const TimePoint begin = clock.now();
  TimePoint now = begin;
  int64_t calls = 0;
  while (calls < kFewestCalls || seconds_between(begin, now) < seconds) {
    WEFT_RETURN_IF_ERROR(turn(static_cast<int>(calls % depth)));
    ++calls;
    now = clock.now();
  }
  for (int64_t slot = calls; slot < calls + depth; ++slot) {
    WEFT_RETURN_IF_ERROR(client.finish_add(static_cast<int>(slot % depth)));
  }
  return BlockResult{.calls = calls,
                     .seconds = seconds_between(begin, now),
                     .all_calls = calls + 2 * depth,
                     .usage = usage_of_this_process() - usage_before};
}

absl::StatusOr<BlockResult> run_all_reduces(Rank& rank, const Repetitions& repetitions,
                                            Clock& clock) {
  std::vector<double> latencies_us;
  latencies_us.reserve(repetitions.timed);
  const Usage usage_before = usage_of_this_process();
  for (int64_t i = 0; i < repetitions.warm_up; ++i) WEFT_RETURN_IF_ERROR(rank.all_reduce());
  const TimePoint begin = clock.now();
  TimePoint now = begin;
  for (int64_t i = 0; i < repetitions.timed; ++i) {
    WEFT_RETURN_IF_ERROR(rank.all_reduce());
    const TimePoint then = std::exchange(now, clock.now());
    latencies_us.push_back(seconds_between(then, now) * 1e6);
  }
  return BlockResult{.calls = repetitions.timed,
                     .seconds = seconds_between(begin, now),
                     .median_us = median(latencies_us),
                     .p99_us = quantile(latencies_us, 0.99),
                     .all_calls = repetitions.warm_up + repetitions.timed,
                     .usage = usage_of_this_process() - usage_before};
}

// Runs a step with DDP right after a step without it. All ranks begin both together. The step
// without DDP ends when the last rank has done it, so that waiting for a slower rank does not count
// as communication.
absl::StatusOr<BlockResult> run_steps(Rank& rank, const Repetitions& repetitions, Clock& clock) {
  std::vector<double> local_us, step_us, difference_us;
  Usage usage;
  const TimePoint begin = clock.now();
  for (int64_t i = 0; i < repetitions.warm_up + repetitions.timed; ++i) {
    WEFT_RETURN_IF_ERROR(rank.meet());
    const TimePoint start = clock.now();
    WEFT_RETURN_IF_ERROR(rank.local_step());
    WEFT_RETURN_IF_ERROR(rank.meet());
    const TimePoint middle = clock.now();
    const Usage usage_before = usage_of_this_process();
    WEFT_RETURN_IF_ERROR(rank.ddp_step());
    const TimePoint end = clock.now();
    if (i < repetitions.warm_up) continue;
    usage += usage_of_this_process() - usage_before;
    local_us.push_back(seconds_between(start, middle) * 1e6);
    step_us.push_back(seconds_between(middle, end) * 1e6);
    difference_us.push_back(step_us.back() - local_us.back());
  }
  return BlockResult{.calls = repetitions.timed,
                     .seconds = seconds_between(begin, clock.now()),
                     .median_us = median(step_us),
                     .p99_us = quantile(step_us, 0.99),
                     .all_calls = repetitions.timed,
                     .usage = usage,
                     .local_us = median(local_us),
                     .communication_us = median(difference_us)};
}

}  // namespace

absl::StatusOr<BlockResult> run_block(Client& client, const Row& row, double seconds,
                                      Clock& clock) {
  if (row.work == Work::kAddInFlight) {
    return run_in_flight(client, static_cast<int>(row.amount), seconds, clock);
  }
  return run_one_at_a_time(client, row, seconds, clock);
}

absl::StatusOr<BlockResult> run_rank_block(Rank& rank, const Row& row,
                                           const Repetitions& repetitions, Clock& clock) {
  WEFT_RETURN_IF_ERROR(rank.prepare(row));
  if (row.work == Work::kAllReduce) return run_all_reduces(rank, repetitions, clock);
  if (row.work == Work::kDdpStep) return run_steps(rank, repetitions, clock);
  return absl::UnimplementedError("ranks only run collectives and training steps");
}

double value_of(const Row& row, const BlockResult& result) {
  if (row.work == Work::kDdpStep) {
    return std::max(result.communication_us, kLeastCommunicationShare * result.local_us);
  }
  if (row.unit == "us") return result.median_us;
  if (row.unit == "GB/s") return result.bytes / result.seconds * 1e-9;
  return static_cast<double>(result.calls) / result.seconds;
}

}  // namespace weft::bench
