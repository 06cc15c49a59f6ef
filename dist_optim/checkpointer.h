// Makes the optimizer's steps on an owner durable: writes the owner's parameters while it trains,
// and loads them when the owner is started again.
//
//   auto checkpointer = weft::Checkpointer::open(set, {.folder = "run/ps", .every = 100});
//   if (!checkpointer.ok()) ...           // before the first optimizer on the set
//   ...                                   // optimizers with a shared_name step as ever
//   weft::StepResult result = optimizer.step(context);
//   result.durable                        // up to here a crash of the owners costs nothing
//
// An owner that came back from a checkpoint says so: `step` is DataLoss. The program has to go back
// to the step of that checkpoint and call optimizer.resume() (docs/durable_steps.md).
//
// Thread safety: all methods may be called from any thread.
// Lifetime: shares the set. Keeps the state of optimizers with a shared_name, also when none of
// them is left. One set and one folder have one Checkpointer. The destructor waits until the
// checkpoints that were asked for are written.
// Blocking: open, save and the destructor do file I/O. A step waits for a copy, and with kEveryStep
// for the files. A thread of the Checkpointer writes the files.
// Errors of open: InvalidArgument (options; the checkpoint is of other parameters); DataLoss (the
// newest checkpoint is damaged); FailedPrecondition (the set has an optimizer already);
// DeadlineExceeded (a process that hangs holds the folder's lock; the text names both); and those
// of CheckpointFolder.
// Errors of later checkpoints: in StepResult::checkpoint. It is FailedPrecondition if a later
// incarnation of this owner has opened the folder. Then nothing is written from then on.
// Protocol: docs/durable_steps.md.
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
  // The owner writes twice in `every` steps of a step sequence, while training goes on. A step
  // waits only if writing takes longer than half of them.
  kCheckpoint,
  // The owner answers a step when it is written, or when writing has failed. If it has failed, the
  // step is Applied all the same, and StepResult::checkpoint tells why. A step that was Applied
  // with `checkpoint` OK is not lost here.
  kEveryStep,
};

struct CheckpointerOptions {
  std::string folder;  // for this set alone; created if it is missing
  Durability durability = Durability::kCheckpoint;
  uint64_t every = 100;  // kCheckpoint: a crash loses at most so many steps of a sequence
  int keep = 2;          // number of checkpoints that stay
  const FileCalls* calls = &FileCalls::system();  // must outlive the Checkpointer
  // An earlier incarnation may be writing its last checkpoint. Then open, and each checkpoint, wait
  // so long for the folder's lock.
  Nanoseconds lock_wait = std::chrono::seconds(10);
};

class Checkpointer {
 public:
  // The time and the number of checkpoints so far.
  struct Cost {
    uint64_t written = 0, failed = 0;  // checkpoints
    Nanoseconds copying{}, longest_copy{}, writing{};
  };

  // Claims the folder, also from an earlier incarnation. Then it loads the newest complete
  // checkpoint into the set. If there is none, it writes a first one.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> open(std::shared_ptr<ParameterSet> set,
                                                            CheckpointerOptions options);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Whether open found a checkpoint, and up to which step that held each step sequence.
  bool restored() const;
  std::map<std::string, uint64_t> restored_lines() const;
  // Writes a checkpoint now. Values that ParameterSet::load_state put into the set are durable only
  // after that. DistributedOptimizer::load_state_dict writes one by itself.
  absl::Status save();
  Cost cost() const;

 private:
  class Core;
  explicit Checkpointer(std::shared_ptr<Core> core);
  const std::shared_ptr<Core> core_;  // shared with the steps that wait
};

}  // namespace weft
