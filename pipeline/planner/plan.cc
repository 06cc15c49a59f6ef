#include "weft/pipeline/planner/plan.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/search.h"
#include "weft/pipeline/schedules/stage_graph.h"

namespace weft {
namespace {

using Cuts = std::vector<int64_t>;

// If there are at most so many ways to cut, all are tried.
constexpr double kFewWays = 100;

absl::Status check_problem(const PlanProblem& problem) {
  const auto bad = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (problem.divisions.empty()) return bad("a plan needs a number of micro-batches to try");
  const size_t workers = problem.divisions.front().layers.size();
  if (workers == 0) return bad("a plan needs a worker");
  const size_t layers = problem.divisions.front().layers.front().size();
  if (layers < workers) return bad(workers, " workers cannot share ", layers, " layers");
  for (const PlanDivision& division : problem.divisions) {
    if (division.layers.size() != workers) {
      return bad("there are costs of ", division.layers.size(), " workers for ",
                 division.micro_batches, " micro-batches, and of ", workers,
                 " for the first number of micro-batches");
    }
    for (size_t worker = 0; worker < workers; ++worker) {
      if (division.layers[worker].size() == layers) continue;
      return bad("worker ", worker, " has costs of ", division.layers[worker].size(),
                 " layers, of ", layers);
    }
  }
  return absl::OkStatus();
}

// Ways to place stages on p workers.
std::vector<std::vector<int>> placements(int workers, int64_t layers) {
  std::vector<int> one_each, looped, v;
  for (int stage = 0; stage < workers; ++stage) one_each.push_back(stage);
  if (workers == 1 || layers < 2 * int64_t{workers}) return {one_each};
  for (int stage = 0; stage < 2 * workers; ++stage) {
    looped.push_back(stage % workers);
    v.push_back(stage < workers ? stage : 2 * workers - 1 - stage);
  }
  return {one_each, looped, v};
}

// Whether there are few ways to cut `layers` into `stages`.
bool few_ways(int64_t layers, int64_t stages) {
  double ways = 1;
  for (int64_t i = 1; i < stages; ++i) {
    ways *= static_cast<double>(layers - i) / static_cast<double>(i);
  }
  return ways <= kFewWays;
}

// What one micro-batch costs in a stage of these layers, first to last - 1.
StageCosts costs_of_stage(const std::vector<StageCosts>& layers, int64_t first, int64_t last) {
  StageCosts stage;
  stage.forward = stage.input_gradients = stage.weight_gradients = 0;
  for (int64_t i = first; i < last; ++i) {
    const StageCosts& layer = layers[static_cast<size_t>(i)];
    stage.forward += layer.forward;
    stage.input_gradients += layer.input_gradients;
    stage.weight_gradients += layer.weight_gradients;
    stage.kept_bytes += layer.kept_bytes;
    stage.kept_for_weights += layer.kept_for_weights;
    stage.gradient_bytes += layer.gradient_bytes;
  }
  stage.input_bytes = layers[static_cast<size_t>(first)].input_bytes;
  stage.output_bytes = layers[static_cast<size_t>(last - 1)].output_bytes;
  stage.kept_bytes += stage.input_bytes;  // the first layer keeps what it got
  return stage;
}

// The plans of one number of micro-batches and one placement.
class CutSearch {
 public:
  CutSearch(const PlanProblem& problem, const PlanDivision& division, std::vector<int> worker_of)
      : division_(division) {
    schedules_.graph = StageGraph::chain(static_cast<int>(worker_of.size()));
    schedules_.worker_of = std::move(worker_of);
    schedules_.micro_batches = division.micro_batches;
    schedules_.costs.latency = problem.latency;
    schedules_.costs.bytes_per_second = problem.bytes_per_second;
    schedules_.memory = problem.memory;
    schedules_.recompute = problem.recompute;
    schedules_.most_swaps = 0;  // until the cuts are found
  }

  absl::StatusOr<PipelinePlan> run() {
    const Cuts fast = balanced([](const StageCosts& costs, int64_t) {
      return costs.forward + costs.input_gradients + costs.weight_gradients;
    });
    if (few_ways(layers(), stages())) {
      consider(fast);  // first, so that an error is about these
      try_all({0});
    } else {
      climb_from(fast);
      if (!best_) climb_from(small());  // nothing fits into memory near the fastest cuts
    }
    if (!best_) return failure_;
    schedules_.most_swaps = ScheduleProblem().most_swaps;
    schedules_.costs.stages = costs_of_stages(division_, best_->cuts, schedules_.worker_of);
    WEFT_ASSIGN_OR_RETURN(FoundSchedule found, search_schedule(schedules_));
    return PipelinePlan{best_->cuts, schedules_.worker_of, std::move(found.schedule),
                        std::move(found.price), std::move(found.name)};
  }

 private:
  struct Best {
    Cuts cuts;
    double step = 0;
  };

  int64_t layers() const { return static_cast<int64_t>(division_.layers.front().size()); }
  int64_t stages() const { return static_cast<int64_t>(schedules_.worker_of.size()); }

  const std::vector<StageCosts>& layers_of(int64_t stage) const {
    const int worker = schedules_.worker_of[static_cast<size_t>(stage)];
    return division_.layers[static_cast<size_t>(worker)];
  }

