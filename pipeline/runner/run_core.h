// Decides what one worker of a pipeline does next in a step, and which message each action needs.
//
// The worker does the actions of its row in order. If the next one waits for a message, a weight
// gradient of a later place in the row may go first. Nobody else waits for it, it frees memory, and
// it changes no sum (stage_run.h).
//
// A message carries what one action computes for another stage on another worker: the outputs of an
// F, or the gradients of an I or B. Messages may come in any order, also before the step needs
// them.
//
// Thread safety: none.
// Errors: InvalidArgument, naming the message: this step has no such message, or it came before.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/schedule.h"
#include "weft/pipeline/schedules/stage_graph.h"

namespace weft::pipeline_internal {

// Names what an action computes for another stage.
struct StageMessage {
  StageAction from;
  int to_stage = 0;

  std::string to_string() const;  // "0F3 for stage 1"
  friend bool operator==(const StageMessage&, const StageMessage&) = default;
  template <class H>
  friend H AbslHashValue(H h, const StageMessage& m) {
    return H::combine(std::move(h), m.from.stage, m.from.work, m.from.micro_batch, m.to_stage);
  }
};

// What one worker has to know about a schedule. Immutable, so all steps share it.
struct RunPlan {
  struct Action {
    StageAction action;
    std::vector<StageMessage> takes = {};  // what it needs of other stages, by ascending stage
    std::vector<StageMessage> makes = {};  // what other stages need of it, by ascending stage
  };
  std::vector<Action> actions;  // in the order of the row
  // The messages that come from other workers, and the place of the action that takes each.
  absl::flat_hash_map<StageMessage, size_t> from_others;
  std::vector<int> row_of;  // by stage
  int micro_batches = 0;

  // Errors: those of check_schedule(); InvalidArgument: there is no such worker.
  static absl::StatusOr<std::shared_ptr<const RunPlan>> make(const PipelineSchedule& schedule,
                                                             const StageGraph& graph, int worker);
};

class RunCore {
 public:
  explicit RunCore(std::shared_ptr<const RunPlan> plan);

  absl::Status arrived(const StageMessage& message);
  // Takes the action that can run now. Nothing: the worker has to wait, or has finished.
  const RunPlan::Action* next();
  bool finished() const { return done_count_ == plan_->actions.size(); }
  // The message for which the row waits, for error texts. Nothing: it waits for none.
  std::optional<StageMessage> waits_for() const;

 private:
  struct Progress {
    size_t missing = 0;  // messages
    bool done = false;
  };

  std::shared_ptr<const RunPlan> plan_;  // shared by all steps
  std::vector<Progress> progress_;       // of each action
  absl::flat_hash_map<StageMessage, bool> came_;
  std::vector<size_t> weights_;    // the places of the W's
  std::vector<size_t> inputs_of_;  // of each of them, the place of its I
  size_t head_ = 0;                // the first action that is not done
  size_t next_weights_ = 0;        // the first W that is not done, in `weights_`
  size_t done_count_ = 0;
};

}  // namespace weft::pipeline_internal
