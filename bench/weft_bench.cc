// Measures Weft beside its peers: `weft_bench rpc` prints a table of ratios with intervals.
//
//   weft_bench rpc --json result.json               all rows, 15 rounds of 0.3 s blocks
//   weft_bench rpc --quick --rows "small call"      a look in seconds, too short to report
//   weft_bench rpc --beside before=OLD/weft_bench   another build of this program as one more peer
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "weft/bench/contestants/child.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/harness.h"
#include "weft/bench/machine.h"
#include "weft/bench/pair.h"
#include "weft/bench/report.h"

namespace weft::bench {
namespace {

struct CompareOptions {
  std::string json_file;
  std::vector<std::string> rows;
  std::vector<std::string> contestants;
  std::string subject = "weft";
  std::vector<std::string> beside;  // NAME=PROGRAM
  Harness::Options harness;
  bool quick = false;
  bool pin = false;
  bool busy = false;
};

struct ChildOptions {
  std::string name;
  std::string role;
  int processor = -1;
};

std::vector<Contestant> all_contestants() {
  return {weft_contestant(Waiting::kSpinning), weft_contestant(Waiting::kBlocking),
          torch_contestant("uv"), torch_contestant("shm"), grpc_contestant()};
}

// One computing thread per processor, as in training; ends with the process.
void keep_processors_busy() {
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    std::thread([] {
      volatile double sink = 1;
      for (;;) sink = sink * 1.0000001;
    }).detach();
  }
}

int run_child(const ChildOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped child would not see the driver's end otherwise
  if (options.processor >= 0) {
    if (const absl::Status pinned = pin_to_processor(options.processor); !pinned.ok()) {
      std::cerr << pinned << "\n";
      return EXIT_FAILURE;
    }
  }
  Channel driver(kDriverSocket);
  for (const Contestant& contestant : all_contestants()) {
    if (contestant.name != options.name) continue;
    if (options.role == "server") {
      run_server(driver, *contestant.make_server());
    } else {
      SystemClock clock;
      run_client(driver, *contestant.make_client(), clock);
    }
    // Libraries' threads and static objects end in no useful order.
    std::_Exit(EXIT_SUCCESS);
  }
  std::cerr << "no contestant \"" << options.name << "\"\n";
  return EXIT_FAILURE;
}

// The contestants that were asked for, all when none was named; the subject must be among them.
absl::StatusOr<std::vector<Contestant>> select_contestants(const CompareOptions& options) {
  std::vector<Contestant> all = all_contestants();
  std::vector<std::string> known;
  for (const Contestant& contestant : all) known.push_back(contestant.name);
  std::vector<std::string> asked = options.contestants.empty() ? known : options.contestants;
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
  std::erase_if(all, [&](const Contestant& contestant) {
    return std::find(asked.begin(), asked.end(), contestant.name) == asked.end();
  });
  return all;
}

// Starts the contestants; false when one of them does not start.
bool start_pairs(const std::vector<Contestant>& contestants, bool pin,
                 std::vector<std::unique_ptr<Pair>>& pairs) {
  bool all_started = true;
  for (const Contestant& contestant : contestants) {
    auto pair = std::make_unique<ProcessPair>(
        ProcessPair::Options{.name = contestant.name,
                             .spins_when_idle = contestant.spins_when_idle,
                             .pin = pin,
                             .program = std::filesystem::read_symlink("/proc/self/exe")});
    if (const absl::Status started = pair->start(); !started.ok()) {
      std::cerr << contestant.name << " does not start: " << started << "\n";
      all_started = false;
      continue;
    }
    pairs.push_back(std::move(pair));
  }
  return all_started;
}

// Other builds of this program, each measured as its "weft".
bool start_beside(const CompareOptions& options, std::vector<std::unique_ptr<Pair>>& pairs) {
  for (const std::string& entry : options.beside) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      std::cerr << "--beside " << entry << ": not NAME=PROGRAM\n";
      return false;
    }
    auto pair =
        std::make_unique<ProcessPair>(ProcessPair::Options{.name = entry.substr(0, equals),
                                                           .pin = options.pin,
                                                           .program = entry.substr(equals + 1),
                                                           .child_name = "weft"});
    if (const absl::Status started = pair->start(); !started.ok()) {
      std::cerr << pair->name() << " does not start: " << started << "\n";
      return false;
    }
    pairs.push_back(std::move(pair));
  }
  return true;
}

