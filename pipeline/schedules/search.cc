#include "weft/pipeline/schedules/search.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/internal/action_graph.h"
#include "weft/pipeline/schedules/internal/list_scheduler.h"
#include "weft/pipeline/schedules/internal/v_pattern.h"
#include "weft/pipeline/schedules/schedules.h"

namespace weft {
namespace {

using pipeline_internal::list_schedule;

absl::Status check_problem(const ScheduleProblem& problem) {
  const auto bad = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  const auto stages = static_cast<size_t>(problem.graph.stages());
  if (stages == 0) return bad("a pipeline has at least one stage");
  if (problem.micro_batches < 1)
    return bad("a step has at least 1 micro-batch, not ", problem.micro_batches);
  if (problem.worker_of.size() != stages)
    return bad(problem.worker_of.size(), " stages are placed, of ", stages);
  WEFT_RETURN_IF_ERROR(pipeline_internal::check_stage_graph(problem.graph));
  WEFT_RETURN_IF_ERROR(check_costs(problem.costs, problem.graph.stages()));
  if (static_cast<int64_t>(stages) > pipeline_internal::kMostActions / 3 / problem.micro_batches) {
    return bad(stages, " stages and ", problem.micro_batches, " micro-batches have more than ",
               pipeline_internal::kMostActions, " actions");
  }
  const std::set<int> workers(problem.worker_of.begin(), problem.worker_of.end());
  if (*workers.begin() != 0 || *workers.rbegin() != problem.workers() - 1 ||
      static_cast<int>(workers.size()) != problem.workers()) {
    return bad("the workers are not numbered from 0 without gaps");
  }
  if (!problem.memory.empty() && static_cast<int>(problem.memory.size()) != problem.workers()) {
    return bad("there are ", problem.memory.size(), " memory limits for ", problem.workers(),
               " workers");
  }
  return absl::OkStatus();
}

bool placed_as(const PipelineSchedule& schedule, const std::vector<int>& worker_of) {
  if (schedule.stages() != static_cast<int>(worker_of.size())) return false;
  for (int worker = 0; worker < static_cast<int>(schedule.workers.size()); ++worker) {
    for (const StageAction& action : schedule.workers[static_cast<size_t>(worker)]) {
      if (worker_of[static_cast<size_t>(action.stage)] != worker) return false;
    }
  }
  return true;
}

class Search {
 public:
  explicit Search(const ScheduleProblem& problem) : problem_(problem) {}

  absl::StatusOr<FoundSchedule> run() {
    try_generators();
    try_lists(problem_);
    if (!best_) {  // the list scheduler does not recompute, and gives up early
      ScheduleProblem unlimited = problem_;
      unlimited.memory.clear();
      try_lists(unlimited);
    }
    if (!best_) return nothing_fits();
    improve();
    return *std::move(best_);
  }

 private:
  // Keeps the schedule, or the same one with recomputing stages, if it is the fastest one that
  // fits.
  void offer(const std::string& name, const PipelineSchedule& schedule) {
    std::set<int> recomputing;
    PipelineSchedule offered = schedule;
    while (true) {
      const auto priced = price_schedule(offered, problem_.graph, problem_.costs);
      if (!priced.ok()) return;
      const int worker = over(*priced);
      if (worker < 0) {
        consider(name, std::move(offered));
        return;
      }
      const int stage = problem_.recompute ? largest_stage(worker, recomputing) : -1;
      if (stage < 0) return;
      recomputing.insert(stage);
      offered = schedule.recomputing(recomputing);
    }
  }

  // The stage of this worker, not among these, that keeps the most bytes; -1: none is left.
  int largest_stage(int worker, const std::set<int>& but) const {
    int largest = -1;
    for (int stage = 0; stage < problem_.graph.stages(); ++stage) {
      if (problem_.worker_of[static_cast<size_t>(stage)] != worker || but.contains(stage)) continue;
      if (largest < 0 || kept(stage) > kept(largest)) largest = stage;
    }
    return largest;
  }
  int64_t kept(int stage) const {
    return problem_.costs.stages[static_cast<size_t>(stage)].kept_bytes;
  }

  // Keeps the schedule if it is the fastest one that fits. Returns whether it is.
  bool consider(const std::string& name, PipelineSchedule schedule) {
    absl::StatusOr<SchedulePrice> priced = price_schedule(schedule, problem_.graph, problem_.costs);
    if (!priced.ok() || !fits(*priced)) return false;
    if (best_ && priced->step >= best_->price.step) return false;
    best_ = FoundSchedule{std::move(schedule), *std::move(priced), name};
    return true;
  }

