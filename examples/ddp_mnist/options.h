// The command line of the data-parallel job.
#pragma once

#include <cstdint>
#include <string>

#include "weft/examples/support/command_line.h"

namespace weft::examples {

struct DdpMnistOptions {
  std::string data;  // folder of the data set
  int64_t epochs = 2;
  int64_t batch = 64;  // pictures per step and rank
  double lr = 0.03;
  uint64_t seed = 1;
  int64_t limit = 0;            // pictures to use; 0: all
  bool double_numbers = false;  // else float
  int whole_batch = 0;          // ranks that one process stands for; 0: it is one rank
  std::string checkpoint;       // folder; "": none is saved
  bool resume = false;
  std::string losses;   // file to write; "": none
  std::string compare;  // file to compare with; "": none
};

using DdpMnistCommandLine = CommandLine<DdpMnistOptions>;

DdpMnistCommandLine parse_ddp_mnist_options(int argc, const char* const* argv);

}  // namespace weft::examples
