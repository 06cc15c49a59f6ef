#include "weft/pipeline/schedules/internal/action_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status.h"

namespace weft::pipeline_internal {
namespace {

uint64_t key_of(const StageAction& action) {
  return (static_cast<uint64_t>(action.work) << 56) ^ (static_cast<uint64_t>(action.stage) << 28) ^
         static_cast<uint64_t>(action.micro_batch);
}

absl::Status missing(int stage, StageWork work, int micro_batch) {
  return absl::InvalidArgumentError(
      absl::StrCat(StageAction{stage, work, micro_batch}.to_string(), " is missing"));
}

}  // namespace

absl::Status check_stage_graph(const StageGraph& graph) {
  for (int stage = 0; stage < graph.stages(); ++stage) {
    int earlier = -1;
    for (const int input : graph.inputs[static_cast<size_t>(stage)]) {
      if (input <= earlier || input >= stage) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", stage, " takes the outputs of stage ", input,
                         "; its inputs must be ascending stages below it"));
      }
      earlier = input;
    }
  }
  return absl::OkStatus();
}

int ActionGraph::find(const StageAction& action) const {
  const auto found = index_.find(key_of(action));
  return found == index_.end() ? -1 : found->second;
}

int ActionGraph::backward_of(int stage, int micro_batch) const {
  const int halves = find({stage, StageWork::kInputGradients, micro_batch});
  return halves >= 0 ? halves : find({stage, StageWork::kBackward, micro_batch});
}

absl::StatusOr<ActionGraph> ActionGraph::make(const PipelineSchedule& schedule,
                                              const StageGraph& graph) {
  WEFT_RETURN_IF_ERROR(check_stage_graph(graph));
  ActionGraph actions;
  WEFT_RETURN_IF_ERROR(actions.add_rows(schedule, graph.stages()));
  WEFT_RETURN_IF_ERROR(
      actions.check_complete(graph.stages(), schedule.micro_batches(), schedule.trains()));
  actions.add_needs(graph);
  return actions;
}

absl::Status ActionGraph::add_rows(const PipelineSchedule& schedule, int stages) {
  std::map<int, std::pair<int, StageAction>> first_of;  // by stage: its row and first action
  int64_t count = 0;
  for (const auto& row : schedule.workers) count += static_cast<int64_t>(row.size());
  if (count > kMostActions) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule has at most ", kMostActions, " actions, not ", count));
  }
  for (int worker = 0; worker < static_cast<int>(schedule.workers.size()); ++worker) {
    first_.push_back(static_cast<int>(nodes_.size()));
    for (const StageAction& action : schedule.workers[static_cast<size_t>(worker)]) {
      if (action.stage < 0 || action.stage >= stages || action.micro_batch < 0 ||
          action.micro_batch >= kMostNumber) {
        return absl::InvalidArgumentError(absl::StrCat("row ", worker + 1, ": ", action.to_string(),
                                                       " is out of range; the pipeline has ",
                                                       stages, " stages"));
      }
      if (action.work == StageWork::kReduce && action.micro_batch != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", worker + 1, ": ", action.to_string(),
                         " is for the whole step, not for micro-batch ", action.micro_batch));
      }
      const auto& [row, earlier] = first_of.try_emplace(action.stage, worker, action).first->second;
      if (row != worker) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", action.stage, " is in row ", row + 1, " (", earlier.to_string(),
                         ") and in row ", worker + 1, " (", action.to_string(), ")"));
      }
      if (!index_.emplace(key_of(action), static_cast<int>(nodes_.size())).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", worker + 1, ": ", action.to_string(), " is there twice"));
      }
      nodes_.push_back({action, worker});
    }
  }
  first_.push_back(static_cast<int>(nodes_.size()));
  return absl::OkStatus();
}

absl::Status ActionGraph::check_complete(int stages, int micro_batches, bool trains) const {
  for (int stage = 0; stage < stages; ++stage) {
    if (micro_batches == 0) return missing(stage, StageWork::kForward, 0);
    for (int batch = 0; batch < micro_batches; ++batch) {
      const auto has = [&](StageWork work) { return find({stage, work, batch}) >= 0; };
      if (!has(StageWork::kForward)) return missing(stage, StageWork::kForward, batch);
      if (!trains) continue;
      const bool whole = has(StageWork::kBackward);
      for (const StageWork half : {StageWork::kInputGradients, StageWork::kWeightGradients}) {
        if (whole && has(half)) {
          return absl::InvalidArgumentError(absl::StrCat(
              StageAction{stage, half, batch}.to_string(), " is a half of ",
              StageAction{stage, StageWork::kBackward, batch}.to_string(), ", which is there too"));
        }
      }
      if (whole) continue;
      if (!has(StageWork::kInputGradients) && !has(StageWork::kWeightGradients)) {
        return missing(stage, StageWork::kBackward, batch);
      }
      for (const StageWork half : {StageWork::kInputGradients, StageWork::kWeightGradients}) {
        if (!has(half)) return missing(stage, half, batch);
      }
    }
  }
  return absl::OkStatus();
}

