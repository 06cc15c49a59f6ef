// Draws the throughput of a pipeline against the number of micro-batches. Beside it draws when each
// worker worked on each micro-batch of one step.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weft/examples/pipeline_resnet50/time_line.h"

namespace weft::examples {

struct SweepPoint {
  int64_t micro_batches = 1;
  std::vector<int64_t> cuts = {};             // as in Cuts
  double seconds = 0;                         // of a step
  double ideal = 0;                           // ideal_seconds
  double unsplit = 0;                         // one thread, the same micro-batches
  double threads = 0;                         // a thread for each shard, in one process
  std::vector<std::vector<Span>> spans = {};  // of each worker, in one step
};

// Returns the bytes of a PNG file of 1200 x 480 pixels: left all points, right the spans of
// `shown`. `pictures`: the number of pictures in a step. ResourceExhausted if there is no memory
// for it.
absl::StatusOr<std::string> draw_pipeline(const std::string& title,
                                          const std::vector<SweepPoint>& points,
                                          const SweepPoint& shown, int64_t pictures);

}  // namespace weft::examples
