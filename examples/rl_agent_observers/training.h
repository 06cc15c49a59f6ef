// The agent's main thread: it keeps every live observer at work until the task is solved.
//
// Thread safety: one thread. Blocking: run. Errors: RpcError, std::runtime_error (not solved in
// time; an observer of the lockstep is gone).
#pragma once

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/rl_agent_observers/agent.h"
#include "weft/examples/rl_agent_observers/events.h"
#include "weft/examples/rl_agent_observers/observer.h"
#include "weft/rref/rref.h"
#include "weft/worker/worker.h"

namespace weft::examples {

inline constexpr int kMostFailures = 3;  // of an observer's runs, before it is given up

struct TrainingOptions {
  CallShape shape = CallShape::kBatched;
  int64_t environments = 1;  // of each observer
  int64_t steps = 500;       // of each environment in one call of Observer::run
  AgentOptions agent;
  bool deterministic = false;
  int64_t seconds = 300;
  int64_t updates = 0;  // 0: until the task is solved
};

// Writes a whole line at once, because another thread reports updates.
inline void say(std::string line) { std::cout << (line += "\n") << std::flush; }

class Training {
 public:
  Training(Worker& worker, const TrainingOptions& options, Events& events)
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
      if (info.id != worker_.id()) events_.push({Events::What::kJoined, info});
    }
    while (!enough() || running_ > 0) {
      const auto event = events_.pop(deadline);
      if (!event && enough()) break;  // runs that are not back by now are not waited for
      if (!event) {
        throw std::runtime_error(absl::StrCat("not solved within ", options_.seconds,
                                              " s: ", local_.progress().now().to_string()));
      }
      if (!local_.status().ok()) throw RpcError(local_.status());
      handle(*event);
      if (!enough()) send_out();
    }
    for (auto& [id, member] : members_) {
      if (member.run.valid()) member.run.cancel();
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
    Future<at::Tensor> run = {};  // invalid while the observer is idle
  };

  void handle(const Events::Event& event) {
    switch (event.what) {
      case Events::What::kJoined:
        add(event.observer);
        break;
      case Events::What::kGone: {  // an observer that runs reports its end through its run
        const auto member = members_.find(event.observer.id);
        if (member != members_.end() && !member->second.run.valid()) {
          miss(event.observer, event.status);
        }
        break;
      }
      case Events::What::kRan:
        take_back(event.observer, event.status);
        break;
    }
  }

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
    members_.at(info.id).run = {};
    if (outcome.ok()) return;
    if (const absl::Status standing = worker_.standing(); !standing.ok()) throw RpcError(standing);
    miss(info, outcome);
    // If it is alive, it begins anew, unless it fails every time.
    if (!absl::IsUnavailable(outcome) && ++failures_[info.id] < kMostFailures) add(info);
  }

  void miss(const WorkerInfo& info, const absl::Status& why) {
    say(absl::StrCat(info.name, " is missed: ", why.ok() ? "it has left" : why.message()));
    local_.forget(info.id);
    members_.erase(info.id);
    if (options_.deterministic) {
      throw std::runtime_error(absl::StrCat("the lockstep has lost ", info.name));
    }
  }

  void send_out() {
    const size_t lockstep = options_.agent.lockstep;
    if (lockstep > 0 && (running_ > 0 || members_.size() < lockstep)) return;
    for (auto& [id, member] : members_) {
      if (member.run.valid()) continue;
      ++running_;
      member.run = member.observer.with({.timeout = absl::InfiniteDuration()})
                       .rpc_async(&Observer::run, agent_, options_.shape, options_.steps);
      (void)member.run.then([&events = events_, info = member.info](const Future<at::Tensor>& run) {
        events.push({Events::What::kRan, info, run.result().status()});
      });
    }
  }
  Worker& worker_;
  const TrainingOptions& options_;
  Events& events_;
  const RRef<Agent> agent_;
  Agent& local_;
  std::map<WorkerId, Member> members_;  // by id: in the order of their ranks
  std::map<WorkerId, int> failures_;
  int64_t next_place_ = 0;
  size_t running_ = 0;
};

}  // namespace weft::examples
