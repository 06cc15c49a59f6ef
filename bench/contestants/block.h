// One block of measurement: the same operation again and again for a given time.
//
// Thread safety: none needed; a block runs on the calling thread.
// Blocking: for the block's time and the operations begun in it.
// Errors: the first error of an operation ends the block and is its result.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/bench/contestants/contestant.h"
#include "weft/bench/contestants/rank.h"
#include "weft/bench/machine.h"
#include "weft/bench/rows.h"

namespace weft::bench {

struct BlockResult {
  int64_t calls = 0;  // that were timed
  double seconds = 0;
  double median_us = 0;  // of one operation; 0 for calls in flight, which are not timed one by one
  double p99_us = 0;
  double bytes = 0;       // of tensors, both directions
  int64_t all_calls = 0;  // warm-up included: these are what `usage` paid for
  Usage usage;  // of this process here, of all processes once the driver has added the others'
  // In the row of a training step, whose other figures are those of the steps with DDP.
  double local_us = 0;          // the median step without DDP
  double communication_us = 0;  // the median difference of a step with DDP and the one before it
  double mean_batch = 0;        // calls that were answered together; 0: they were not
  // Of an agent: what choosing actions took it, for one call or for a batch, and how often a second
  // it did so. 0: was not measured.
  double agent_us = 0;
  double agent_rate = 0;
  // In the rows of a pipeline, of the same block: a step that never waits, and one of the unsplit
  // model on one thread. 0: was not measured.
  double ideal_us = 0;
  double unsplit_us = 0;
};

// Warms up with untimed operations, then measures for `seconds` and at least two operations. The
// row after a pause is one single operation and nothing before it.
absl::StatusOr<BlockResult> run_block(Client& client, const Row& row, double seconds, Clock& clock);

// How often the ranks repeat an operation: all of them equally often, or one would wait for ever.
struct Repetitions {
  int64_t warm_up = 1;
  int64_t timed = 2;
};

// As run_block, for ranks of which every one runs the same block.
absl::StatusOr<BlockResult> run_rank_block(Rank& rank, const Row& row,
                                           const Repetitions& repetitions, Clock& clock);

// The row's figure in the row's unit.
double value_of(const Row& row, const BlockResult& result);

}  // namespace weft::bench
