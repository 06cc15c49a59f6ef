// Measures the speed of a pipeline with several numbers of micro-batches, beside the unsplit model.
//
// Thread safety: free functions.
// Blocking: sweep.
// Errors: those of pipeline.h. If the picture cannot be written, sweep fails before it measures
// anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/examples/pipeline_resnet50/pipeline.h"
#include "weft/examples/pipeline_resnet50/pipeline_picture.h"

namespace weft::examples {

struct SweepOptions {
  std::vector<std::string> workers = {};  // one for each shard
  std::vector<int64_t> micro_batches = {1, 2, 4, 6, 8, 12};
  std::string cuts = "auto";  // or as parse_cuts says
  int64_t classes = 1000;
  int64_t steps = 3;   // with each number, after some warm-up steps
  double seconds = 2;  // for measuring layers and stages, each time
  double learning_rate = 0.05;
  uint64_t seed = 1;
  std::string picture = {};  // file; empty: none
};

// Prints a line for each number of micro-batches and, at the end, the best one.
void sweep(const SweepOptions& options, const Pictures& batch);

}  // namespace weft::examples
