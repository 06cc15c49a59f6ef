// The processes of a contestant as the driver uses them: start, run a block, stop.
//
// Thread safety: one thread at a time.
// Lifetime: the destructor stops the processes. They also stop when the driver dies.
// Blocking: every method waits for the processes, at most kPatienceSeconds longer than the block's
// time.
// Errors: Unimplemented from run() means that the contestant has no such row. After any other error
// the group must be started again.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/bench/contestants/block.h"
#include "weft/bench/rows.h"

namespace weft::bench {

class Group {
 public:
  virtual ~Group() = default;
  virtual const std::string& name() const = 0;
  virtual bool spins_when_idle() const = 0;
  // Stops the processes if they run, and starts new ones.
  virtual absl::Status start() = 0;
  // Between pause() and resume() none of the processes runs.
  virtual void pause() = 0;
  virtual void resume() = 0;
  virtual absl::StatusOr<BlockResult> run(const Row& row, double seconds) = 0;
};

inline constexpr double kPatienceSeconds = 60;

}  // namespace weft::bench
