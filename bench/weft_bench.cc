// Measures Weft, its peers and the floors of the machine. It prints a table of ratios with
// intervals, and writes JSON.
//
//   weft_bench rpc --json result.json               all rows, 15 rounds of 0.3 s blocks
//   weft_bench rpc --pin --json result.json         client and server on a processor each
//   weft_bench rpc --workers 64 --json result.json  2, 8, 32 and 64 workers that call each other
//   weft_bench ddp --json result.json               collectives, and their part of a training step
//
//   weft_bench rl --json result.json                an agent and its observers
//   weft_bench pipeline --json result.json          ResNet50 in two shards, in micro-batches
//
//   weft_bench ddp --runs 5 --json result.json      the spread from run to run as well
//   weft_bench rpc --quick --rows "small call"      a look in seconds, too short to report
//
//   weft_bench rpc --beside before=OLD/weft_bench   another build of this program as one more peer
//
// The rows are listed in rows.cc, the contestants in contestants/contestants.cc.
#include <random>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "weft/bench/child_program.h"
#include "weft/bench/comparison.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/suites.h"

namespace weft::bench {
namespace {

constexpr char kRpcFooter[] =
    "Modes of Weft: \"weft\" is compared with \"torch shm\" and \"memcpy\". \"weft blocking\" "
    "(rows "
    "\"..., blocking\")\nis compared with \"futex\", and \"weft tcp\" (rows \"..., tcp\") with "
    "\"torch "
    "uv\", the gRPC peers and \"raw tcp\".\nA ratio above 1 says that Weft is better. \"memcpy\", "
    "\"futex\" and \"raw tcp\" are floors of the machine:\nagainst them the ratio is the share "
    "that "
    "Weft reaches.";

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
  CLI::App app("Measures Weft beside its peers and the floors of the machine.");
  app.require_subcommand(1);

  ComparisonOptions options;
  options.harness.seed = std::random_device{}();
  CLI::App* rpc = app.add_subcommand("rpc", "remote calls, references and autograd");
  add_comparison_options(*rpc, options);
  rpc->add_option("--idle", options.harness.idle_seconds, "seconds of the idle row")
      ->capture_default_str();
  rpc->add_flag("--pin", options.pin,
                "clients on processor 0, servers on 1; worker r on r modulo their number");
  int workers = 0;
  rpc->add_option("--workers", workers,
                  "rows of many workers instead: 2, 8, 32, 64 as far as they fit, and this number")
      ->check(CLI::Range(2, kMostWorkers));
  rpc->footer(kRpcFooter);

  CLI::App* security =
      app.add_subcommand("security", "calls over unix sockets and mutual TLS, beside plain TCP");
  add_comparison_options(*security, options);
  security->add_flag("--pin", options.pin,
                     "clients on processor 0, servers on 1; worker r on r modulo their number");
  int secure_workers = 0;
  security
      ->add_option("--workers", secure_workers,
                   "instead: joining, and calls of so many workers to all others")
      ->check(CLI::Range(2, kMostWorkers));

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
  if (security->parsed()) {
    options.subject = kSecuritySubject;
    return run_comparison(secure_workers > 0
                              ? workers_suite(secure_workers, options.pin,
                                              {WeftMode::kTcp, WeftMode::kUnix, WeftMode::kMtls})
                              : security_suite(options.pin),
                          options);
  }
  if (rl->parsed()) return run_comparison(rl_suite(rl_options), options);
  if (pipeline->parsed()) return run_comparison(pipeline_suite(pipeline_options), options);
  if (ddp->parsed()) return run_comparison(ddp_suite(ddp_options, options.pin), options);
  return run_comparison(
      workers > 0 ? workers_suite(workers, options.pin) : calls_suite(options.pin), options);
}

}  // namespace
}  // namespace weft::bench

int main(int argc, char** argv) { return weft::bench::run(argc, argv); }
