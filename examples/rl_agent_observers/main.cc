// Reinforcement learning with one agent, which has the policy, and observers, which have the
// environments. It follows PyTorch's tutorial "Getting Started with Distributed RPC Framework". In
// this version the agent can choose actions for many observers in one forward pass.
//
//   weft_launch -n 5 --on-failure continue -- rl_agent_observers          (or torchrun --no-python)
//
// Rank 0 is the agent, all others are observers. The agent prints a line for each update and at the
// end
//
//   solved CartPole-v1 after 1012 episodes, 201345 steps, 9.8 s: 4 observers, mean batch 3.1
//
// If an observer dies, the agent goes on without it. An observer that starts later takes part.
// README.md says how to try both.
#include <chrono>
#include <map>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/examples/rl_agent_observers/training.h"
#include "weft/examples/support/command_line.h"
#include "weft/worker/run_main.h"
#include "weft/worker/stop_request.h"
#include "weft/worker/worker.h"

namespace weft::examples {

// For the agent to join, to begin, and to shut down.
constexpr std::chrono::seconds kPatience{60};

int run(int argc, char** argv) {
  TrainingOptions options;
  const std::map<std::string, CallShape> shapes{{"two-calls", CallShape::kTwoCalls},
                                                {"one-call", CallShape::kOneCall},
                                                {"batched", CallShape::kBatched}};
  CLI::App app("An agent that learns to balance a pole from many observers");
  CLI::Option* calls = app.add_option("--calls", options.shape, "two-calls, one-call or batched");
  calls->transform(CLI::CheckedTransformer(shapes));
  app.add_option("--environments", options.environments, "of each observer")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "of each environment in one run of an observer")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "after which it is an error not to have solved it")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_option("--updates", options.updates, "of the policy; 0: until the task is solved")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", options.agent.seed)->capture_default_str();
  app.add_flag("--deterministic", options.deterministic,
               "observers in lockstep, in batches: the same curve each time")
      ->excludes(calls);
  if (const auto end = parse_command_line(app, argc, argv)) return end->print();

  WorkerOptions worker_options = WorkerOptions::from_env();
  const LaunchEnvironment& place = worker_options.place;
  const bool leads = place.rank == 0;
  worker_options.name = leads ? "agent" : absl::StrFormat("observer%03d", place.rank);
  worker_options.dynamic = true;
  if (options.deterministic) {
    if (place.world_size < 2) throw std::runtime_error("--deterministic needs an observer");
    options.agent.lockstep = place.world_size - 1;
  }
  Worker worker = Worker::join(std::move(worker_options));
  bool complete = true;
  if (leads) {
    expect_stop_requests();  // SIGTERM ends an observer, and the agent misses it
    complete = Training(worker, options).run();
  } else {  // the agent calls this worker
    worker.wait_for("agent", kPatience);
    worker.wait_until_gone("agent", std::chrono::seconds(options.seconds) + 2 * kPatience);
  }
  worker.shutdown();
  return complete ? 0 : kStoppedExitCode;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
