#include "weft/bench/suites.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/bench/child_program.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/processes/best_of.h"
#include "weft/bench/processes/crowd.h"
#include "weft/bench/processes/pair.h"
#include "weft/bench/processes/rank_group.h"

namespace weft::bench {
namespace {

constexpr char kTorchDdp[] = "torch ddp";  // a program of its own, only for the step of two ranks
constexpr int kTorchDdpRanks = 2;

constexpr char kTorchPython[] = "torch python";
constexpr char kTorchBatched[] = "torch batched";
// A block has several steps of the model, and each takes seconds.
constexpr double kPipelinePatienceSeconds = 600;

// Starts a Python program with the settings of keep_freed_memory(), so that malloc makes no
// difference.
std::vector<std::string> python_command(const std::string& python, const std::string& program) {
  const unsigned arenas = std::max(1u, std::thread::hardware_concurrency() / 2);
  return {"/usr/bin/env",
          "MALLOC_TRIM_THRESHOLD_=2147483647",
          "MALLOC_MMAP_THRESHOLD_=33554432",
          absl::StrCat("MALLOC_ARENA_MAX=", arenas),
          python,
          WEFT_SOURCE_DIR "/bench/contestants/" + program};
}

// The two processes of a contestant. If it has variants, two processes of each.
std::unique_ptr<Group> call_group(const Entrant& entrant, bool pin) {
  std::vector<std::unique_ptr<Group>> variants;
  for (const Contestant& contestant : call_contestants()) {
    const bool is_variant = contestant.variant_of == entrant.child_name;
    if (!is_variant && contestant.name != entrant.child_name) continue;
    variants.push_back(std::make_unique<ProcessPair>(
        ProcessPair::Options{.name = is_variant ? contestant.name : entrant.name,
                             .spins_when_idle = contestant.spins_when_idle,
                             .pin = pin,
                             .program = entrant.program,
                             .child_name = contestant.name}));
    if (!is_variant) return std::move(variants.back());
  }
  return std::make_unique<BestOf>(entrant.name, std::move(variants));
}

}  // namespace

Suite calls_suite(bool pin) {
  Suite suite{.rows = rpc_rows(), .contestants = {}, .make_group = {}, .compare = {}};
  for (const Contestant& contestant : call_contestants()) {
    const std::string& name =
        contestant.variant_of.empty() ? contestant.name : contestant.variant_of;
    // The variants of one contestant are adjacent.
    if (suite.contestants.empty() || suite.contestants.back() != name) {
      suite.contestants.push_back(name);
    }
  }
  suite.make_group = [pin](const Entrant& entrant, int) { return call_group(entrant, pin); };
  suite.compare = [](const RowResult& result, const std::string& subject, uint64_t seed) {
    return compare_calls(result, call_modes(), subject, seed);
  };
  return suite;
}

Suite security_suite(bool pin) {
  Suite suite{.rows = security_rows(), .contestants = {}, .make_group = {}, .compare = {}};
  for (const Contestant& contestant : security_contestants()) {
    suite.contestants.push_back(contestant.name);
  }
  suite.make_group = [pin](const Entrant& entrant, int) {
    return std::make_unique<ProcessPair>(ProcessPair::Options{.name = entrant.name,
                                                              .spins_when_idle = false,
                                                              .pin = pin,
                                                              .program = entrant.program,
                                                              .child_name = entrant.child_name});
  };
  suite.compare = [](const RowResult& result, const std::string&, uint64_t seed) {
    std::vector<Comparison> lines;
    for (const Mode& mode : security_modes()) {
      for (Comparison& line : compare(result, mode.contestant, seed)) {
        if (line.peer != mode.peers.front()) continue;
        absl::StrAppend(&line.row, ", ", mode.contestant);
        lines.push_back(std::move(line));
      }
    }
    return lines;
  };
  return suite;
}

Suite workers_suite(int workers, bool pin, const std::vector<WeftMode>& modes) {
  Suite suite{.rows = worker_rows(workers),
              .contestants = {},
              .make_group = {},
              .compare = compare_workers};
  for (const WeftMode mode : modes) suite.contestants.push_back(name_of(mode));
  suite.make_group = [pin](const Entrant& entrant, int processes) {
    return std::make_unique<RankGroup>(
        RankGroup::Options{.name = entrant.name,
                           .ranks = processes,
                           .pin = pin,
                           .command = {entrant.program, "contestant", "--name",
                                       absl::StrCat(kWorkersChild, entrant.child_name)}});
  };
  return suite;
}

Suite ddp_suite(const DdpSuiteOptions& options, bool pin) {
  Suite suite{.rows = ddp_rows(), .contestants = {}, .make_group = {}, .compare = compare_modes};
  for (const RankContestant& contestant :
       collective_contestants(std::chrono::microseconds(options.spin_us))) {
    suite.contestants.push_back(contestant.name);
  }
  if (std::filesystem::exists(options.python)) suite.contestants.push_back(kTorchDdp);
  suite.make_group = [options, pin](const Entrant& entrant, int ranks) -> std::unique_ptr<Group> {
    std::vector<std::string> command = {entrant.program, "contestant",
                                        "--name",        entrant.child_name,
                                        "--spin-us",     absl::StrCat(options.spin_us)};
    if (entrant.child_name == kTorchDdp) {
      if (ranks != kTorchDdpRanks) return nullptr;
      command = python_command(options.python, "ddp/torch_ddp.py");
    }
    return std::make_unique<RankGroup>(RankGroup::Options{
        .name = entrant.name, .ranks = ranks, .pin = pin, .command = std::move(command)});
  };
  return suite;
}

Suite rl_suite(const RlSuiteOptions& options) {
  Suite suite{
      .rows = rl_rows(), .contestants = {"weft"}, .make_group = {}, .compare = compare_agents};
  if (std::filesystem::exists(options.python)) {
    suite.contestants.insert(suite.contestants.end(), {kTorchPython, kTorchBatched});
  }
  suite.make_group = [options](const Entrant& entrant, int) -> std::unique_ptr<Group> {
    if (entrant.child_name == kTorchPython || entrant.child_name == kTorchBatched) {
      const bool batched = entrant.child_name == kTorchBatched;
      return std::make_unique<Crowd>(Crowd::Options{
          .name = entrant.name,
          .members = std::min(options.observers, options.torch_observers),
          .command = python_command(options.python,
                                    batched ? "jobs/torch_rl_batched.py" : "jobs/torch_rl.py")});
    }
    return std::make_unique<Crowd>(
        Crowd::Options{.name = entrant.name,
                       .members = options.observers,
                       .command = {entrant.program, "contestant", "--name", entrant.child_name}});
  };
  return suite;
}

Suite pipeline_suite(const PythonOptions& options) {
  Suite suite{.rows = pipeline_rows(),
              .contestants = {"weft"},
              .make_group = {},
              .compare = compare_pipelines};
  if (std::filesystem::exists(options.python)) suite.contestants.push_back(kTorchPython);
  suite.make_group = [options](const Entrant& entrant, int) -> std::unique_ptr<Group> {
    Crowd::Options crowd{.name = entrant.name,
                         .members = kPipelineShards,
                         .amounts_are_members = false,
                         .patience_seconds = kPipelinePatienceSeconds,
                         .command = {entrant.program, "contestant", "--name", kPipelineChild}};
    if (entrant.child_name == kTorchPython) {
      crowd.command = python_command(options.python, "jobs/torch_pipeline.py");
    }
    return std::make_unique<Crowd>(std::move(crowd));
  };
  return suite;
}

}  // namespace weft::bench
