#include "weft/pipeline/schedules/price.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/internal/action_graph.h"

namespace weft {
namespace {

using pipeline_internal::ActionGraph;

double time_of(const StageAction& action, const StageCosts& costs) {
  switch (action.work) {
    case StageWork::kForward:
    case StageWork::kRecompute:
      return costs.forward;
    case StageWork::kInputGradients:
      return costs.input_gradients;
    case StageWork::kWeightGradients:
      return costs.weight_gradients;
    case StageWork::kBackward:
      return costs.input_gradients + costs.weight_gradients;
    case StageWork::kReduce:
      return 0;
  }
  return 0;
}

// Follows the memory of one worker through its actions.
class Memory {
 public:
  // `keeps`: a backward follows, so a forward keeps its results.
  Memory(const ActionGraph& actions, const PipelineCosts& costs, bool keeps)
      : actions_(actions), costs_(costs), keeps_(keeps) {}

  void perform(const StageAction& action) {
    const StageCosts& costs = costs_.stages[static_cast<size_t>(action.stage)];
    switch (action.work) {
      case StageWork::kForward:
        if (!keeps_) {
          note(costs.kept_bytes);
        } else if (recomputed(action)) {
          now_ += costs.input_bytes;
          note(costs.kept_bytes);
        } else {
          now_ += costs.kept_bytes;
        }
        break;
      case StageWork::kRecompute:
        note(costs.kept_bytes);
        now_ += costs.kept_bytes - costs.input_bytes;
        break;
      case StageWork::kInputGradients:
        now_ += costs.kept_for_weights - costs.kept_bytes;
        break;
      case StageWork::kWeightGradients:
        note(costs.gradient_bytes);
        now_ -= costs.kept_for_weights;
        sum(action, costs);
        break;
      case StageWork::kBackward:
        note(costs.gradient_bytes);
        now_ -= costs.kept_bytes;
        sum(action, costs);
        break;
      case StageWork::kReduce:
        break;
    }
    note(0);
  }
  int64_t peak() const { return peak_; }

 private:
  // The gradients of a stage's weights: those of all micro-batches below `summed` are one sum.
  struct Gradients {
    int summed = 0;
    std::set<int> waiting;  // micro-batches
  };

  bool recomputed(const StageAction& action) const {
    return actions_.find({action.stage, StageWork::kRecompute, action.micro_batch}) >= 0;
  }
  void note(int64_t more) { peak_ = std::max(peak_, now_ + more); }
  void sum(const StageAction& action, const StageCosts& costs) {
    Gradients& gradients = gradients_[action.stage];
    gradients.waiting.insert(action.micro_batch);
    now_ += costs.gradient_bytes;
    note(0);
    while (gradients.waiting.erase(gradients.summed) > 0) {
      if (gradients.summed++ > 0) now_ -= costs.gradient_bytes;
    }
  }

  const ActionGraph& actions_;
  const PipelineCosts& costs_;
  const bool keeps_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
  std::map<int, Gradients> gradients_;  // by stage
};

// The bytes that travel from `from` to `to`, which needs it: an output, or the gradient of one.
int64_t sent_bytes(const StageAction& from, const StageAction& to, const PipelineCosts& costs) {
  if (from.stage == to.stage) return 0;
  const int producer = from.work == StageWork::kForward ? from.stage : to.stage;
  return costs.stages[static_cast<size_t>(producer)].output_bytes;
}

void add_memory(const ActionGraph& actions, const PipelineCosts& costs, bool trains,
                SchedulePrice& price) {
  for (int worker = 0; worker < actions.workers(); ++worker) {
    Memory memory(actions, costs, trains);
    for (int i = actions.first(worker); i < actions.first(worker + 1); ++i) {
      memory.perform(actions.nodes()[static_cast<size_t>(i)].action);
    }
    price.workers[static_cast<size_t>(worker)].peak_bytes = memory.peak();
  }
}

}  // namespace

absl::Status check_schedule(const PipelineSchedule& schedule, const StageGraph& graph) {
  WEFT_ASSIGN_OR_RETURN(const ActionGraph actions, ActionGraph::make(schedule, graph));
  return actions.order().status();
}

absl::Status check_costs(const PipelineCosts& costs, int stages) {
  if (static_cast<int>(costs.stages.size()) != stages) {
    return absl::InvalidArgumentError(absl::StrCat("the costs are of ", costs.stages.size(),
                                                   " stages, and the pipeline has ", stages));
  }
  const auto time = [](double seconds) { return seconds >= 0 && std::isfinite(seconds); };
  const auto bytes = [](int64_t count) { return count >= 0 && count <= int64_t{1} << 40; };
  for (int stage = 0; stage < stages; ++stage) {
    const StageCosts& each = costs.stages[static_cast<size_t>(stage)];
    if (!time(each.forward) || !time(each.input_gradients) || !time(each.weight_gradients)) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", stage, ": a time is negative or no number"));
    }
    for (const int64_t count : {each.output_bytes, each.input_bytes, each.kept_bytes,
                                each.kept_for_weights, each.gradient_bytes}) {
      if (!bytes(count)) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", stage, ": ", count, " bytes are not from 0 to 2^40"));
      }
    }
  }
  if (!time(costs.latency) || !(costs.bytes_per_second > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a latency of ", costs.latency,
                                                   " seconds or a rate of ", costs.bytes_per_second,
                                                   " bytes per second is impossible"));
  }
  return absl::OkStatus();
}

double SchedulePrice::idle_share() const {
  double busy = 0;
  for (const Worker& worker : workers) busy += worker.busy;
  const double all = step * static_cast<double>(workers.size());
  return all > 0 ? 1 - busy / all : 0;
}

absl::StatusOr<SchedulePrice> price_schedule(const PipelineSchedule& schedule,
                                             const StageGraph& graph, const PipelineCosts& costs) {
  WEFT_RETURN_IF_ERROR(check_costs(costs, graph.stages()));
  WEFT_ASSIGN_OR_RETURN(const ActionGraph actions, ActionGraph::make(schedule, graph));
  WEFT_ASSIGN_OR_RETURN(const std::vector<int> order, actions.order());
  SchedulePrice price;
  price.workers.resize(static_cast<size_t>(actions.workers()));
  std::vector<double> ends(actions.nodes().size());
  for (const int index : order) {  // a worker's actions come in the order of its row
    const ActionGraph::Node& node = actions.nodes()[static_cast<size_t>(index)];
    SchedulePrice::Worker& worker = price.workers[static_cast<size_t>(node.worker)];
    double begin = worker.spans.empty() ? 0 : worker.spans.back().end;
    for (const int need : node.needs) {
      const ActionGraph::Node& from = actions.nodes()[static_cast<size_t>(need)];
      double there = ends[static_cast<size_t>(need)];
      if (from.worker != node.worker) {
        const int64_t bytes = sent_bytes(from.action, node.action, costs);
        SchedulePrice::Worker& sender = price.workers[static_cast<size_t>(from.worker)];
        sender.bytes_sent += bytes;
        ++sender.messages_sent;
        there += costs.latency + static_cast<double>(bytes) / costs.bytes_per_second;
      }
      begin = std::max(begin, there);
    }
    const double took = time_of(node.action, costs.stages[static_cast<size_t>(node.action.stage)]);
    ends[static_cast<size_t>(index)] = begin + took;
    worker.spans.push_back({begin, begin + took});
    worker.busy += took;
    price.step = std::max(price.step, begin + took);
  }
  add_memory(actions, costs, schedule.trains(), price);
  return price;
}

}  // namespace weft
