#include "weft/bench/contestants/block.h"

#include <chrono>
#include <utility>
#include <vector>

#include "weft/base/status.h"
#include "weft/bench/statistics.h"

namespace weft::bench {
namespace {

constexpr double kWarmUpShare = 0.1;  // of the block's time, spent before it
constexpr int64_t kFewestCalls = 2;

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
      break;
  }
  return absl::InternalError("calls in flight are not run one at a time");
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
    } while (seconds_between(warm_from, clock.now()) < seconds * kWarmUpShare);
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

// Counts only between the moment when all slots have been used once and the end of the time, so
// that neither filling nor draining the window is part of the rate.
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

}  // namespace

absl::StatusOr<BlockResult> run_block(Client& client, const Row& row, double seconds,
                                      Clock& clock) {
  if (row.work == Work::kAddInFlight) {
    return run_in_flight(client, static_cast<int>(row.amount), seconds, clock);
  }
  return run_one_at_a_time(client, row, seconds, clock);
}

double value_of(const Row& row, const BlockResult& result) {
  if (row.unit == "us") return result.median_us;
  if (row.unit == "GB/s") return result.bytes / result.seconds * 1e-9;
  return static_cast<double>(result.calls) / result.seconds;
}

}  // namespace weft::bench
