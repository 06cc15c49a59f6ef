// The command line of the parameter-server job.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "weft/examples/parameter_server/model.h"
#include "weft/examples/support/command_line.h"

namespace weft::examples {

struct JobOptions {
  std::string data;  // folder of the four Fashion-MNIST files
  std::string out = "build/train";
  std::string checkpoint;  // empty: see checkpoint_folder()
  bool resume = false;
  int64_t epochs = 3;
  int64_t batch = 64;
  double lr = 0;  // 0: chosen by learning_rate()
  uint64_t seed = 1;
  double dropout = kDropout;
  int64_t limit = 0;       // training pictures, and as many test pictures; 0: all
  int64_t eval_every = 1;  // epochs; the last one is always evaluated
  // How often the server saves itself. 0 and false: never.
  int64_t checkpoint_every = 0;     // steps of each trainer
  bool every_step_durable = false;  // a step is answered when it is on disk, or the write failed
  std::string run;                  // the launcher's name of this run, the same over all restarts

  // Every trainer adds its own step to the server, so several trainers use smaller steps.
  double learning_rate(size_t trainers) const;
  // Without --checkpoint this is a folder inside the output folder, and a fresh run clears it.
  std::string checkpoint_folder() const;
  // The server's own checkpoints lie beside it.
  bool server_keeps_itself() const { return checkpoint_every > 0 || every_step_durable; }
  std::string server_folder() const { return checkpoint_folder() + "-server"; }
};

using JobCommandLine = CommandLine<JobOptions>;

JobCommandLine parse_job_options(int argc, const char* const* argv);

}  // namespace weft::examples
