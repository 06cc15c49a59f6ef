// The options of a Batcher (when calls run together, and how their tensors are joined) and its
// statistics.
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

// For BatchOptions::max_wait: only full batches run, and the calls that wait when `flush` is
// called.
inline constexpr Nanoseconds kUntilFull = Nanoseconds::max();

struct BatchOptions {
  // The batcher's name in errors.
  std::string name = "batcher";
  // The most calls in one batch.
  size_t max_size = 64;
  // How long a call waits for other calls to join while a batch could begin. Zero: not at all.
  Nanoseconds max_wait = {};
  // Needs max_wait. A batch also begins when as many calls wait as were present at the same time
  // (waiting or running) lately. For callers that call again after each answer: otherwise their
  // calls wait for calls that cannot come.
  bool adaptive = false;
  // The time from a call's arrival to its result. It tunes the size between 1 and max_size, and
  // cuts max_wait. Unset: no goal.
  Timeout latency_goal = {};
  // How many batches run at the same time, for each worker that is called.
  size_t max_running = 1;
  // How many calls, and how many bytes of their arguments, may wait. Further calls are refused
  // (ResourceExhausted). A larger call may wait if it is the only one.
  size_t max_pending = 65'536;
  size_t max_pending_bytes = size_t{1} << 30;
  // How many groups of calls may wait at the same time. docs/batching.md defines groups.
  size_t max_groups = 256;
  // If the function fails with Unknown, InvalidArgument or Internal, the batch is divided. Its
  // halves run again, one after the other, until the calls that fail alone are found. Only for
  // functions that may run again.
  bool isolate_errors = false;
  BatchJoin join = BatchJoin::kStack;

  // InvalidArgument, which names the batcher and the field.
  absl::Status validate() const;
};

// Counts since the batcher was made, over all workers of this process on which it was called.
struct BatchStats {
  uint64_t batches = 0;     // a batch that was divided after an error counts once
  uint64_t calls = 0;       // calls in these batches
  uint64_t largest = 0;     // calls in the largest batch
  uint64_t abandoned = 0;   // calls whose callers gave up before their batch began
  uint64_t refused = 0;     // calls that were refused: too many wait, or no thread is left
  uint64_t late = 0;        // batches whose oldest call took longer than the goal
  size_t pending = 0;       // calls that wait now, on all workers
  size_t size = 0;          // calls that a batch may have now; the largest number of all workers
  Nanoseconds usual_run{};  // time of one execution, a moving average; the longest of all workers

  double mean() const {
    return batches == 0 ? 0 : static_cast<double>(calls) / static_cast<double>(batches);
  }
  BatchStats& operator+=(const BatchStats& other);
};

}  // namespace weft
