// Runs one block of measurement on one rank of a group: the same operation a given number of times.
//
// Thread safety, blocking and errors: those of run_block (block.h).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/bench/contestants/block.h"
#include "weft/bench/contestants/rank.h"
#include "weft/bench/rows.h"

namespace weft::bench {

// The number of repetitions on each rank. All ranks must repeat equally often, or one waits for
// ever.
struct Repetitions {
  int64_t warm_up = 1;
  int64_t timed = 2;
};

// The same as run_block, for ranks that all run the same block.
absl::StatusOr<BlockResult> run_rank_block(Rank& rank, const Row& row,
                                           const Repetitions& repetitions, Clock& clock);

}  // namespace weft::bench
