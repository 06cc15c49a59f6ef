// A pipeline schedule: for each worker, the order in which it works on stages and micro-batches.
//
// A schedule is plain data. `schedules.h` makes the well-known ones. `price.h` checks
// that one can run, and says what it costs. A schedule holds no sends and no receives: a worker
// takes an input when the action that needs it comes.
//
// As text, a schedule has one CSV row per worker, and one cell per action: `0F3` is the forward of
// micro-batch 3 in stage 0. This is the format of torch.distributed.pipelining's compute-only
// files, so those can be loaded.
//
// Thread safety: plain values.
// Errors: InvalidArgument, naming the row (from 1) and the cell.
#pragma once

#include <compare>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

enum class StageWork : char {
  kForward = 'F',
  kRecompute = 'R',        // the forward once more, because its results were not kept
  kInputGradients = 'I',   // the first half of the backward: what earlier stages wait for
  kWeightGradients = 'W',  // the second half
  kBackward = 'B',         // both halves
  kReduce = 'G',           // sums the stage's gradients over replicas and tied copies
};

struct StageAction {
  int stage = 0;
  StageWork work = StageWork::kForward;
  int micro_batch = 0;  // 0 for kReduce, which is for the whole step

  std::string to_string() const;  // "0F3", "0G"
  friend auto operator<=>(const StageAction&, const StageAction&) = default;
};

struct PipelineSchedule {
  std::vector<std::vector<StageAction>> workers;

  // One more than the highest stage, and the highest micro-batch, of any action.
  int stages() const;
  int micro_batches() const;
  // Whether there is any action but forwards. A schedule for evaluation has only those.
  bool trains() const;

  // The same schedule without all other actions, for evaluation.
  PipelineSchedule forwards() const;

  // The same schedule, in which these stages do each forward once more (R), right before its
  // backward. So they keep only its inputs until then. A stage that has an R stays as it is.
  PipelineSchedule recomputing(const std::set<int>& stages) const;

  std::string to_csv() const;
  // Ignores empty cells, and spaces around cells. Also reads torch's cells with two actions that
  // overlap, "(0F1;3B0)OVERLAP_F_B", as these actions in order.
  static absl::StatusOr<PipelineSchedule> from_csv(std::string_view text);

  friend bool operator==(const PipelineSchedule&, const PipelineSchedule&) = default;
};

}  // namespace weft
