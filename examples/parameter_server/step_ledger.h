// A log of the results of one trainer's steps, in a file that outlives the trainer.
// tools/train_under_kills.py reads it and checks that each step counts once.
//
//   life,event,step,durable
//
// - `7,applied,41,40`: Step 41 was answered as applied, steps up to 40 as durable.
// - `9,resumed,40,`: The server, or this trainer, came back. The next step is 41.
// - `9,loaded,40,`: The server's parameters were then replaced by those of the job's checkpoint.
//
// The column `life` is the incarnation of the trainer.
//
// Thread safety: belongs to one thread. Blocking: file I/O. When a method returns, its line is with
// the operating system, but not yet on the disk. Errors: RpcError naming the file.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "weft/dist_optim/steps/step_result.h"

namespace weft::examples {

class StepLedger {
 public:
  // Appends to folder/<trainer>.csv. An empty folder name means: write nothing.
  StepLedger(const std::string& folder, const std::string& trainer, uint64_t incarnation);

  void applied(const StepResult& step);
  void resumed(uint64_t step);
  void loaded(uint64_t step);

 private:
  void write(const std::string& event);

  const std::string path_;
  const uint64_t incarnation_;
  std::ofstream file_;
};

}  // namespace weft::examples
