#include "weft/bench/contestants/rank_block.h"

#include <utility>
#include <vector>

#include "weft/base/status.h"
#include "weft/bench/report/statistics.h"

namespace weft::bench {
namespace {

// Repeats an operation of a rank, and times each one.
template <class Operation>
absl::StatusOr<BlockResult> run_repeated(Operation operation, const Repetitions& repetitions,
                                         Clock& clock) {
  std::vector<double> latencies_us;
  latencies_us.reserve(repetitions.timed);
  const Usage usage_before = usage_of_this_process();
  for (int64_t i = 0; i < repetitions.warm_up; ++i) WEFT_RETURN_IF_ERROR(operation());
  const TimePoint begin = clock.now();
  TimePoint now = begin;
  for (int64_t i = 0; i < repetitions.timed; ++i) {
    WEFT_RETURN_IF_ERROR(operation());
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

// The bytes are those of this rank alone.
absl::StatusOr<BlockResult> run_rounds(Rank& rank, const Row& row, const Repetitions& repetitions,
                                       Clock& clock) {
  WEFT_ASSIGN_OR_RETURN(BlockResult result,
                        run_repeated([&] { return rank.call_others(); }, repetitions, clock));
  result.bytes = static_cast<double>(result.calls * kAllToAllCalls * row.amount);
  result.footprint = footprint_of_this_process();
  return result;
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

absl::StatusOr<BlockResult> run_rank_block(Rank& rank, const Row& row,
                                           const Repetitions& repetitions, Clock& clock) {
  WEFT_RETURN_IF_ERROR(rank.prepare(row));
  if (row.work == Work::kAllReduce) {
    return run_repeated([&] { return rank.all_reduce(); }, repetitions, clock);
  }
  if (row.work == Work::kDdpStep) return run_steps(rank, repetitions, clock);
  if (row.work == Work::kAllToAllAdd || row.work == Work::kAllToAllSend) {
    return run_rounds(rank, row, repetitions, clock);
  }
  return absl::UnimplementedError("ranks run collectives, training steps and calls to all others");
}

}  // namespace weft::bench
