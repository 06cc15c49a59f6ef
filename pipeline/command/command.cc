#include "weft/pipeline/command/command.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status.h"
#include "weft/pipeline/schedules/price.h"
#include "weft/pipeline/schedules/schedule.h"
#include "weft/pipeline/schedules/schedules.h"
#include "weft/pipeline/schedules/search.h"
#include "weft/pipeline/schedules/time_line.h"

namespace weft::pipeline_internal {
namespace {

struct Options {
  std::string schedule = "zero_bubble";
  std::string file;
  int workers = 2;
  int micro_batches = 4;
  int chunks = 1;
  std::vector<double> times = {1, 1, 1};  // of F, I and W
  double latency = 0;
  int columns = 100;
  bool csv = false;
};

using Generator = absl::StatusOr<PipelineSchedule> (*)(const Options& options);

PipelineCosts costs_of(const Options& options, int stages) {
  PipelineCosts costs;
  costs.latency = options.latency;
  costs.stages.resize(static_cast<size_t>(stages), {.forward = options.times[0],
                                                    .input_gradients = options.times[1],
                                                    .weight_gradients = options.times[2],
                                                    .kept_bytes = 1,
                                                    .kept_for_weights = 1});
  return costs;
}

absl::StatusOr<PipelineSchedule> searched(const Options& options) {
  ScheduleProblem problem;
  const int stages = options.workers * options.chunks;
  problem.graph = StageGraph::chain(stages);
  for (int stage = 0; stage < stages; ++stage) problem.worker_of.push_back(stage % options.workers);
  problem.micro_batches = options.micro_batches;
  problem.costs = costs_of(options, stages);
  WEFT_ASSIGN_OR_RETURN(FoundSchedule found, search_schedule(problem));
  return std::move(found.schedule);
}

const std::map<std::string, Generator>& generators() {
  static const std::map<std::string, Generator> generators = {
      {"forward_only",
       [](const Options& o) { return schedules::forward_only(o.workers, o.micro_batches); }},
      {"fill_drain",
       [](const Options& o) { return schedules::fill_drain(o.workers, o.micro_batches); }},
      {"one_forward_one_backward",
       [](const Options& o) {
         return schedules::one_forward_one_backward(o.workers, o.micro_batches);
       }},
      {"interleaved",
       [](const Options& o) {
         return schedules::interleaved(o.workers, o.micro_batches, o.chunks);
       }},
      {"breadth_first",
       [](const Options& o) {
         return schedules::breadth_first(o.workers, o.micro_batches, o.chunks);
       }},
      {"zero_bubble",
       [](const Options& o) {
         return schedules::zero_bubble(o.workers, o.micro_batches, o.chunks);
       }},
      {"zero_bubble_h2",
       [](const Options& o) { return schedules::zero_bubble_h2(o.workers, o.micro_batches); }},
      {"zero_bubble_v",
       [](const Options& o) { return schedules::zero_bubble_v(o.workers, o.micro_batches); }},
      {"half_memory_v",
       [](const Options& o) { return schedules::half_memory_v(o.workers, o.micro_batches); }},
      {"dual_pipe_v",
       [](const Options& o) { return schedules::dual_pipe_v(o.workers, o.micro_batches); }},
      {"search", searched},
  };
  return generators;
}

absl::StatusOr<PipelineSchedule> read_file(const std::string& name) {
  std::ifstream file(name);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", name));
  absl::StatusOr<PipelineSchedule> schedule = PipelineSchedule::from_csv(text.str());
  return schedule.ok() ? schedule : prepend(absl::StrCat(name, ": "), schedule.status());
}

absl::Status print(const Options& options, std::ostream& out) {
  WEFT_ASSIGN_OR_RETURN(
      const PipelineSchedule schedule,
      options.file.empty() ? generators().at(options.schedule)(options) : read_file(options.file));
  const int stages = schedule.stages();
  WEFT_ASSIGN_OR_RETURN(
      const SchedulePrice price,
      price_schedule(schedule, StageGraph::chain(stages), costs_of(options, stages)));
  if (options.csv) {
    out << schedule.to_csv();
    return absl::OkStatus();
  }
  out << draw_time_line(planned_time_line(schedule, price), options.columns);
  out << absl::StreamFormat("step %g, idle %.1f %%\n", price.step, 100 * price.idle_share());
  for (size_t row = 0; row < price.workers.size(); ++row) {
    const SchedulePrice::Worker& worker = price.workers[row];
    out << absl::StreamFormat("row %d: busy %g, results kept %d at most, messages sent %d\n",
                              row + 1, worker.busy, worker.peak_bytes, worker.messages_sent);
  }
  return absl::OkStatus();
}

}  // namespace

int run_command(int argc, const char* const* argv, std::ostream& out, std::ostream& errors) {
  Options options;
  CLI::App app("Checks, prices and draws a schedule of a pipeline, for stages in a chain");
  std::vector<std::string> names;
  for (const auto& [name, generator] : generators()) names.push_back(name);
  auto* const schedule =
      app.add_option("--schedule", options.schedule, "a well-known one, or search")
          ->check(CLI::IsMember(names))
          ->capture_default_str();
  app.add_option("--file", options.file, "read it from this CSV file instead")->excludes(schedule);
  app.add_option("--workers", options.workers)->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches)->capture_default_str();
  app.add_option("--chunks", options.chunks, "stages per worker")->capture_default_str();
  app.add_option("--times", options.times, "of forward, input gradients and weight gradients")
      ->delimiter(',')
      ->expected(3)
      ->capture_default_str();
  app.add_option("--latency", options.latency, "of a message, in the same unit");
  app.add_option("--columns", options.columns, "of the drawing")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_flag("--csv", options.csv, "print the schedule as CSV, and nothing else");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, out, errors) == 0 ? 0 : 2;
  }
  if (absl::Status printed = print(options, out); !printed.ok()) {
    errors << "weft_pipeline: " << printed.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace weft::pipeline_internal
