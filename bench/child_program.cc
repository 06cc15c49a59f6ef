#include "weft/bench/child_program.h"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <signal.h>
#include <sys/prctl.h>

#include "weft/base/freed_memory.h"
#include "weft/bench/contestants/child.h"
#include "weft/bench/contestants/contestants.h"
#include "weft/bench/machine.h"
#include "weft/bench/processes/child_process.h"

namespace weft::bench {
namespace {

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
  run_rank(driver, *contestant.make_rank(options.rank, options.ranks), ddp_rows(), clock);
}

int run_as_worker(const RankContestant& contestant, const ChildOptions& options) {
  Channel driver(kDriverSocket);
  SystemClock clock;
  run_rank(driver, *contestant.make_rank(options.rank, options.ranks), worker_rows(options.ranks),
           clock);
  std::_Exit(EXIT_SUCCESS);  // see run_child_of
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

}  // namespace

int run_child(const ChildOptions& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a stopped child would not notice that the driver died
  keep_freed_memory();  // Weft's workers do it themselves; malloc must make no difference
  if (options.processor >= 0) {
    if (const absl::Status pinned = pin_to_processor(options.processor); !pinned.ok()) {
      std::cerr << pinned << "\n";
      return EXIT_FAILURE;
    }
  }
  for (const WeftMode mode :
       {WeftMode::kDefault, WeftMode::kTcp, WeftMode::kUnix, WeftMode::kMtls}) {
    if (options.role == "rank" && options.name == kWorkersChild + name_of(mode)) {
      return run_as_worker(weft_workers(mode), options);
    }
  }
  if (options.role == "rank") {
    return run_child_of(collective_contestants(std::chrono::microseconds(options.spin_us)),
                        options);
  }
  if (options.role == "leader" || options.role == "member") {
    return run_in_crowd(options.name == kPipelineChild ? weft_pipeline() : weft_rl(), options);
  }
  std::vector<Contestant> all = call_contestants();
  for (Contestant& one : security_contestants()) all.push_back(std::move(one));
  return run_child_of(std::move(all), options);
}

}  // namespace weft::bench
