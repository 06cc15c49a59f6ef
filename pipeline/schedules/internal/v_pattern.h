// Finds a repeating pattern of actions for workers that hold two stages each, down and up a V.
//
// Every micro-batch repeats the pattern 6 units after the one before it, because it has 6 actions
// on each worker: F, I and W of two stages. One action lasts one unit. On a worker, the six begin
// at times that differ modulo 6, so micro-batches never collide. The sooner the W of a stage
// follows its F, the fewer micro-batches are alive (arXiv 2405.15362, "building blocks").
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "weft/pipeline/schedules/schedule.h"

namespace weft::pipeline_internal {

// Returns the fastest such schedule in which no worker ever holds more than `most_alive` results.
// All actions take equally long. The results of a micro-batch in one stage count as one. Nullopt:
// there is none.
std::optional<PipelineSchedule> v_schedule(int workers, int micro_batches, int most_alive);

}  // namespace weft::pipeline_internal
