// Training with uneven inputs: a rank that has no more takes part in the others' collectives until
// all have none.
//
//   weft::join({&ddp.joinable()}, [&] {  // or ddp.join([&] { ... });
//     for (const auto& batch : batches) { ... ddp(batch) ...; loss.backward(); optimizer.step(); }
//   });
//
// Each step of a rank that still trains begins with an all_reduce of 1, to which ranks that have
// joined add 0: so each rank knows how many still train, and when nobody does. The first joinable
// counts the steps. So DistributedDataParallel comes first, and behind it what applies its
// gradients: weft::join({&ddp.joinable(), &zero}, ...). A module with a SyncBatchNorm has
// collectives inside forward, which nobody can take part in without inputs: it joins only with
// throw_on_early_termination.
//
// Thread safety: one join at a time, on each rank. Lifetime: joinables outlive it.
// Blocking: join, until all ranks have joined. Errors: whatever the body throws, at once: the other
// ranks then fail within the group's timeout; c10::ValueError for bad arguments.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "weft/comm/process_group.h"

namespace weft {

struct JoinOptions {
  // Gradients are sums over the ranks that still train, divided by the group's size; else by the
  // number of those ranks.
  bool divide_by_initial_world_size = true;
  // No rank goes on once one has no more inputs: join throws c10::Error on all.
  bool throw_on_early_termination = false;
};

class Joinable;

namespace ddp_internal {

struct ActiveJoin {
  JoinOptions options;
  Joinable* first = nullptr;  // whose steps are counted
  int training = 0;           // ranks that still train, as of the first's last step
};

}  // namespace ddp_internal

class Joinable {
 public:
  virtual ~Joinable() = default;

  virtual const std::shared_ptr<ProcessGroup>& join_group() const = 0;
  virtual at::Device join_device() const = 0;
  // Before a join begins; c10::ValueError: it cannot.
  virtual void check_join(const JoinOptions& /*options*/) const {}
  // On a rank that has joined: the collectives of one step of the others.
  virtual void shadow_step() = 0;
  // On all ranks, when all have joined. `last`: this rank was among the last to have inputs.
  virtual void end_join(bool last) = 0;

 protected:
  // To be called first in each step, by a join's joinables in their order. The number of ranks that
  // still train; the group's size outside a join.
  int announce_step();
  const ddp_internal::ActiveJoin* active_join() const { return active_.get(); }

 private:
  friend void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
                   const JoinOptions& options);
  std::shared_ptr<ddp_internal::ActiveJoin> active_;  // of all joinables of a join
};

void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options = {});

}  // namespace weft
