#include "weft/pipeline/schedules/internal/v_pattern.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "weft/pipeline/schedules/price.h"

namespace weft::pipeline_internal {
namespace {

constexpr int kPeriod = 6;

// The pattern on one worker: when the actions of micro-batch 0 begin.
struct Times {
  int f_down, f_up, i_up, i_down, w_up, w_down;
};

// The pattern goes down the workers, up, down again and up again. `pace`: the units from one worker
// to the next, in each of the four passes. `turn`: the units from the last action of a pass to the
// first one of the next pass, which is on the same worker.
struct Pattern {
  std::array<int, 4> pace;
  std::array<int, 3> turn;
};

// Places the weight gradients as early as possible. False: two actions would collide.
bool place(const Pattern& pattern, int workers, int worker, Times& times) {
  const int last = workers - 1;
  times.f_down = pattern.pace[0] * worker;
  const int turn_up = pattern.pace[0] * last + pattern.turn[0];
  times.f_up = turn_up + pattern.pace[1] * (last - worker);
  const int turn_back = turn_up + pattern.pace[1] * last + pattern.turn[1];
  times.i_up = turn_back + pattern.pace[2] * worker;
  times.i_down =
      turn_back + pattern.pace[2] * last + pattern.turn[2] + pattern.pace[3] * (last - worker);
  std::array<bool, kPeriod> taken = {};
  const auto take = [&](int time) {
    return !std::exchange(taken[static_cast<size_t>(time % kPeriod)], true);
  };
  for (const int time : {times.f_down, times.f_up, times.i_up, times.i_down}) {
    if (!take(time)) return false;
  }
  times.w_up = times.i_up + 1;
  while (!take(times.w_up)) ++times.w_up;
  times.w_down = times.i_down + 1;
  while (!take(times.w_down)) ++times.w_down;
  return true;
}

// The most micro-batches that are alive, per stage, once the pattern repeats.
int alive(const Times& times) {
  int most = 0;
  // Something changes only where an action begins.
  for (const int now : {times.f_down, times.f_up}) {
    const auto living = [&](int begin,
                            int end) {  // micro-batches k with begin <= now + 6 k < end + 1
      int count = 0;
      for (int at = now % kPeriod; at <= end; at += kPeriod) count += at >= begin ? 1 : 0;
      return count;
    };
    most = std::max(most, living(times.f_down, times.w_down) + living(times.f_up, times.w_up));
  }
  return most;
}

PipelineSchedule unrolled(const std::vector<Times>& pattern, int micro_batches) {
  PipelineSchedule schedule;
  const int workers = static_cast<int>(pattern.size());
  for (int worker = 0; worker < workers; ++worker) {
    const Times& times = pattern[static_cast<size_t>(worker)];
    const int down = worker, up = 2 * workers - 1 - worker;
    std::vector<std::pair<int, StageAction>> timed;
    for (int i = 0; i < micro_batches; ++i) {
      const auto add = [&](int time, int stage, StageWork work) {
        timed.push_back({time + kPeriod * i, {stage, work, i}});
      };
      add(times.f_down, down, StageWork::kForward);
      add(times.f_up, up, StageWork::kForward);
      add(times.i_up, up, StageWork::kInputGradients);
      add(times.i_down, down, StageWork::kInputGradients);
      add(times.w_up, up, StageWork::kWeightGradients);
      add(times.w_down, down, StageWork::kWeightGradients);
    }
    std::sort(timed.begin(), timed.end());
    std::vector<StageAction>& row = schedule.workers.emplace_back();
    for (const auto& [time, action] : timed) row.push_back(action);
  }
  return schedule;
}

double step_time(const PipelineSchedule& schedule) {
  PipelineCosts costs;
  costs.stages.resize(2 * schedule.workers.size());
  const StageGraph chain = StageGraph::chain(static_cast<int>(costs.stages.size()));
  const absl::StatusOr<SchedulePrice> priced = price_schedule(schedule, chain, costs);
  return priced.ok() ? priced->step : std::numeric_limits<double>::infinity();
}

// All patterns without collisions in which at most so many results are alive.
std::vector<std::vector<Times>> patterns(int workers, int most_alive) {
  constexpr int kMostPace = 4, kMostTurn = 4;
  constexpr int kPatterns =
      kMostPace * kMostPace * kMostPace * kMostPace * kMostTurn * kMostTurn * kMostTurn;
  std::vector<std::vector<Times>> found;
  for (int number = 0; number < kPatterns; ++number) {
    Pattern pattern;
    int rest = number;
    for (int& pace : pattern.pace) pace = 1 + std::exchange(rest, rest / kMostPace) % kMostPace;
    for (int& turn : pattern.turn) turn = 1 + std::exchange(rest, rest / kMostTurn) % kMostTurn;
    std::vector<Times> placed(static_cast<size_t>(workers));
    bool fits = true;
    for (int worker = 0; worker < workers && fits; ++worker) {
      Times& times = placed[static_cast<size_t>(worker)];
      fits = place(pattern, workers, worker, times) && alive(times) <= most_alive;
    }
    if (fits) found.push_back(std::move(placed));
  }
  return found;
}

}  // namespace

std::optional<PipelineSchedule> v_schedule(int workers, int micro_batches, int most_alive) {
  std::optional<std::vector<Times>> best;
  double best_time = std::numeric_limits<double>::infinity();
  for (std::vector<Times>& pattern : patterns(workers, most_alive)) {
    // After 2 p micro-batches each pattern repeats, so more of them tell no more.
    const double time = step_time(unrolled(pattern, std::min(micro_batches, 2 * workers)));
    if (time >= best_time) continue;
    best_time = time;
    best = std::move(pattern);
  }
  if (!best) return std::nullopt;
  return unrolled(*best, micro_batches);
}

}  // namespace weft::pipeline_internal
