// Makes the optimizer's steps on an owner durable: writes its parameters while it trains, and
// brings them back when it is started again.
//
//   auto checkpointer = weft::Checkpointer::open(set, {.folder = "run/ps", .every = 100});
//   if (!checkpointer.ok()) ...           // before the first optimizer on the set
//   ...                                   // optimizers with a shared_name step as ever
//   weft::StepResult result = optimizer.step(context);
//   result.durable                        // up to here a crash of the owners costs nothing
//
// An owner that came back says so: `step` is DataLoss until the program goes back to the step that
// it came back after and calls optimizer.resume() (docs/durable_steps.md).
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shares the set; keeps the state of optimizers with a shared_name, also when none is
// left. One per set and folder. The destructor ends what is being written. Blocking: open, save and
// the destructor do file I/O. Steps wait for copies, under kEveryStep for files; the files are
// written by a thread of its own. Errors: open: InvalidArgument (options; the checkpoint is of
// other parameters), DataLoss (the newest checkpoint is damaged), FailedPrecondition (an optimizer
// came before), DeadlineExceeded (a process that hangs holds the folder's lock: names both), those
// of CheckpointFolder. Later ones are told in StepResult::checkpoint: FailedPrecondition, if a
// later incarnation of this owner has opened the folder. Nothing is written from then on.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/clock.h"
#include "weft/checkpoint/atomic_file.h"
#include "weft/dist_optim/parameter_set.h"

namespace weft {

enum class Durability {
  // Twice in `every` steps of a line, beside the training: a step waits only while writing takes
  // longer than half of them.
  kCheckpoint,
  // A step is answered when it is written, or when that has failed: it is Applied all the same, and
  // StepResult::checkpoint says why. No step is lost here that was Applied with `checkpoint` OK.
  kEveryStep,
};

struct CheckpointerOptions {
  std::string folder;  // this set's alone; made if need be
  Durability durability = Durability::kCheckpoint;
  uint64_t every = 100;  // kCheckpoint: so many steps of a line are lost in a crash, at most
  int keep = 2;          // checkpoints
  const FileCalls* calls = &FileCalls::system();  // outlive the Checkpointer
  // For an incarnation that is just writing its last checkpoint: open and each checkpoint wait.
  Nanoseconds lock_wait = std::chrono::seconds(10);
};

class Checkpointer {
 public:
  // What it has cost so far.
  struct Cost {
    uint64_t written = 0, failed = 0;  // checkpoints
    Nanoseconds copying{}, longest_copy{}, writing{};
  };

  // Takes the folder over from any earlier incarnation, and loads the newest complete checkpoint
  // into the set, or writes a first one.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> open(std::shared_ptr<ParameterSet> set,
                                                            CheckpointerOptions options);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Whether open found a checkpoint, and how far it held each line of steps.
  bool restored() const;
  std::map<std::string, uint64_t> restored_lines() const;
  // Writes one now. What is loaded into the set (ParameterSet::load_state) is not durable before;
  // DistributedOptimizer::load_state_dict sees to it itself.
  absl::Status save();
  Cost cost() const;

 private:
  class Core;
  explicit Checkpointer(std::shared_ptr<Core> core);
  const std::shared_ptr<Core> core_;  // shared with the set's steps under way
};

}  // namespace weft
