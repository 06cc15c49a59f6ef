// Reinforcement learning with one agent, which has the policy, and observers, which have the
// environments: PyTorch's tutorial "Getting Started with Distributed RPC Framework", with an agent
// that can choose actions for many observers in one forward pass.
//
//   weft_launch -n 5 --on-failure continue -- rl_agent_observers          (or torchrun --no-python)
//
// Rank 0 is the agent, all others are observers. The agent prints a line for each update and at
// last
//
//   solved CartPole-v1 after 1012 episodes, 201345 steps, 9.8 s: 4 observers, mean batch 3.1
//
// An observer that dies is missed, not waited for; one that is started later takes part. README.md
// says how to try both.
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/rl_agent_observers/agent.h"
#include "weft/examples/rl_agent_observers/events.h"
#include "weft/examples/rl_agent_observers/observer.h"
#include "weft/examples/support/command_line.h"
#include "weft/rpc/function.h"
#include "weft/worker/run_main.h"
#include "weft/worker/worker.h"

namespace weft::examples {

constexpr int kMostFailures = 3;  // of a run, before an observer is given up

struct Options {
  CallShape shape = CallShape::kBatched;
  int64_t environments = 1;  // of each observer
  int64_t steps = 500;       // of each environment in one call of Observer::run
  AgentOptions agent;
  bool deterministic = false;
  int64_t seconds = 300;
  int64_t updates = 0;  // 0: until the task is solved
};

constexpr std::chrono::seconds kPatience{60};

// One line at a time: updates are told by another thread.
void say(std::string line) { std::cout << (line += "\n") << std::flush; }

// Keeps every observer that is there at work until the task is solved.
class Training {
 public:
  Training(Worker& worker, const Options& options, Events& events)
      : worker_(worker),
        options_(options),
        events_(events),
        agent_(make_rref(
            std::make_unique<Agent>(options.agent, [](const auto& now) { say(now.to_string()); }))),
        local_(agent_.local_value()) {}

  void run() {
    const TimePoint deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(options_.seconds);
    for (const WorkerInfo& info : worker_.workers()) {
      if (info.id != worker_.id()) events_.push({info, true});
    }
    while (!enough() || running_ > 0) {
      const auto event = events_.pop(deadline);
      if (!event && enough()) break;  // who has not come back by now is not waited for
      if (!event) {
        throw std::runtime_error(absl::StrCat("not solved within ", options_.seconds,
                                              " s: ", local_.progress().now().to_string()));
      }
      if (!local_.status().ok()) throw RpcError(local_.status());
      event->joined ? add(event->observer) : take_back(event->observer, event->run);
      if (!enough()) send_out();
    }
    const auto solved = local_.progress().solved();
    const EpisodeProgress::Now now = solved ? *solved : local_.progress().now();
    say(absl::StrFormat("%s after %d episodes, %d steps, %.1f s: %d observer%s, mean batch %.1f",
                        solved ? "solved CartPole-v1" : "stopped", now.episodes, now.steps,
                        now.seconds, members_.size(), members_.size() == 1 ? "" : "s",
                        local_.batches().mean()));
  }

 private:
  struct Member {
    WorkerInfo info;
    RRef<Observer> observer;
    bool runs = false;
  };

  bool enough() const {
    return local_.progress().solved() ||
           (options_.updates > 0 && local_.progress().now().updates >= options_.updates);
  }

  void add(const WorkerInfo& info) {
    const size_t lockstep = options_.agent.lockstep;
    if (members_.contains(info.id)) return;
    if (lockstep > 0 && members_.size() == lockstep) {
      say(info.name + " comes too late for the lockstep");
      return;
    }
    try {
      RRef<Observer> observer =
          remote<Observer>(info.id, next_place_, options_.environments, options_.agent.seed);
      members_[info.id] = {info, std::move(observer)};
    } catch (const RpcError& error) {  // it has died meanwhile
      return;
    }
    next_place_ += options_.environments;
    say(info.name + " takes part");
  }

  void take_back(const WorkerInfo& info, const absl::Status& outcome) {
    --running_;
    members_.at(info.id).runs = false;
    if (outcome.ok()) return;
    if (const absl::Status standing = worker_.standing(); !standing.ok()) throw RpcError(standing);
    say(absl::StrCat(info.name, " is missed: ", outcome.message()));
    local_.forget(info.id);
    members_.erase(info.id);
    if (options_.deterministic) throw RpcError(outcome);
    // Alive, it begins anew, unless it fails every time.
    if (!absl::IsUnavailable(outcome) && ++failures_[info.id] < kMostFailures) add(info);
  }

  void send_out() {
    const size_t lockstep = options_.agent.lockstep;
    if (lockstep > 0 && (running_ > 0 || members_.size() < lockstep)) return;
    for (auto& [id, member] : members_) {
      if (std::exchange(member.runs, true)) continue;
      ++running_;
      (void)member.observer.with({.timeout = absl::InfiniteDuration()})
          .rpc_async(&Observer::run, agent_, options_.shape, options_.steps)
          .then([&events = events_, info = member.info](const Future<at::Tensor>& waits) {
            events.push({info, false, waits.result().status()});
          });
    }
  }
  Worker& worker_;
  const Options& options_;
  Events& events_;
  const RRef<Agent> agent_;
  Agent& local_;
  std::map<WorkerId, Member> members_;  // in the order of their ranks, as they first joined
  std::map<WorkerId, int> failures_;
  int64_t next_place_ = 0;
  size_t running_ = 0;
};

int run(int argc, char** argv) {
  Options options;
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
  Events events;
  Promise<void> agent_left(nullptr);
  worker_options.on_member_change = [&](const WorkerInfo& info, MemberChange change,
                                        const absl::Status& why) {
    if (leads && change == MemberChange::kJoined) events.push({info, true});
    if (info.name != "agent" || change == MemberChange::kJoined) return;
    change == MemberChange::kLeft ? agent_left.set_value() : agent_left.set_error(why);
  };
  Worker worker = Worker::join(std::move(worker_options));
  if (leads) {
    Training(worker, options, events).run();
  } else {
    worker.wait_for("agent", kPatience);
    agent_left.future().wait();
  }
  worker.shutdown();
  return 0;
}

}  // namespace weft::examples

int main(int argc, char** argv) { return weft::run_main(argc, argv, weft::examples::run); }
