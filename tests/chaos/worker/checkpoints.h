// A chaos worker's checkpoints: it saves each step, reads it again and compares, also under disk
// faults.
//
// Thread safety: belongs to one thread.
// Blocking: file I/O.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/tests/chaos/worker/tracker.h"

namespace weft::chaos {

class Checkpoints {
 public:
  Checkpoints(std::string folder, Tracker& tracker);

  // Loads the newest complete step of an earlier incarnation. It must load.
  void resume();
  // Saves one more step. Full disks and limits may refuse it, but the newest complete step still
  // loads.
  void save();
  // Saves until all kept steps are complete ones of this incarnation. Returns the number of other
  // files.
  uint64_t files_left();

 private:
  // Checks that the newest complete step is the last saved one, or newer if a save was reported as
  // failed.
  void check();

  const CheckpointFolder folder_;
  Tracker& tracker_;
  int64_t saved_ = 0;  // the newest step known to be complete
  int64_t tried_ = 0;  // the newest step begun
};

}  // namespace weft::chaos
