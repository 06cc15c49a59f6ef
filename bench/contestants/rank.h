// What a system of collectives implements to be measured: one of the ranks of a group.
//
// The harness owns the loops and the clock, as it does for Client. All ranks are processes of the
// same program and are given the same calls in the same order. Every operation checks its result
// and fails when it is wrong.
//
// Thread safety: one thread at a time.
// Blocking: all methods but listen() may wait for the other ranks; the driver ends a process that
// does not answer.
// Errors: Unimplemented, on all ranks alike, says that this contestant has no such row.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/bench/rows.h"

namespace weft::bench {

class Rank {
 public:
  virtual ~Rank() = default;

  // Rank 0 only: opens the door and returns the text that join() needs on all ranks, its own too.
  virtual absl::StatusOr<std::string> listen() = 0;

  // Returns once all ranks have come.
  virtual absl::Status join(const std::string& address) = 0;

  // Before each block: brings about what the row's operations need, runs one of them and checks the
  // whole of its result.
  virtual absl::Status prepare(const Row& row) = 0;

  // Sums the tensor that prepare() made over all ranks, in place. Sampled elements of it are
  // written before and checked after, other numbers each time.
  virtual absl::Status all_reduce() = 0;

  // Returns once all ranks have called it; costs little beside a training step.
  virtual absl::Status meet() = 0;

  // Forward, backward, of the bare model and of the model that averages its gradients; the
  // gradients are undefined before.
  virtual absl::Status local_step() = 0;
  virtual absl::Status ddp_step() = 0;

  // Leaves the group.
  virtual void close() {}
};

struct RankContestant {
  std::string name;
  std::function<std::unique_ptr<Rank>(int rank, int ranks)> make_rank;
};

}  // namespace weft::bench
