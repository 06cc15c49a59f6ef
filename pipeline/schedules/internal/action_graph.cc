#include "weft/pipeline/schedules/internal/action_graph.h"

#include <algorithm>
#include <map>
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
  ActionGraph actions;
  WEFT_RETURN_IF_ERROR(actions.add_rows(schedule, graph.stages()));
  WEFT_RETURN_IF_ERROR(
      actions.check_complete(graph.stages(), schedule.micro_batches(), schedule.trains()));
  actions.add_needs(graph);
  return actions;
}

absl::Status ActionGraph::add_rows(const PipelineSchedule& schedule, int stages) {
  std::map<int, std::pair<int, std::string>> first_of;  // by stage: its row and first action
  for (int worker = 0; worker < static_cast<int>(schedule.workers.size()); ++worker) {
    first_.push_back(static_cast<int>(nodes_.size()));
    for (const StageAction& action : schedule.workers[static_cast<size_t>(worker)]) {
      const std::string name = action.to_string();
      if (action.stage < 0 || action.stage >= stages || action.micro_batch < 0) {
        return absl::InvalidArgumentError(absl::StrCat("row ", worker + 1, ": ", name,
                                                       " is out of range; the pipeline has ",
                                                       stages, " stages"));
      }
      const auto& [row, earlier] = first_of.try_emplace(action.stage, worker, name).first->second;
      if (row != worker) {
        return absl::InvalidArgumentError(absl::StrCat("stage ", action.stage, " is in row ",
                                                       row + 1, " (", earlier, ") and in row ",
                                                       worker + 1, " (", name, ")"));
      }
      if (!index_.emplace(key_of(action), static_cast<int>(nodes_.size())).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", worker + 1, ": ", name, " is there twice"));
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

void ActionGraph::add_needs(const StageGraph& graph) {
  const std::vector<std::vector<int>> users = graph.users();
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
        for (const Node& other : nodes_) {
          const bool last_part = other.action.work == StageWork::kWeightGradients ||
                                 other.action.work == StageWork::kBackward;
          if (last_part && other.action.stage == stage) need(find(other.action));
        }
        break;
    }
  }
}

absl::StatusOr<std::vector<int>> ActionGraph::order() const {
  std::vector<int> order;
  std::vector<int> heads(first_.begin(), first_.end() - 1);
  std::vector<bool> done(nodes_.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (int worker = 0; worker < workers(); ++worker) {
      for (int& head = heads[static_cast<size_t>(worker)]; head < first(worker + 1); ++head) {
        const Node& node = nodes_[static_cast<size_t>(head)];
        const bool ready = std::all_of(node.needs.begin(), node.needs.end(),
                                       [&](int need) { return done[static_cast<size_t>(need)]; });
        if (!ready) break;
        done[static_cast<size_t>(head)] = true;
        order.push_back(head);
        progress = true;
      }
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
    const Node& head = nodes_[static_cast<size_t>(heads[static_cast<size_t>(worker)])];
    const int need = *std::find_if(head.needs.begin(), head.needs.end(),
                                   [&](int each) { return !done[static_cast<size_t>(each)]; });
    const Node& wanted = nodes_[static_cast<size_t>(need)];
    waits.push_back(absl::StrCat("row ", worker + 1, " waits at ", head.action.to_string(), " for ",
                                 wanted.action.to_string()));
    worker = wanted.worker;
  }
  const auto begin = std::find(walk.begin(), walk.end(), worker) - walk.begin();
  waits.erase(waits.begin(), waits.begin() + begin);
  return absl::FailedPreconditionError(
      absl::StrCat("the schedule cannot run: ", absl::StrJoin(waits, ", ")));
}

}  // namespace weft::pipeline_internal
