// What one trainer knows of its steps, in a file that outlives it: tools/train_under_kills.py reads
// there that each step counts once.
//
//   life,event,step,durable
//   7,applied,41,40      step 41 was answered as applied, steps up to 40 as durable
//   9,resumed,40,        the server, or this trainer, came back: the next step is 41
//   9,loaded,40,         and the server's parameters were replaced by those of the job's checkpoint
//
// Thread safety: belongs to one thread. Blocking: file I/O; a line is with the system, though not
// on the disk, when its method returns. Errors: RpcError naming the file.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "weft/dist_optim/steps/step_result.h"

namespace weft::examples {

class StepLedger {
 public:
  // Appends to folder/<trainer>.csv. Empty: writes nothing.
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
