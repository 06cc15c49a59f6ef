#include "weft/bench/comparison.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/bench/report/tables.h"

namespace weft::bench {
namespace {

// Starts one computing thread per processor, as in training. They run until the process exits.
void keep_processors_busy() {
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    std::thread([] {
      volatile double sink = 1;
      for (;;) sink = sink * 1.0000001;
    }).detach();
  }
}

// Returns the contestants that the options name, or all if they name none. The subject must be one
// of them.
absl::StatusOr<std::vector<std::string>> select_contestants(const Suite& suite,
                                                            const ComparisonOptions& options) {
  const std::vector<std::string>& known = suite.contestants;
  const std::vector<std::string>& asked = options.contestants.empty() ? known : options.contestants;
  for (const std::string& name : asked) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no contestant \"", name, "\"; there are: ", absl::StrJoin(known, ", ")));
    }
  }
  if (std::find(asked.begin(), asked.end(), options.subject) == asked.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the subject \"", options.subject,
                     "\" is not among the contestants: ", absl::StrJoin(asked, ", ")));
  }
  std::vector<std::string> selected = known;
  std::erase_if(selected, [&](const std::string& name) {
    return std::find(asked.begin(), asked.end(), name) == asked.end();
  });
  return selected;
}

// Returns the contestants and the other builds of this program. Each build is measured as its
// "weft".
absl::StatusOr<std::vector<Entrant>> all_entrants(const Suite& suite,
                                                  const ComparisonOptions& options) {
  absl::StatusOr<std::vector<std::string>> names = select_contestants(suite, options);
  if (!names.ok()) return names.status();
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<Entrant> entrants;
  for (const std::string& name : *names) entrants.push_back({name, name, self});
  for (const std::string& entry : options.beside) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--beside ", entry, ": not NAME=PROGRAM"));
    }
    entrants.push_back({entry.substr(0, equals), "weft", entry.substr(equals + 1)});
  }
  return entrants;
}

// Starts the groups for rows with this number of processes. Returns false if one does not start.
bool start_groups(const Suite& suite, const std::vector<Entrant>& entrants, int processes,
                  std::vector<std::unique_ptr<Group>>& groups) {
  groups.clear();
  bool all_started = true;
  for (const Entrant& entrant : entrants) {
    std::unique_ptr<Group> group = suite.make_group(entrant, processes);
    if (!group) continue;
    if (const absl::Status started = group->start(); !started.ok()) {
      std::cerr << entrant.name << " does not start: " << started << "\n";
      all_started = false;
      continue;
    }
    groups.push_back(std::move(group));
  }
  return all_started;
}

void print_conditions(const ComparisonOptions& options) {
  const Harness::Options& harness = options.harness;
  std::printf(
      "%d rounds of %.2f s blocks in random order, seed %llu; %u "
      "processors, %s, %s%s\n",
      harness.rounds, harness.block_seconds, static_cast<unsigned long long>(harness.seed),
      std::thread::hardware_concurrency(), options.pin ? "processes pinned" : "not pinned",
      options.busy ? "one computing thread per processor beside" : "nothing beside",
      options.quick ? "; quick: too short to report" : "");
}

bool write_json(const std::string& file, const std::vector<Comparison>& comparisons) {
  std::ofstream out(file);
  out << to_json(comparisons).dump(2) << "\n";
  out.close();
  if (!out) std::cerr << "cannot write " << file << "\n";
  return static_cast<bool>(out);
}

// Measures all rows once and prints the results.
std::vector<Comparison> run_once(const Suite& suite, const std::vector<Row>& rows,
                                 const std::vector<Entrant>& entrants,
                                 const ComparisonOptions& options, bool& all_well) {
  std::vector<std::unique_ptr<Group>> groups;
  std::unique_ptr<Harness> harness;
  int processes = 0;  // the number of processes in the groups that run now
  std::vector<RowResult> results;
  std::vector<Comparison> comparisons;
  for (const Row& row : rows) {
    if (row.processes != processes) {
      processes = row.processes;
      all_well = start_groups(suite, entrants, processes, groups) && all_well;
      harness = std::make_unique<Harness>(groups, options.harness);
    }
    std::cerr << row.name << " ...\n";
    results.push_back(harness->run(row));
    for (Comparison& line : suite.compare(results.back(), options.subject, options.harness.seed)) {
      comparisons.push_back(std::move(line));
    }
  }
  std::cout << "\n" << comparison_table(comparisons, options.subject) << "\n";
  for (const std::string& table :
       {step_table(results), agent_table(results), mixed_table(results), workers_table(results)}) {
    if (!table.empty()) std::cout << table << "\n";
  }
  std::cout << cost_table(results) << std::flush;
  return comparisons;
}

}  // namespace

int run_comparison(const Suite& suite, ComparisonOptions options) {
  if (options.quick) {
    options.harness.rounds = 3;
    options.harness.block_seconds = 0.1;
  }
  options.harness.sleep = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  bool all_well = true;
  options.harness.report = [&](const std::string& what) {
    all_well = false;
    std::cerr << what << "\n";
  };
  const absl::StatusOr<std::vector<Row>> rows = select_rows(suite.rows, options.rows);
  const absl::StatusOr<std::vector<Entrant>> entrants = all_entrants(suite, options);
  for (const absl::Status& status :
       {rows.status(), entrants.status(), options.harness.validate()}) {
    if (!status.ok()) {
      std::cerr << status.message() << "\n";
      return EXIT_FAILURE;
    }
  }

  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  print_conditions(options);
  if (options.busy) keep_processors_busy();
  std::vector<std::vector<Comparison>> runs;
  for (int run = 0; run < options.runs; ++run) {
    if (options.runs > 1) std::cerr << "run " << run + 1 << " of " << options.runs << "\n";
    runs.push_back(run_once(suite, *rows, *entrants, options, all_well));
    ++options.harness.seed;
  }
  std::vector<Comparison> comparisons = runs[0];
  if (options.runs > 1) {
    comparisons = across_runs(runs);
    std::cout << "\n" << comparison_table(comparisons, options.subject);
  }
  if (!options.json_file.empty()) all_well = write_json(options.json_file, comparisons) && all_well;
  return all_well ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace weft::bench
