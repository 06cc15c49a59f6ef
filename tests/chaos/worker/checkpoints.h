// A chaos worker's checkpoints: each step saved, read again and compared, whatever the disk says.
//
// Thread safety: belongs to one thread. Blocking: file I/O.
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

  // What an earlier incarnation left: its newest complete step must load.
  void resume();
  // One step more. Full disks and limits may refuse it; the newest complete step still loads.
  void save();
  // Saves until only complete steps of this incarnation are kept; how many files lie beside them.
  uint64_t files_left();

 private:
  // The newest complete step is this incarnation's last saved one, or newer if the save was not
  // told.
  void check();

  const CheckpointFolder folder_;
  Tracker& tracker_;
  int64_t saved_ = 0;  // the newest step known to be complete
  int64_t tried_ = 0;  // the newest step begun
};

}  // namespace weft::chaos
