#include "weft/tests/sim/runs.h"

#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>

#include "weft/tests/sim/membership/shutdown_world.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

namespace {

using Watch = std::chrono::steady_clock;

double seconds_since(Watch::time_point start) {
  return std::chrono::duration<double>(Watch::now() - start).count();
}

template <class Simulated>
RunResult result_of(Simulated&& world, uint64_t seed) {
  RunResult result;
  result.seed = seed;
  result.violation = world.run();
  result.events = world.events();
  result.hash = world.hash();
  return result;
}

void explain(Profile profile, uint64_t seed, std::ostream& out) {
  Report ignored;
  Trace trace(true);
  const Violation violation = run_traced(profile, seed, ignored, trace).violation;
  out << "VIOLATION profile " << name_of(profile) << ", seed " << seed << ", event "
      << violation.event << ", invariant " << violation.invariant << ": " << violation.text
      << "\nlast events:\n";
  trace.print(out);
}

int run_profile(Profile profile, const RunOptions& options, bool one, std::ostream& out) {
  const Watch::time_point start = Watch::now();
  const double seconds = options.seconds / static_cast<double>(options.profiles.size());
  Report report;
  const auto more = [&](uint64_t done) {
    return seconds > 0 ? seconds_since(start) < seconds : done < options.runs;
  };
  out << "profile " << name_of(profile) << ", seeds from " << options.first_seed << "\n";
  for (uint64_t done = 0; more(done); ++done) {
    const uint64_t seed = options.first_seed + done;
    if (options.trace) {
      Report ignored;
      Trace trace(true, &out);
      run_traced(profile, seed, ignored, trace);
    }
    const RunResult result = run_seed(profile, seed, report);
    if (one) {
      out << "seed " << seed << ", " << result.events << " events, hash " << result.hash << "\n";
    }
    if (result.violation.invariant.empty()) continue;
    report.print(out, seconds_since(start));
    explain(profile, seed, out);
    return 1;
  }
  report.print(out, seconds_since(start));
  out << "\n";
  return 0;
}

}  // namespace

RunResult run_traced(Profile profile, uint64_t seed, Report& report, Trace& trace) {
  if (profile == Profile::kShutdown) return result_of(ShutdownWorld(seed, report, trace), seed);
  return result_of(World(profile, seed, report, trace), seed);
}

RunResult run_seed(Profile profile, uint64_t seed, Report& report) {
  Trace silent;
  const RunResult result = run_traced(profile, seed, report, silent);
  ++report.runs;
  report.events += result.events;
  return result;
}

int run_and_report(const RunOptions& options, bool one, std::ostream& out) {
  for (const Profile profile : options.profiles) {
    if (const int failed = run_profile(profile, options, one, out); failed != 0) return failed;
  }
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
    for (size_t profile = 0; profile < kProfiles; ++profile) {
      const Profile each = static_cast<Profile>(profile);
      if (run_seed(each, seed, report).violation.invariant.empty()) continue;
      explain(each, seed, out);
      return 1;
    }
  }
  out << runs << " seeds replayed\n";
  return 0;
}

}  // namespace weft::sim
