// Runs one block of measurement: the same operation again and again for a given time.
//
// Thread safety: none needed; a block runs on the calling thread.
// Blocking: for the time of the block and of the operations begun in it.
// Errors: the first error of an operation ends the block and is its result.
#pragma once

#include <chrono>
#include <cstdint>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/bench/contestants/contestant.h"
#include "weft/bench/machine.h"
#include "weft/bench/rows.h"

namespace weft::bench {

struct BlockResult {
  int64_t calls = 0;  // the timed ones; the timed rounds in rows of many workers
  double seconds = 0;
  double median_us = 0;  // of one operation; 0 for calls in flight, which are not timed one by one
  double p99_us = 0;
  double bytes = 0;       // bytes of tensors in both directions, of all ranks that are combined
  int64_t all_calls = 0;  // with warm-up; `usage` covers all of these
  Usage usage;            // of this process; the driver adds that of the other processes
  // For the row of a training step. Its other figures are those of steps with DDP.
  double local_us = 0;          // the median step without DDP
  double communication_us = 0;  // median of (step with DDP - step before it without)
  double mean_batch = 0;        // calls that were answered together; 0: not batched
  double small_call_us = 0;     // kGive: the median of the small calls between the gifts
  // kMixed: the rate of the tensors beside the small calls, and alone in the same block.
  double stream_gb_per_s = 0;
  double stream_alone_gb_per_s = 0;
  // Rows of many workers: from the last worker's call of join until all had joined, and what the
  // processes held after the block.
  double join_seconds = 0;
  Footprint footprint = {};
  // For an agent: the time to choose actions, for one call or for a batch, and how often per second
  // it did so. 0: was not measured.
  double agent_us = 0;
  double agent_rate = 0;
  // For the rows of a pipeline, from the same block: the time that the executed schedule has by its
  // own price, that of fill-drain at its own best cuts, and a step of the unsplit model on one
  // thread. 0: was not measured.
  double schedule_us = 0;
  double fill_drain_us = 0;
  double unsplit_us = 0;
};

// Warms up with untimed operations, then measures for `seconds` and at least two operations. For
// kAddAfterIdle it runs one single operation without warm-up.
absl::StatusOr<BlockResult> run_block(Client& client, const Row& row, double seconds, Clock& clock);

// The row's figure in the row's unit.
double value_of(const Row& row, const BlockResult& result);

inline double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace weft::bench