void print_conditions(const CompareOptions& options) {
  const Harness::Options& harness = options.harness;
  std::printf("%d rounds of %.2f s blocks in random order, seed %llu; %u processors, %s, %s%s\n",
              harness.rounds, harness.block_seconds, static_cast<unsigned long long>(harness.seed),
              std::thread::hardware_concurrency(),
              options.pin ? "client and server pinned" : "not pinned",
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

int run_comparison(CompareOptions options) {
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
  const absl::StatusOr<std::vector<Row>> rows = select_rows(options.rows);
  const absl::StatusOr<std::vector<Contestant>> contestants = select_contestants(options);
  for (const absl::Status& status :
       {rows.status(), contestants.status(), options.harness.validate()}) {
    if (!status.ok()) {
      std::cerr << status.message() << "\n";
      return EXIT_FAILURE;
    }
  }

  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1);
  print_conditions(options);
  std::vector<std::unique_ptr<Pair>> pairs;
  all_well =
      start_pairs(*contestants, options.pin, pairs) && start_beside(options, pairs) && all_well;
  if (options.busy) keep_processors_busy();
  Harness harness(pairs, options.harness);
  std::vector<RowResult> results;
  std::vector<Comparison> comparisons;
  for (const Row& row : *rows) {
    std::cerr << row.name << " ...\n";
    results.push_back(harness.run(row));
    for (Comparison& line : compare(results.back(), options.subject, options.harness.seed)) {
      comparisons.push_back(std::move(line));
    }
  }
  std::cout << "\n"
            << comparison_table(comparisons, options.subject) << "\n"
            << cost_table(results);
  if (!options.json_file.empty()) all_well = write_json(options.json_file, comparisons) && all_well;
  return all_well ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run(int argc, char** argv) {
  CLI::App app("Measures Weft beside its peers.");
  app.require_subcommand(1);

  CompareOptions options;
  options.harness.seed = std::random_device{}();
  CLI::App* compare_command = app.add_subcommand("rpc", "remote calls, references and autograd");
  compare_command->add_option("--json", options.json_file, "write the ratios to this file");
  compare_command->add_option("--rows", options.rows, "only these rows, separated by commas")
      ->delimiter(',');
  compare_command
      ->add_option("--contestants", options.contestants, "only these, separated by commas")
      ->delimiter(',');
  compare_command->add_option("--beside", options.beside,
                              "NAME=PROGRAM, another build of this program as a peer; repeatable");
  compare_command->add_option("--subject", options.subject, "whose ratios are told")
      ->capture_default_str();
  compare_command->add_option("--rounds", options.harness.rounds, "counted rounds")
      ->capture_default_str();
  compare_command->add_option("--block", options.harness.block_seconds, "seconds of one block")
      ->capture_default_str();
  compare_command->add_option("--idle", options.harness.idle_seconds, "seconds of the idle row")
      ->capture_default_str();
  compare_command->add_option("--seed", options.harness.seed, "of the random order");
  compare_command->add_flag("--pin", options.pin, "clients on processor 0, servers on 1");
  compare_command->add_flag("--busy", options.busy, "one computing thread per processor beside");
  compare_command->add_flag("--quick", options.quick, "3 rounds of 0.1 s: a look, not a result");

  ChildOptions child;
  CLI::App* child_command = app.add_subcommand("contestant")->group("");
  child_command->add_option("--name", child.name)->required();
  child_command->add_option("--role", child.role)->required();
  child_command->add_option("--processor", child.processor);

  CLI11_PARSE(app, argc, argv);
  return child_command->parsed() ? run_child(child) : run_comparison(std::move(options));
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run(argc, argv); }