// For each stage, its W's and B's.
std::vector<std::vector<int>> ActionGraph::parts_of_reductions(int stages) const {
  std::vector<std::vector<int>> parts(static_cast<size_t>(stages));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const StageAction& action = nodes_[i].action;
    if (action.work == StageWork::kWeightGradients || action.work == StageWork::kBackward) {
      parts[static_cast<size_t>(action.stage)].push_back(static_cast<int>(i));
    }
  }
  return parts;
}

void ActionGraph::add_needs(const StageGraph& graph) {
  const std::vector<std::vector<int>> users = graph.users();
  const std::vector<std::vector<int>> parts = parts_of_reductions(graph.stages());
  for (Node& node : nodes_) {
    const auto [stage, work, batch] = node.action;
    const auto need = [&](int index) {
      if (index >= 0) node.needs.push_back(index);
    };
    switch (work) {
      case StageWork::kForward:
        for (const int input : graph.inputs[static_cast<size_t>(stage)]) {
          need(find({input, StageWork::kForward, batch}));
        }
        break;
      case StageWork::kRecompute:
        need(find({stage, StageWork::kForward, batch}));
        break;
      case StageWork::kInputGradients:
      case StageWork::kBackward:
        need(find({stage, StageWork::kForward, batch}));
        need(find({stage, StageWork::kRecompute, batch}));
        for (const int user : users[static_cast<size_t>(stage)]) need(backward_of(user, batch));
        break;
      case StageWork::kWeightGradients:
        need(find({stage, StageWork::kInputGradients, batch}));
        break;
      case StageWork::kReduce:
        node.needs = parts[static_cast<size_t>(stage)];
        break;
    }
  }
}

// A need of this node that is not done, or -1.
int ActionGraph::missing_need(int node, const std::vector<bool>& done) const {
  const std::vector<int>& needs = nodes_[static_cast<size_t>(node)].needs;
  const auto missing = std::find_if(needs.begin(), needs.end(),
                                    [&](int each) { return !done[static_cast<size_t>(each)]; });
  return missing == needs.end() ? -1 : *missing;
}

// A worker goes on until an action needs one that is not done. When that one is done, it is looked
// at again.
absl::StatusOr<std::vector<int>> ActionGraph::order() const {
  std::vector<int> order;
  std::vector<int> heads(first_.begin(), first_.end() - 1);
  std::vector<bool> done(nodes_.size());
  absl::flat_hash_map<int, std::vector<int>> waiting;  // workers, by the node for which they wait
  std::vector<int> runnable(heads.size());
  std::iota(runnable.rbegin(), runnable.rend(), 0);
  while (!runnable.empty()) {
    const int worker = runnable.back();
    runnable.pop_back();
    for (int& head = heads[static_cast<size_t>(worker)]; head < first(worker + 1); ++head) {
      if (const int need = missing_need(head, done); need >= 0) {
        waiting[need].push_back(worker);
        break;
      }
      done[static_cast<size_t>(head)] = true;
      order.push_back(head);
      const auto woken = waiting.find(head);
      if (woken == waiting.end()) continue;
      runnable.insert(runnable.end(), woken->second.begin(), woken->second.end());
      waiting.erase(woken);
    }
  }
  if (order.size() < nodes_.size()) return circle(heads, done);
  return order;
}

// Each worker that is stuck waits for an action of a worker that is stuck, too. So a walk from one
// to the next comes back to a worker.
absl::Status ActionGraph::circle(const std::vector<int>& heads,
                                 const std::vector<bool>& done) const {
  int worker = 0;
  while (heads[static_cast<size_t>(worker)] == first(worker + 1)) ++worker;
  std::vector<int> walk;
  std::vector<std::string> waits;
  while (std::find(walk.begin(), walk.end(), worker) == walk.end()) {
    walk.push_back(worker);
    const int head = heads[static_cast<size_t>(worker)];
    const Node& wanted = nodes_[static_cast<size_t>(missing_need(head, done))];
    waits.push_back(absl::StrCat("row ", worker + 1, " waits at ",
                                 nodes_[static_cast<size_t>(head)].action.to_string(), " for ",
                                 wanted.action.to_string()));
    worker = wanted.worker;
  }
  const auto begin = std::find(walk.begin(), walk.end(), worker) - walk.begin();
  waits.erase(waits.begin(), waits.begin() + begin);
  return absl::FailedPreconditionError(
      absl::StrCat("the schedule cannot run: ", absl::StrJoin(waits, ", ")));
}

}  // namespace weft::pipeline_internal
