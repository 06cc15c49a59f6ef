// Trains with uneven inputs: a rank without further inputs takes part in the others' collectives,
// until no rank has inputs.
//
//   weft::join({&ddp.joinable()}, [&] {  // or ddp.join([&] { ... });
//     for (const auto& batch : batches) { ... ddp(batch) ...; loss.backward(); optimizer.step(); }
//   });
//
// Each step of a rank that still trains begins with an all_reduce of 1. Ranks that have joined add
// 0. So each rank knows how many still train, and when none does. The first joinable counts the
// steps. So name DistributedDataParallel first, and behind it the objects that apply its gradients:
// weft::join({&ddp.joinable(), &zero}, ...). A SyncBatchNorm has collectives inside forward, and no
// rank can take part in them without inputs. So a module with one joins only with
// throw_on_early_termination.
//
// Thread safety: one join at a time, on each rank.
// Lifetime: the joinables must outlive it.
// Blocking: join waits until all ranks have joined.
// Errors: what the body throws, at once; the other ranks then fail within the group's timeout.
// c10::ValueError for invalid arguments.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "weft/comm/process_group.h"

namespace weft {

struct JoinOptions {
  // True: the sum of the gradients of all ranks that still train is divided by the group's size.
  // False: it is divided by the number of those ranks.
  bool divide_by_initial_world_size = true;
  // Once a rank has no more inputs, none goes on: join throws c10::Error on all ranks.
  bool throw_on_early_termination = false;
};

class Joinable;

namespace ddp_internal {

struct ActiveJoin {
  JoinOptions options;
  Joinable* first = nullptr;  // its steps are counted
  int training = 0;           // ranks that still train, from the last step of `first`
};

}  // namespace ddp_internal

class Joinable {
 public:
  virtual ~Joinable() = default;

  virtual const std::shared_ptr<ProcessGroup>& join_group() const = 0;
  virtual at::Device join_device() const = 0;
  // Called before a join begins. c10::ValueError: this object cannot join.
  virtual void check_join(const JoinOptions& /*options*/) const {}
  // Called on a rank that has joined: does the collectives of one step of the other ranks.
  virtual void shadow_step() = 0;
  // Called on all ranks when all have joined. `last`: this rank was among the last with inputs.
  virtual void end_join(bool last) = 0;

 protected:
  // The joinables of a join call this first in each step, in their order. Returns the number of
  // ranks that still train. Outside a join: the group's size.
  int announce_step();
  const ddp_internal::ActiveJoin* active_join() const { return active_.get(); }

 private:
  friend void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
                   const JoinOptions& options);
  std::shared_ptr<ddp_internal::ActiveJoin> active_;  // shared by all joinables of a join
};

void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options = {});

}  // namespace weft