  // Prices the best schedule for these cuts. Returns whether they are the best so far.
  bool consider(const Cuts& cuts) {
    if (!tried_.insert(cuts).second) return false;
    schedules_.costs.stages = costs_of_stages(division_, cuts, schedules_.worker_of);
    const absl::StatusOr<FoundSchedule> found = search_schedule(schedules_);
    if (!found.ok()) {
      if (failure_.ok()) failure_ = found.status();
      return false;
    }
    if (best_ && found->price.step >= best_->step) return false;
    best_ = Best{cuts, found->price.step};
    return true;
  }

  // The cuts whose stages use an equal part of their workers' memory.
  Cuts small() const {
    return balanced([&](const StageCosts& costs, int64_t stage) {
      const auto worker = static_cast<size_t>(schedules_.worker_of[static_cast<size_t>(stage)]);
      // A gradient is there twice while it is added to the sum.
      const auto bytes = static_cast<double>(costs.kept_bytes + 2 * costs.gradient_bytes);
      const bool limited = worker < schedules_.memory.size();
      return limited ? bytes / std::max(1.0, static_cast<double>(schedules_.memory[worker]))
                     : bytes;
    });
  }

  // Tries all ways to go on after these first cuts.
  void try_all(const Cuts& begun) {
    const auto left = stages() - static_cast<int64_t>(begun.size());  // stages after the last cut
    if (left == 0) {
      Cuts cuts = begun;
      cuts.push_back(layers());
      consider(cuts);
      return;
    }
    for (int64_t next = begun.back() + 1; next + left <= layers(); ++next) {
      Cuts longer = begun;
      longer.push_back(next);
      try_all(longer);
    }
  }

  // Moves one cut, or two neighbours, by one layer at a time, as long as the step becomes shorter.
  void climb_from(Cuts cuts) {
    consider(cuts);
    for (bool better = true; better;) {
      better = false;
      for (size_t i = 1; i + 1 < cuts.size(); ++i) {
        for (const int64_t by : {-1, 0, 1}) {
          for (const int64_t next_by : {-1, 0, 1}) {
            Cuts moved = cuts;
            moved[i] += by;
            if (i + 2 < cuts.size()) moved[i + 1] += next_by;
            const bool ascending = std::adjacent_find(moved.begin(), moved.end(),
                                                      std::greater_equal<>()) == moved.end();
            better = (ascending && consider(moved)) || better;
          }
        }
      }
      if (better) cuts = best_->cuts;
    }
  }

  // The cuts for which the largest stage is smallest. `size` says how large a layer is in a stage.
  // Dynamic programming: O(stages * layers^2).
  template <class Size>
  Cuts balanced(const Size& size) const {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    const auto n = static_cast<size_t>(layers()), s = static_cast<size_t>(stages());
    // For the first `stage` stages, which have the layers below `end`: the size of the largest one,
    // and where the last one of them begins.
    std::vector<std::vector<double>> largest(s + 1, std::vector<double>(n + 1, kNone));
    std::vector<std::vector<size_t>> begin(s + 1, std::vector<size_t>(n + 1, 0));
    largest[0][0] = 0;
    for (size_t stage = 1; stage <= s; ++stage) {
      const std::vector<StageCosts>& costs = layers_of(static_cast<int64_t>(stage) - 1);
      for (size_t end = stage; end <= n; ++end) {
        double last = 0;
        for (size_t first = end; first-- > stage - 1;) {
          last += size(costs[first], static_cast<int64_t>(stage) - 1);
          const double worst = std::max(largest[stage - 1][first], last);
          if (worst >= largest[stage][end]) continue;
          largest[stage][end] = worst;
          begin[stage][end] = first;
        }
      }
    }
    Cuts cuts(s + 1, layers());
    for (size_t stage = s; stage > 0; --stage) {
      cuts[stage - 1] = static_cast<int64_t>(begin[stage][static_cast<size_t>(cuts[stage])]);
    }
    return cuts;
  }

  const PlanDivision& division_;
  ScheduleProblem schedules_;
  std::set<Cuts> tried_;
  std::optional<Best> best_;
  absl::Status failure_;  // the first one
};

}  // namespace

std::vector<StageCosts> costs_of_stages(const PlanDivision& division,
                                        const std::vector<int64_t>& cuts,
                                        const std::vector<int>& worker_of) {
  std::vector<StageCosts> stages;
  for (size_t s = 0; s < worker_of.size(); ++s) {
    const auto& layers = division.layers[static_cast<size_t>(worker_of[s])];
    stages.push_back(costs_of_stage(layers, cuts[s], cuts[s + 1]));
  }
  return stages;
}

absl::StatusOr<PipelinePlan> plan_pipeline(const PlanProblem& problem) {
  WEFT_RETURN_IF_ERROR(check_problem(problem));
  const auto& workers = problem.divisions.front().layers;
  std::optional<PipelinePlan> best;
  absl::Status failure;
  for (const PlanDivision& division : problem.divisions) {
    for (const std::vector<int>& worker_of : placements(
             static_cast<int>(workers.size()), static_cast<int64_t>(workers.front().size()))) {
      absl::StatusOr<PipelinePlan> plan = CutSearch(problem, division, worker_of).run();
      if (!plan.ok()) {
        if (!absl::IsResourceExhausted(plan.status())) return plan.status();
        if (failure.ok()) {
          failure =
              prepend(absl::StrCat(division.micro_batches, " micro-batches: "), plan.status());
        }
      } else if (!best || plan->price.step < best->price.step) {
        best = *std::move(plan);
      }
    }
  }
  if (!best) return failure;
  return *std::move(best);
}

}  // namespace weft
