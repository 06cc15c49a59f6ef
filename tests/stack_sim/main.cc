// Simulates whole workers on virtual time, one run after another.
//
//   weft_stack_sim --runs 1000 --seed-from 1     prints what was done and what went wrong
//   weft_stack_sim --runs 1 --seed-from 7 --trace
#include <chrono>
#include <cstdio>
#include <iostream>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>

#include "weft/base/log.h"
#include "weft/tests/stack_sim/stack_run.h"

namespace {

void print(const char* title, const std::map<std::string, uint64_t>& counts) {
  std::printf("%s:", title);
  for (const auto& [what, count] : counts) {
    std::printf(" %s %llu;", what.c_str(), static_cast<unsigned long long>(count));
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  uint64_t runs = 100, seed = 1;
  weft::sim::RunOptions options;
  CLI::App app("Whole workers on virtual time");
  app.add_option("--runs", runs)->capture_default_str();
  app.add_option("--seed-from", seed)->capture_default_str();
  app.add_option("--steps", options.steps, "of each run's program")->capture_default_str();
  app.add_flag("--trace", options.trace);
  CLI11_PARSE(app, argc, argv);

  const auto start = std::chrono::steady_clock::now();
  weft::sim::RunReport total;
  uint64_t failed = 0;
  for (uint64_t run = 0; run < runs; ++run) {
    options.seed = seed + run;
    const weft::sim::RunReport report = weft::sim::simulate(options);
    for (const std::string& violation : report.violations) {
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(options.seed),
                  violation.c_str());
    }
    failed += report.violations.empty() ? 0 : 1;
    total.events += report.events;
    total.calls += report.calls;
    total.frames += report.frames;
    total.virtual_seconds += report.virtual_seconds;
    for (const auto& [what, count] : report.operations) total.operations[what] += count;
    for (const auto& [what, count] : report.faults) total.faults[what] += count;
    for (const auto& [what, count] : report.errors) total.errors[what] += count;
  }
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%llu runs, %llu failed; %llu events, %llu calls, %llu frames, %.0f virtual seconds; "
      "%.1f s, %.1f runs/s\n",
      static_cast<unsigned long long>(runs), static_cast<unsigned long long>(failed),
      static_cast<unsigned long long>(total.events), static_cast<unsigned long long>(total.calls),
      static_cast<unsigned long long>(total.frames), total.virtual_seconds, took,
      static_cast<double>(runs) / took);
  print("operations", total.operations);
  print("faults", total.faults);
  print("errors", total.errors);
  return failed == 0 ? 0 : 1;
}
