// The well-known pipeline schedules.
//
//   const absl::StatusOr<PipelineSchedule> schedule = schedules::zero_bubble(2, 6);
//
// The table compares them for p workers and m micro-batches, where m >= 2 p is a multiple of p. A
// forward, the input gradients and the weight gradients take one unit each, over all v stages of a
// worker. `alive`: how many micro-batches a worker holds results of at most, where those of one of
// its v stages count 1 / v.
//
// | schedule | stages | step time | alive |
// |---|---|---|---|
// | fill_drain (GPipe) | p | 3 (m + p - 1) | m |
// | one_forward_one_backward (1F1B) | p | 3 (m + p - 1) | p |
// | interleaved (Megatron) | p v | 3 m + 3 (p - 1) / v | p + (p - 1) / v |
// | breadth_first (looped) | p v | 3 m + 3 (p - 1) / v | m |
// | zero_bubble (ZB-H1) | p | 3 m + p - 1 | p |
// | zero_bubble_h2 (ZB-H2) | p | 3 m + p - 1, without idle time in between | 2 p - 1 |
// | zero_bubble_v (ZB-V) | 2 p | 3 m + (p - 1) / 2 | p |
// | half_memory_v (V-Half) | 2 p | at most 3 (m + p - 1) | (p + 1) / 2 |
// | dual_pipe_v (DualPipe-V) | 2 p | 3 m + (p - 1) / 2 | p + 1 / 2 |
//
// Where a schedule has p v stages, stage s is on worker s mod p. Where it has 2 p, worker w has
// stages w and 2 p - 1 - w: the pipeline runs through the workers and back.
//
// Sources: GPipe (arXiv 1811.06965); Megatron-LM (2104.04473); breadth-first (2211.05953); zero
// bubble (2401.10241); controllable memory (2405.15362); DualPipe (DeepSeek-V3, 2412.19437).
// Thread safety: pure functions.
// Errors: InvalidArgument, naming the number: below 1, above 2^20, more than 2^22 actions in all,
// or too few micro-batches.
#pragma once

#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/schedule.h"

namespace weft::schedules {

absl::StatusOr<PipelineSchedule> forward_only(int workers, int micro_batches);
absl::StatusOr<PipelineSchedule> fill_drain(int workers, int micro_batches);
absl::StatusOr<PipelineSchedule> one_forward_one_backward(int workers, int micro_batches);
// `chunks`: stages per worker. The micro-batches go in m / p rounds, rounded down. InvalidArgument:
// the rounds would be of unequal length.
absl::StatusOr<PipelineSchedule> interleaved(int workers, int micro_batches, int chunks);
// Backwards go from the last micro-batch to the first.
absl::StatusOr<PipelineSchedule> breadth_first(int workers, int micro_batches, int chunks);
// With more than one chunk, as interleaved, but with split backwards.
absl::StatusOr<PipelineSchedule> zero_bubble(int workers, int micro_batches, int chunks = 1);
absl::StatusOr<PipelineSchedule> zero_bubble_h2(int workers, int micro_batches);
absl::StatusOr<PipelineSchedule> zero_bubble_v(int workers, int micro_batches);
absl::StatusOr<PipelineSchedule> half_memory_v(int workers, int micro_batches);
// At least 2 p micro-batches.
absl::StatusOr<PipelineSchedule> dual_pipe_v(int workers, int micro_batches);

}  // namespace weft::schedules
