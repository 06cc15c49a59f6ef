// weft_sim: runs the cores of the library under faults, from seeds, and checks their invariants.
// docs/testing/simulator.md says what is simulated and how to repeat a run.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "weft/tests/sim/runs.h"

namespace {

int usage() {
  std::cerr << "usage: weft_sim [--profile everything|steps|joining|shutdown]\n"
               "                [--runs N] [--seed-from S] [--seconds T] [--seed X [--trace]]\n"
               "                [--seeds FILE] [--mutant NAME] [--breakages [N]]\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  weft::sim::RunOptions options;
  bool one = false, breakages = false;
  uint64_t at_most = 20000;
  std::string seeds;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc && argv[i + 1][0] != '-';
    const auto number = [&] { return std::strtoull(argv[++i], nullptr, 10); };
    if (flag == "--trace") {
      options.trace = true;
    } else if (flag == "--breakages") {
      breakages = true;
      if (has_value) at_most = number();
    } else if (!has_value) {
      return usage();
    } else if (flag == "--runs") {
      options.runs = number();
    } else if (flag == "--seed-from") {
      options.first_seed = number();
    } else if (flag == "--seconds") {
      options.seconds = std::strtod(argv[++i], nullptr);
    } else if (flag == "--seed") {
      one = true;
      options.first_seed = number();
      options.runs = 1;
    } else if (flag == "--profile") {
      const std::string wanted = argv[++i];
      options.profiles.clear();
      for (size_t p = 0; p < weft::sim::kProfiles; ++p) {
        if (wanted == weft::sim::kProfileNames[p]) {
          options.profiles = {static_cast<weft::sim::Profile>(p)};
        }
      }
      if (options.profiles.empty()) return usage();
    } else if (flag == "--seeds") {
      seeds = argv[++i];
    } else if (flag == "--mutant") {
      options.mutant = argv[++i];
    } else {
      return usage();
    }
  }
  if (one && options.profiles.size() > 1) options.profiles.resize(1);
  if (breakages) return weft::sim::find_breakages(at_most, std::cout);
  if (!options.mutant.empty() && !weft::sim::break_rule(options.mutant)) {
    std::cerr << "no such mutant, or this executable has none: " << options.mutant << "\n";
    return 2;
  }
  if (!seeds.empty()) return weft::sim::replay(seeds, std::cout);
  return weft::sim::run_and_report(options, one, std::cout);
}
