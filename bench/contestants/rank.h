// The interface that a system of collectives implements to be measured: one rank of a group.
//
// The harness owns the loops and the clock, as for Client. All ranks are processes of the same
// program and get the same calls in the same order. Every operation checks its result and fails if
// it is wrong.
//
// Thread safety: one thread at a time.
// Blocking: all methods except listen() may wait for the other ranks. The driver kills a process
// that does not answer.
// Errors: Unimplemented, on all ranks alike, means that this contestant has no such row.
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

  // Rank 0 only: opens a port and returns the address that join() needs on all ranks, rank 0
  // included.
  virtual absl::StatusOr<std::string> listen() = 0;

  // Returns when all ranks have joined.
  virtual absl::Status join(const std::string& address) = 0;

  // Called before each block. Prepares what the operations of the row need, runs one of them, and
  // checks its whole result.
  virtual absl::Status prepare(const Row& row) = 0;

  // The operations of the rows; a contestant implements those of the rows that it has.

  // Sums the tensor of prepare() over all ranks, in place. Sampled elements are written before and
  // checked after, with other numbers each time.
  virtual absl::Status all_reduce();

  // Returns when all ranks have called it. It costs little compared with a training step.
  virtual absl::Status meet();

  // Forward and backward of the bare model, and of the model that averages its gradients. Before a
  // step the gradients are undefined.
  virtual absl::Status local_step();
  virtual absl::Status ddp_step();

  // One round of kAllToAllCalls calls to the other ranks, in turn, each result checked. The other
  // ranks need not call it at the same time: they answer until close().
  virtual absl::Status call_others();

  // Leaves the group.
  virtual void close() {}
};

struct RankContestant {
  std::string name;
  std::function<std::unique_ptr<Rank>(int rank, int ranks)> make_rank;
};

}  // namespace weft::bench
