// The work of a chaos worker: calls, references, backward passes, steps and checkpoints.
//
// Each kind has threads of its own, which draw from the seed of the run. The tracker records
// everything in the ledger (tracker.h). A failure is a result like any other, and the work goes on.
//
// Thread safety: call start and cease from one thread.
// Lifetime: worker and tracker outlive it.
// Blocking: cease, until nothing that was begun is open.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/mutex.h"
#include "weft/tests/chaos/dice.h"
#include "weft/tests/chaos/worker/checkpoints.h"
#include "weft/tests/chaos/worker/tracker.h"
#include "weft/worker/worker.h"

namespace weft::chaos {

// The members that this worker does not suspect, itself included.
std::vector<WorkerId> live_members(const Worker& worker);

class Workload {
 public:
  // `folder`: for the checkpoints.
  Workload(const Worker& worker, Tracker& tracker, uint64_t seed, std::string folder);
  ~Workload();
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  void start();
  // Begins nothing more. Returns when all calls are told and all references are dropped.
  void cease() ABSL_LOCKS_EXCLUDED(mutex_);
  // Call it after cease.
  Checkpoints& checkpoints() { return checkpoints_; }

 private:
  using Milliseconds = std::chrono::milliseconds;
  using Work = std::function<void(Dice&)>;
  struct Training;

  // Repeats `work`, with a pause of up to `pause` between.
  void loop(uint64_t number, Milliseconds pause, const Work& work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false when it is time to cease.
  bool rest(Milliseconds time) ABSL_LOCKS_EXCLUDED(mutex_);

  WorkerId somebody(Dice& dice) const;
  WorkerId somebody_else(Dice& dice) const;

  // workload.cc
  void call_somebody(Dice& dice);
  void call_with_bytes(Dice& dice, WorkerId to, Milliseconds timeout);
  void call_with_tensor(Dice& dice, WorkerId to, Milliseconds timeout);
  void call_and_cancel(Dice& dice, WorkerId to);
  void share_a_cell(Dice& dice);

  // workload_training.cc
  void train(Dice& dice);
  void check_a_gradient(Dice& dice);
  void begin_training(Dice& dice);
  void step();
  // Records the result of `body`, which throws if it fails.
  void as_pass(WorkerId whom, Milliseconds allowed, const std::function<void()>& body);

  const Worker& worker_;
  Tracker& tracker_;
  const uint64_t seed_;
  Checkpoints checkpoints_;
  std::unique_ptr<Training> training_;  // belongs to the training thread
  Mutex mutex_;
  CondVar changed_;
  bool ceasing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::chaos
