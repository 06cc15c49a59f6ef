// Measures the speed of planned pipelines with several numbers of micro-batches, beside the unsplit
// model.
//
// Thread safety: a free function.
// Blocking: measures for minutes.
// Errors: those of plan_layers() and Pipeline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace weft::examples {

struct SpeedOptions {
  std::vector<std::string> workers = {};
  std::vector<int> micro_batches = {2, 3, 4, 6, 8, 12};
  int64_t classes = 1000;
  int64_t steps = 3;   // with each number of micro-batches, after some that warm up
  double seconds = 2;  // to measure the layers, for each number of micro-batches
  double learning_rate = 0.05;
  uint64_t seed = 1;
};

// Prints a line for each number of micro-batches. At the end it prints the best one, and when its
// workers did what. After SIGTERM (worker/stop_request.h) it returns when the planning or the step
// under way has ended. It returns false if this was not the last step.
bool measure_speed(const SpeedOptions& options, const at::Tensor& images, const at::Tensor& labels);

}  // namespace weft::examples
