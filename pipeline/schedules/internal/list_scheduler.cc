#include "weft/pipeline/schedules/internal/list_scheduler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace weft::pipeline_internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The next action that a worker could do.
struct Choice {
  double begin = kNever;
  int urgency = 0;  // lower is more urgent
  StageAction action;

  bool better_than(const Choice& other) const {
    return std::pair(begin, urgency) < std::pair(other.begin, other.urgency);
  }
};

class ListScheduler {
 public:
  ListScheduler(const ScheduleProblem& problem, const ListSchedulerOptions& options)
      : problem_(problem),
        options_(options),
        users_(problem.graph.users()),
        stages_(static_cast<size_t>(problem.graph.stages())),
        workers_(static_cast<size_t>(problem.workers())) {
    for (Stage& stage : stages_) {
      stage.forward_ends.assign(static_cast<size_t>(problem.micro_batches), kNever);
      stage.backward_ends.assign(static_cast<size_t>(problem.micro_batches), kNever);
    }
    schedule_.workers.resize(workers_.size());
    // The sums of the gradients stay until the end of the step. At most one new gradient at a time
    // waits to be added, because the weight gradients of a stage come in order.
    std::vector<int64_t> largest(workers_.size());
    for (int stage = 0; stage < problem.graph.stages(); ++stage) {
      const auto at = static_cast<size_t>(problem.worker_of[static_cast<size_t>(stage)]);
      workers_[at].bytes += costs(stage).gradient_bytes;
      largest[at] = std::max(largest[at], costs(stage).gradient_bytes);
    }
    for (size_t at = 0; at < workers_.size(); ++at) workers_[at].bytes += largest[at];
  }

  std::optional<PipelineSchedule> run() {
    const int works = options_.split ? 3 : 2;
    const int64_t all = int64_t{works} * problem_.graph.stages() * problem_.micro_batches;
    for (int64_t done = 0; done < all; ++done) {
      // The worker that can begin first goes on.
      int next = -1;
      Choice best;
      for (int worker = 0; worker < problem_.workers(); ++worker) {
        const Choice choice = choose(worker);
        if (choice.begin == kNever || (next >= 0 && !choice.better_than(best))) continue;
        next = worker;
        best = choice;
      }
      if (next < 0) return std::nullopt;
      perform(next, best);
    }
    return std::move(schedule_);
  }

 private:
  struct Stage {
    std::array<int, 3> next = {};                     // micro-batch of F, of I or B, and of W
    std::vector<double> forward_ends, backward_ends;  // by micro-batch
  };
  struct Worker {
    double free = 0;
    int64_t bytes = 0;  // that are kept, or reserved for gradients
  };

  const StageCosts& costs(int stage) const {
    return problem_.costs.stages[static_cast<size_t>(stage)];
  }
  Stage& of(int stage) { return stages_[static_cast<size_t>(stage)]; }

  // When what `from` has made is at the worker of stage `to`.
  double there(double end, int from, int to, int producer) const {
    const auto worker = [&](int stage) { return problem_.worker_of[static_cast<size_t>(stage)]; };
    if (worker(from) == worker(to)) return end;
    return end + problem_.costs.latency +
           static_cast<double>(costs(producer).output_bytes) / problem_.costs.bytes_per_second;
  }

  Choice choose(int worker) {
    const Worker& at = workers_[static_cast<size_t>(worker)];
    Choice best;
    const auto consider = [&](double ready, int urgency, const StageAction& action) {
      const Choice choice{std::max(ready, at.free), urgency, action};
      if (ready != kNever && choice.better_than(best)) best = choice;
    };
    for (int stage = 0; stage < problem_.graph.stages(); ++stage) {
      if (problem_.worker_of[static_cast<size_t>(stage)] != worker) continue;
      const Stage& each = of(stage);
      const int last = problem_.graph.stages();
      if (each.next[0] < problem_.micro_batches && fits(worker, stage)) {
        consider(forward_ready(stage, each.next[0]), last - stage,
                 {stage, StageWork::kForward, each.next[0]});
      }
      if (each.next[1] < each.next[0]) {
        const StageWork work = options_.split ? StageWork::kInputGradients : StageWork::kBackward;
        consider(backward_ready(stage, each.next[1]), -1, {stage, work, each.next[1]});
      }
      if (options_.split && each.next[2] < each.next[1]) {
        consider(each.backward_ends[static_cast<size_t>(each.next[2])], last + 1,
                 {stage, StageWork::kWeightGradients, each.next[2]});
      }
    }
    return best;
  }

  bool fits(int worker, int stage) {
    if (of(stage).next[0] - of(stage).next[1] >= options_.most_ahead) return false;
    if (problem_.memory.empty()) return true;
    const int64_t after = workers_[static_cast<size_t>(worker)].bytes + costs(stage).kept_bytes;
    return after <= problem_.memory[static_cast<size_t>(worker)];
  }
  double forward_ready(int stage, int batch) {
    double ready = 0;
    for (const int input : problem_.graph.inputs[static_cast<size_t>(stage)]) {
      ready = std::max(
          ready, there(of(input).forward_ends[static_cast<size_t>(batch)], input, stage, input));
    }
    return ready;
  }
  double backward_ready(int stage, int batch) {
    double ready = of(stage).forward_ends[static_cast<size_t>(batch)];
    for (const int user : users_[static_cast<size_t>(stage)]) {
      ready = std::max(
          ready, there(of(user).backward_ends[static_cast<size_t>(batch)], user, stage, stage));
    }
    return ready;
  }

  void perform(int worker, const Choice& choice) {
    Worker& at = workers_[static_cast<size_t>(worker)];
    Stage& stage = of(choice.action.stage);
    const StageCosts& cost = costs(choice.action.stage);
    const auto batch = static_cast<size_t>(choice.action.micro_batch);
    switch (choice.action.work) {
      case StageWork::kForward:
        at.free = stage.forward_ends[batch] = choice.begin + cost.forward;
        at.bytes += cost.kept_bytes;
        ++stage.next[0];
        break;
      case StageWork::kWeightGradients:
        at.free = choice.begin + cost.weight_gradients;
        at.bytes -= cost.kept_for_weights;
        ++stage.next[2];
        break;
      default:
        at.free = stage.backward_ends[batch] =
            choice.begin + cost.input_gradients + (options_.split ? 0 : cost.weight_gradients);
        at.bytes += (options_.split ? cost.kept_for_weights : 0) - cost.kept_bytes;
        ++stage.next[1];
        break;
    }
    schedule_.workers[static_cast<size_t>(worker)].push_back(choice.action);
  }

  const ScheduleProblem& problem_;
  const ListSchedulerOptions options_;
  const std::vector<std::vector<int>> users_;
  std::vector<Stage> stages_;
  std::vector<Worker> workers_;
  PipelineSchedule schedule_;
};

}  // namespace

std::optional<PipelineSchedule> list_schedule(const ScheduleProblem& problem,
                                              const ListSchedulerOptions& options) {
  return ListScheduler(problem, options).run();
}

}  // namespace weft::pipeline_internal
