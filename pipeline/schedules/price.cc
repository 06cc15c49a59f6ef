#include "weft/pipeline/schedules/price.h"

#include <algorithm>

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

// How the memory of a worker changes at this action.
int64_t growth(const StageAction& action, bool recomputed, const StageCosts& costs) {
  switch (action.work) {
    case StageWork::kForward:
      return recomputed ? costs.input_bytes : costs.kept_bytes;
    case StageWork::kRecompute:
      return costs.kept_bytes - costs.input_bytes;
    case StageWork::kInputGradients:
      return costs.kept_for_weights - costs.kept_bytes;
    case StageWork::kWeightGradients:
      return -costs.kept_for_weights;
    case StageWork::kBackward:
      return -costs.kept_bytes;
    case StageWork::kReduce:
      return 0;
  }
  return 0;
}

// The bytes that travel from `from` to `to`, which needs it: an output, or the gradient of one.
int64_t sent_bytes(const StageAction& from, const StageAction& to, const PipelineCosts& costs) {
  if (from.stage == to.stage) return 0;
  const int producer = from.work == StageWork::kForward ? from.stage : to.stage;
  return costs.stages[static_cast<size_t>(producer)].output_bytes;
}

void add_memory(const ActionGraph& actions, const PipelineCosts& costs, SchedulePrice& price) {
  for (int worker = 0; worker < actions.workers(); ++worker) {
    int64_t now = 0;
    int64_t& peak = price.workers[static_cast<size_t>(worker)].peak_bytes;
    for (int i = actions.first(worker); i < actions.first(worker + 1); ++i) {
      const StageAction& action = actions.nodes()[static_cast<size_t>(i)].action;
      const bool recomputed =
          actions.find({action.stage, StageWork::kRecompute, action.micro_batch}) >= 0;
      now += growth(action, recomputed, costs.stages[static_cast<size_t>(action.stage)]);
      peak = std::max(peak, now);
    }
  }
}

}  // namespace

absl::Status check_schedule(const PipelineSchedule& schedule, const StageGraph& graph) {
  WEFT_ASSIGN_OR_RETURN(const ActionGraph actions, ActionGraph::make(schedule, graph));
  return actions.order().status();
}

double SchedulePrice::idle_share() const {
  double busy = 0;
  for (const Worker& worker : workers) busy += worker.busy;
  const double all = step * static_cast<double>(workers.size());
  return all > 0 ? 1 - busy / all : 0;
}

absl::StatusOr<SchedulePrice> price_schedule(const PipelineSchedule& schedule,
                                             const StageGraph& graph, const PipelineCosts& costs) {
  if (static_cast<int>(costs.stages.size()) != graph.stages()) {
    return absl::InvalidArgumentError(absl::StrCat("the costs are of ", costs.stages.size(),
                                                   " stages, and the pipeline has ",
                                                   graph.stages()));
  }
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
  add_memory(actions, costs, price);
  return price;
}

}  // namespace weft