  void try_generators() {
    const int p = problem_.workers(), m = problem_.micro_batches;
    const auto generator = [&](const std::string& name, absl::StatusOr<PipelineSchedule> schedule) {
      if (schedule.ok() && placed_as(*schedule, problem_.worker_of)) offer(name, *schedule);
    };
    generator("fill_drain", schedules::fill_drain(p, m));
    generator("one_forward_one_backward", schedules::one_forward_one_backward(p, m));
    generator("zero_bubble", schedules::zero_bubble(p, m));
    generator("zero_bubble_h2", schedules::zero_bubble_h2(p, m));
    const int chunks = problem_.graph.stages() / p;
    if (chunks > 1) {
      generator("breadth_first", schedules::breadth_first(p, m, chunks));
      generator("interleaved", schedules::interleaved(p, m, chunks));
      generator("zero_bubble", schedules::zero_bubble(p, m, chunks));
    }
    if (problem_.graph.stages() != 2 * p) return;
    generator("zero_bubble_v", schedules::zero_bubble_v(p, m));
    generator("dual_pipe_v", schedules::dual_pipe_v(p, m));
    for (int alive = p; alive < 2 * p; ++alive) {
      auto pattern = pipeline_internal::v_schedule(p, m, alive);
      const std::string name = alive == p + 1 ? "half_memory_v" : "v_pattern";
      if (pattern) generator(name, *std::move(pattern));
    }
  }

  void try_lists(const ScheduleProblem& problem) {
    for (const bool split : {true, false}) {
      for (int ahead = 1; ahead <= std::min(problem.micro_batches, 2 * problem.graph.stages());
           ++ahead) {
        auto schedule = list_schedule(problem, {.split = split, .most_ahead = ahead});
        if (schedule) offer("list", *schedule);
      }
    }
  }

  // Swaps neighbours, first those at the beginning of all rows. The price refuses swaps that make
  // the schedule impossible.
  void improve() {
    int left = problem_.most_swaps;
    for (bool better = true; better && left > 0;) {
      better = false;
      const std::string name = best_->name;
      size_t longest = 0;
      for (const auto& row : best_->schedule.workers) longest = std::max(longest, row.size());
      for (size_t at = 1; at < longest; ++at) {
        for (size_t worker = 0; worker < best_->schedule.workers.size() && left > 0; ++worker) {
          if (at >= best_->schedule.workers[worker].size()) continue;
          --left;
          PipelineSchedule moved = best_->schedule;
          std::swap(moved.workers[worker][at - 1], moved.workers[worker][at]);
          better = consider(name, std::move(moved)) || better;
        }
      }
    }
  }

  bool fits(const SchedulePrice& price) const { return over(price) < 0; }
  // The first worker whose memory does not suffice, or -1.
  int over(const SchedulePrice& price) const {
    for (size_t worker = 0; worker < problem_.memory.size(); ++worker) {
      if (price.workers[worker].peak_bytes > problem_.memory[worker])
        return static_cast<int>(worker);
    }
    return -1;
  }

  // The least memory is that of one micro-batch at a time, as a rule.
  absl::Status nothing_fits() const {
    ScheduleProblem unlimited = problem_;
    unlimited.memory.clear();
    const auto one = list_schedule(unlimited, {.split = false, .most_ahead = 1});
    if (!one) return absl::InternalError("the list scheduler made no schedule");
    WEFT_ASSIGN_OR_RETURN(const SchedulePrice price,
                          price_schedule(*one, problem_.graph, problem_.costs));
    const int worker = over(price);
    if (worker < 0) return absl::InternalError("a schedule fits, and it was not found");
    const auto at = static_cast<size_t>(worker);
    return absl::ResourceExhaustedError(absl::StrCat(
        "no schedule fits into the workers' memory; worker ", worker, " has ", problem_.memory[at],
        " bytes, and one micro-batch at a time needs ", price.workers[at].peak_bytes));
  }

  const ScheduleProblem& problem_;
  std::optional<FoundSchedule> best_;
};

}  // namespace

int ScheduleProblem::workers() const {
  return worker_of.empty() ? 0 : 1 + *std::max_element(worker_of.begin(), worker_of.end());
}

absl::StatusOr<FoundSchedule> search_schedule(const ScheduleProblem& problem) {
  WEFT_RETURN_IF_ERROR(check_problem(problem));
  return Search(problem).run();
}

}  // namespace weft
