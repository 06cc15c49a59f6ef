// When calls that wait for company run together, and how their tensors are joined; what became of
// them.
//
// Thread safety: plain values.
// Protocol: docs/batching.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "weft/base/clock.h"

namespace weft {

enum class BatchJoin {
  kStack,        // along a new first dimension: n items of shape [4] become [n, 4]
  kConcatenate,  // along the first dimension: items of [2, 4] and [3, 4] become [5, 4]
};

// BatchOptions::max_wait: only full batches run, and what `flush` finds.
inline constexpr Nanoseconds kUntilFull = Nanoseconds::max();

struct BatchOptions {
  // What errors call it.
  std::string name = "batcher";
  // Calls in one batch at most.
  size_t max_size = 64;
  // How long a call waits for company while nothing runs. Zero: not at all.
  Nanoseconds max_wait = {};
  // With max_wait: as many calls as were there at the same time lately are company enough. For
  // callers that call again when they have been answered: nobody waits for calls that cannot come.
  bool adaptive = false;
  // From a call's arrival to its result: tunes the size between 1 and max_size. Unset: no goal.
  Timeout latency_goal = {};
  // Batches that run at the same time, of each worker that is called.
  size_t max_running = 1;
  // What may wait: one more call, or one with more bytes of tensors, is refused
  // (ResourceExhausted). A single call may be larger.
  size_t max_pending = 65'536;
  size_t max_pending_bytes = size_t{1} << 30;
  // Groups (docs/batching.md: shapes, contexts) that may wait at the same time.
  size_t max_groups = 256;
  // After an exception of the function the batch is divided and its halves run again, one after
  // the other, until the calls that fail alone are found. Only for functions that may run again.
  bool isolate_errors = false;
  BatchJoin join = BatchJoin::kStack;

  // InvalidArgument naming the batcher and the field.
  absl::Status validate() const;
};

// Since the batcher was made, over all workers that called it.
struct BatchStats {
  uint64_t batches = 0;     // one that was divided after an error counts once
  uint64_t calls = 0;       // in these batches
  uint64_t largest = 0;     // calls in one
  uint64_t abandoned = 0;   // calls whose callers gave up before their batch began
  uint64_t refused = 0;     // calls beyond what may wait, or without a thread
  uint64_t late = 0;        // batches whose oldest call took longer than the goal
  size_t pending = 0;       // calls that wait now, of all workers
  size_t size = 0;          // calls that a batch may have now; the largest of the workers'
  Nanoseconds usual_run{};  // of one execution, a moving average; the longest of the workers'

  double mean() const {
    return batches == 0 ? 0 : static_cast<double>(calls) / static_cast<double>(batches);
  }
  BatchStats& operator+=(const BatchStats& other);
};

}  // namespace weft
