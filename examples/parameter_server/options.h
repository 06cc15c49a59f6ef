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
  // What the server keeps of itself. 0 and false: nothing.
  int64_t checkpoint_every = 0;     // of each trainer's steps
  bool every_step_durable = false;  // a step is answered once it is on disk, or that failed
  std::string ledger;               // folder; empty: none
  std::string run;                  // the launcher's name of this run, over all restarts

  // Every trainer adds its own step, so that one alone takes smaller ones.
  double learning_rate(size_t trainers) const;
  // Without --checkpoint a folder of the output's, which a fresh run clears.
  std::string checkpoint_folder() const;
  // The server's own, beside it.
  bool server_keeps_itself() const { return checkpoint_every > 0 || every_step_durable; }
  std::string server_folder() const { return checkpoint_folder() + "-server"; }
};

using JobCommandLine = CommandLine<JobOptions>;

JobCommandLine parse_job_options(int argc, const char* const* argv);

}  // namespace weft::examples
