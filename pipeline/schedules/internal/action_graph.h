// The actions of a complete schedule, and which other actions each of them needs.
//
// | action | needs |
// |---|---|
// | F | F of each stage whose outputs it takes |
// | R | F of itself |
// | I, B | F of itself, R if there is one, and I or B of each stage that takes its outputs |
// | W | I of itself |
// | G | every W or B of its stage |
//
// Thread safety: immutable once made.
// Errors: InvalidArgument, naming the action: it is missing, there twice, or out of range. Also
// those of check_stage_graph().
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "weft/pipeline/schedules/schedule.h"
#include "weft/pipeline/schedules/stage_graph.h"

namespace weft::pipeline_internal {

// Bounds: of stages, of workers and of micro-batches, and of the actions of a schedule.
inline constexpr int kMostNumber = 1 << 20;
inline constexpr int64_t kMostActions = 1 << 22;

// InvalidArgument, naming the stage: its inputs are not ascending stages below it.
absl::Status check_stage_graph(const StageGraph& graph);

class ActionGraph {
 public:
  struct Node {
    StageAction action;
    int worker;
    std::vector<int> needs = {};  // indices of nodes
  };

  static absl::StatusOr<ActionGraph> make(const PipelineSchedule& schedule,
                                          const StageGraph& graph);

  // Row by row, each in the order of its row.
  const std::vector<Node>& nodes() const { return nodes_; }
  int workers() const { return static_cast<int>(first_.size()) - 1; }
  // The nodes of a worker are those from first(worker) up to, and without, first(worker + 1).
  int first(int worker) const { return first_[static_cast<size_t>(worker)]; }
  // The node of this action, or -1.
  int find(const StageAction& action) const;

  // Returns the nodes in an order in which they can run. FailedPrecondition: there is none, and the
  // message shows a circle of workers that wait for each other.
  absl::StatusOr<std::vector<int>> order() const;

 private:
  absl::Status add_rows(const PipelineSchedule& schedule, int stages);
  absl::Status check_complete(int stages, int micro_batches, bool trains) const;
  void add_needs(const StageGraph& graph);
  std::vector<std::vector<int>> parts_of_reductions(int stages) const;
  int backward_of(int stage, int micro_batch) const;  // I or B, or -1
  int missing_need(int node, const std::vector<bool>& done) const;
  absl::Status circle(const std::vector<int>& heads, const std::vector<bool>& done) const;

  std::vector<Node> nodes_;
  std::vector<int> first_;
  absl::flat_hash_map<uint64_t, int> index_;  // by key_of(action)
};

}  // namespace weft::pipeline_internal
