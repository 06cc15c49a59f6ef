#include "weft/tests/sim/runs.h"

#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>

#include "weft/base/breakage.h"

namespace weft::sim {

RunResult run_seed(uint64_t seed, Report& report) {
  Trace silent;
  World world(seed, report, silent);
  RunResult result;
  result.seed = seed;
  result.violation = world.run();
  result.events = world.events();
  result.hash = world.hash();
  ++report.runs;
  report.events += result.events;
  return result;
}

namespace {

using Watch = std::chrono::steady_clock;

double seconds_since(Watch::time_point start) {
  return std::chrono::duration<double>(Watch::now() - start).count();
}

void explain(uint64_t seed, std::ostream& out) {
  Report ignored;
  Trace trace(true);
  World world(seed, ignored, trace);
  const Violation violation = world.run();
  out << "VIOLATION seed " << seed << ", event " << violation.event << ", invariant "
      << violation.invariant << ": " << violation.text << "\nlast events:\n";
  trace.print(out);
}

}  // namespace

int run_and_report(const RunOptions& options, bool one, std::ostream& out) {
  const Watch::time_point start = Watch::now();
  Report report;
  const auto more = [&](uint64_t done) {
    return options.seconds > 0 ? seconds_since(start) < options.seconds : done < options.runs;
  };
  for (uint64_t done = 0; more(done); ++done) {
    const uint64_t seed = options.first_seed + done;
    if (options.trace) {
      Report ignored;
      Trace trace(true, &out);
      World(seed, ignored, trace).run();
    }
    const RunResult result = run_seed(seed, report);
    if (one) {
      out << "seed " << seed << ", " << result.events << " events, hash " << result.hash << "\n";
    }
    if (result.violation.invariant.empty()) continue;
    report.print(out, seconds_since(start));
    explain(seed, out);
    return 1;
  }
  report.print(out, seconds_since(start));
  return 0;
}

int replay(const std::string& file, std::ostream& out) {
  std::ifstream in(file);
  if (!in) {
    out << "cannot read " << file << "\n";
    return 2;
  }
  Report report;
  std::string line;
  uint64_t runs = 0;
  while (std::getline(in, line)) {
    uint64_t seed = 0;
    if (!(std::istringstream(line) >> seed)) continue;
    ++runs;
    if (run_seed(seed, report).violation.invariant.empty()) continue;
    explain(seed, out);
    return 1;
  }
  out << runs << " seeds replayed\n";
  return 0;
}

}  // namespace weft::sim
