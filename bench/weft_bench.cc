// Measures Weft and its peers. It prints a table of ratios with intervals, and writes JSON.
//
//   weft_bench rpc --json result.json               all rows, 15 rounds of 0.3 s blocks
//   weft_bench ddp --json result.json               collectives, and their part of a training step
//
//   weft_bench rl --json result.json                an agent and its observers
//   weft_bench pipeline --json result.json          ResNet50 in two shards, in micro-batches
//
//   weft_bench ddp --runs 5 --json result.json      the spread from run to run as well
//   weft_bench rpc --quick --rows "small call"      a look in seconds, too short to report
//
//   weft_bench rpc --beside before=OLD/weft_bench   another build of this program as one more peer
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "weft/base/freed_memory.h"
#include "weft/bench/comparison.h"
#include "weft/bench/contestants/child.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/machine.h"
#include "weft/bench/processes/crowd.h"
#include "weft/bench/processes/pair.h"
#include "weft/bench/processes/rank_group.h"

namespace weft::bench {
namespace {

constexpr char kTorchDdp[] = "torch ddp";  // a program of its own, only for the step of two ranks
constexpr int kTorchDdpRanks = 2;

constexpr char kTorchPython[] = "torch python";
constexpr char kTorchBatched[] = "torch batched";
constexpr char kPipelineChild[] = "weft pipeline";
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

struct PythonOptions {
  std::string python = WEFT_SOURCE_DIR "/.deps/oracles/bin/python";
};

struct RlSuiteOptions : PythonOptions {
  int observers = kMostObservers;  // the number of observer processes; rows with more are left out
  int torch_observers = 16;        // of the peers; each is a Python process with torch, 300 MB
};

struct DdpSuiteOptions : PythonOptions {
  int spin_us = 100;
};

struct ChildOptions {
  std::string name;
  std::string role;
  int processor = -1;
  int rank = 0;
  int ranks = 2;
  int spin_us = 0;
};

std::vector<Contestant> all_contestants() {
  return {weft_contestant(Waiting::kSpinning),
          weft_contestant(Waiting::kBlocking),
          torch_contestant("uv"),
          torch_contestant("shm"),
          grpc_contestant(),
          grpc_stream_contestant()};
}

std::vector<RankContestant> all_rank_contestants(std::chrono::microseconds spin) {
  return {weft_ranks("weft", spin, Memory::kResident),
          weft_ranks("weft blocking", std::chrono::microseconds(0), Memory::kResident),
          weft_ranks("weft copied", spin, Memory::kCopied), gloo_ranks()};
}

void run_as(const Contestant& contestant, const ChildOptions& options, Channel& driver) {
  if (options.role == "server") {
    run_server(driver, *contestant.make_server());
  } else {
    SystemClock clock;
    run_client(driver, *contestant.make_client(), clock);
  }
}

void run_as(const RankContestant& contestant, const ChildOptions& options, Channel& driver) {
  SystemClock clock;
  run_rank(driver, *contestant.make_rank(options.rank, options.ranks), clock);
}

template <class Contestants>
int run_child_of(const Contestants& contestants, const ChildOptions& options) {
  Channel driver(kDriverSocket);
  for (const auto& contestant : contestants) {
    if (contestant.name != options.name) continue;
    run_as(contestant, options, driver);
    // Do not run static destructors: the order in which libraries' threads stop is undefined.
    std::_Exit(EXIT_SUCCESS);
  }
  std::cerr << "no contestant \"" << options.name << "\"\n";
  return EXIT_FAILURE;
}

int run_in_crowd(const CrowdContestant& contestant, const ChildOptions& options) {
  Channel driver(kDriverSocket);
  if (options.role == "leader") {
    run_leader(driver, *contestant.make_leader(), *contestant.rows);
  } else {
    run_member(driver, *contestant.make_member());
  }
  std::_Exit(EXIT_SUCCESS);  // see run_child_of
}

int run_child(const ChildOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped child would not notice that the driver died
  keep_freed_memory();  // Weft's workers do it themselves; malloc must make no difference
  if (options.processor >= 0) {
    if (const absl::Status pinned = pin_to_processor(options.processor); !pinned.ok()) {
      std::cerr << pinned << "\n";
      return EXIT_FAILURE;
    }
  }
  if (options.role == "rank") {
    return run_child_of(all_rank_contestants(std::chrono::microseconds(options.spin_us)), options);
  }
  if (options.role == "leader" || options.role == "member") {
    return run_in_crowd(options.name == kPipelineChild ? weft_pipeline() : weft_rl(), options);
  }
  return run_child_of(all_contestants(), options);
}

Suite rpc_suite(bool pin) {
  Suite suite{.rows = rpc_rows(), .contestants = {}, .make_group = {}, .compare = compare};
  std::vector<std::string> spinning;
  for (const Contestant& contestant : all_contestants()) {
    suite.contestants.push_back(contestant.name);
    if (contestant.spins_when_idle) spinning.push_back(contestant.name);
  }
  suite.make_group = [spinning, pin](const Entrant& entrant, int) {
    return std::make_unique<ProcessPair>(ProcessPair::Options{
        .name = entrant.name,
        .spins_when_idle =
            std::find(spinning.begin(), spinning.end(), entrant.child_name) != spinning.end(),
        .pin = pin,
        .program = entrant.program,
        .child_name = entrant.child_name});
  };
  return suite;
}

Suite ddp_suite(const DdpSuiteOptions& options, bool pin) {
  Suite suite{.rows = ddp_rows(), .contestants = {}, .make_group = {}, .compare = compare_modes};
  for (const RankContestant& contestant :
       all_rank_contestants(std::chrono::microseconds(options.spin_us))) {
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

void add_comparison_options(CLI::App& command, ComparisonOptions& options,
                            char between_rows = ',') {
  command.add_option("--json", options.json_file, "write the ratios to this file");
  command
      .add_option("--rows", options.rows,
                  absl::StrCat("only these rows, with ", std::string(1, between_rows), " between"))
      ->delimiter(between_rows);
  command.add_option("--contestants", options.contestants, "only these, separated by commas")
      ->delimiter(',');
  command.add_option("--beside", options.beside,
                     "NAME=PROGRAM, another build of this program as a peer; repeatable");
  command.add_option("--subject", options.subject, "whose ratios are told")->capture_default_str();
  command.add_option("--rounds", options.harness.rounds, "counted rounds")->capture_default_str();
  command
      .add_option("--runs", options.runs, "times that all is measured, by processes started anew")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--block", options.harness.block_seconds, "seconds of one block")
      ->capture_default_str();
  command.add_option("--seed", options.harness.seed, "of the random order");
  command.add_flag("--busy", options.busy, "one computing thread per processor beside");
  command.add_flag("--quick", options.quick, "3 rounds of 0.1 s: a look, not a result");
}

int run(int argc, char** argv) {
  CLI::App app("Measures Weft beside its peers.");
  app.require_subcommand(1);

  ComparisonOptions options;
  options.harness.seed = std::random_device{}();
  CLI::App* rpc = app.add_subcommand("rpc", "remote calls, references and autograd");
  add_comparison_options(*rpc, options);
  rpc->add_option("--idle", options.harness.idle_seconds, "seconds of the idle row")
      ->capture_default_str();
  rpc->add_flag("--pin", options.pin, "clients on processor 0, servers on 1");

  DdpSuiteOptions ddp_options;
  CLI::App* ddp = app.add_subcommand("ddp", "collectives on one host, and a training step");
  add_comparison_options(*ddp, options);
  ddp->add_option("--spin-us", ddp_options.spin_us, "how long \"weft\" looks before it sleeps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  ddp->add_option("--python", ddp_options.python, "with a torch, for \"torch ddp\"")
      ->capture_default_str();
  ddp->add_flag("--pin", options.pin, "rank r on processor r modulo their number");

  RlSuiteOptions rl_options;
  CLI::App* rl = app.add_subcommand("rl", "an agent that chooses actions for its observers");
  add_comparison_options(*rl, options, '/');
  rl->add_option("--observers", rl_options.observers, "processes of them, at most")
      ->check(CLI::Range(1, kMostObservers))
      ->capture_default_str();
  rl->add_option("--python", rl_options.python, "with a torch, for \"torch python\"")
      ->capture_default_str();

  rl->add_option("--torch-observers", rl_options.torch_observers,
                 "processes of them for \"torch python\" and \"torch batched\", at most")
      ->check(CLI::Range(1, kMostObservers))
      ->capture_default_str();

  PythonOptions pipeline_options;
  CLI::App* pipeline = app.add_subcommand("pipeline", "ResNet50 in two shards, in micro-batches");
  add_comparison_options(*pipeline, options);
  pipeline->add_option("--python", pipeline_options.python, "with a torch, for \"torch python\"")
      ->capture_default_str();

  ChildOptions child;
  CLI::App* child_command = app.add_subcommand("contestant")->group("");
  child_command->add_option("--name", child.name)->required();
  child_command->add_option("--role", child.role)->required();
  child_command->add_option("--processor", child.processor);
  child_command->add_option("--rank", child.rank);
  child_command->add_option("--ranks", child.ranks);
  child_command->add_option("--spin-us", child.spin_us);

  CLI11_PARSE(app, argc, argv);
  if (child_command->parsed()) return run_child(child);
  if (rl->parsed()) return run_comparison(rl_suite(rl_options), options);
  if (pipeline->parsed()) return run_comparison(pipeline_suite(pipeline_options), options);
  return run_comparison(
      ddp->parsed() ? ddp_suite(ddp_options, options.pin) : rpc_suite(options.pin), options);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run(argc, argv); }
