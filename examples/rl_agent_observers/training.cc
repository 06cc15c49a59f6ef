#include "weft/examples/rl_agent_observers/training.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/rpc_error.h"
#include "weft/examples/support/must.h"
#include "weft/worker/stop_request.h"

namespace weft::examples {
namespace {

constexpr int kMostFailures = 3;  // of an observer's runs, before it is given up
constexpr Nanoseconds kLook = std::chrono::seconds(1);  // how often it looks whether it must end

// Writes a whole line at once, because another thread reports updates.
void say(std::string line) { std::cout << (line += "\n") << std::flush; }

}  // namespace

Training::Training(Worker& worker, const TrainingOptions& options)
    : worker_(worker),
      options_(options),
      events_(worker.member_events()),
      agent_(make_rref(
          std::make_unique<Agent>(options.agent, [](const auto& now) { say(now.to_string()); }))),
      local_(agent_.local_value()) {}

bool Training::run() {
  TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options_.seconds);
  bool ending = false;
  while (!stop_requested() && (!enough() || running_ > 0)) {
    if (enough() && !std::exchange(ending, true)) {
      deadline = std::min(deadline, std::chrono::steady_clock::now() +
                                        std::chrono::seconds(options_.grace_seconds));
    }
    const Nanoseconds left = deadline - std::chrono::steady_clock::now();
    if (left <= Nanoseconds(0)) {
      if (enough()) break;
      throw std::runtime_error(absl::StrCat("not solved within ", options_.seconds,
                                            " s: ", local_.progress().now().to_string()));
    }
    const auto event = events_.next(std::min(left, kLook));
    must(local_.status());
    must(worker_.standing());
    if (event) handle(*event);
    take_back_runs();
    if (!enough()) send_out();
  }
  for (const auto& [id, member] : members_) {
    if (member.run.valid()) member.run.cancel();
  }
  say_result();
  return enough();
}

bool Training::enough() const {
  return local_.progress().solved() ||
         (options_.updates > 0 && local_.progress().now().updates >= options_.updates);
}

void Training::handle(const MemberEvent& event) {
  if (event.change == MemberChange::kJoined) {
    add(event.worker);
    return;
  }
  const auto member = members_.find(event.worker.id);
  // An observer that runs reports its end through its run.
  if (member != members_.end() && !member->second.run.valid()) miss(event.worker, event.reason);
}

void Training::add(const WorkerInfo& info) {
  const size_t lockstep = options_.agent.lockstep;
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

void Training::miss(const WorkerInfo& info, const absl::Status& why) {
  say(absl::StrCat(info.name, " is missed: ", why.ok() ? "it has left" : why.message()));
  local_.forget(info.id);
  members_.erase(info.id);
  if (options_.deterministic && !stop_requested()) {
    throw std::runtime_error(absl::StrCat("the lockstep has lost ", info.name));
  }
}

void Training::send_out() {
  const size_t lockstep = options_.agent.lockstep;
  if (lockstep > 0 && (running_ > 0 || members_.size() < lockstep)) return;
  for (auto& [id, member] : members_) {
    if (member.run.valid()) continue;
    ++running_;
    member.run = member.observer.with({.timeout = absl::InfiniteDuration()})
                     .rpc_async(&Observer::run, agent_, options_.shape, options_.steps);
    (void)member.run.then([events = events_](const Future<at::Tensor>&) { events.wake(); });
  }
}

void Training::take_back_runs() {
  for (auto next = members_.begin(); next != members_.end();) {
    Member& member = (next++)->second;  // first, because take_back may erase it
    if (member.run.valid() && member.run.done()) take_back(member);
  }
}

void Training::take_back(Member& member) {
  --running_;
  const WorkerInfo info = member.info;
  const absl::Status outcome = std::exchange(member.run, {}).result().status();
  if (outcome.ok()) return;
  must(worker_.standing());
  miss(info, outcome);
  // If it is alive, it begins anew, unless it fails every time.
  if (!absl::IsUnavailable(outcome) && ++failures_[info.id] < kMostFailures) add(info);
}

void Training::say_result() const {
  const auto solved = local_.progress().solved();
  const EpisodeProgress::Now now = solved ? *solved : local_.progress().now();
  say(absl::StrFormat("%s after %d episodes, %d steps, %.1f s: %d observer%s, mean batch %.1f",
                      solved ? "solved CartPole-v1" : "stopped", now.episodes, now.steps,
                      now.seconds, members_.size(), members_.size() == 1 ? "" : "s",
                      local_.batches().mean()));
}

}  // namespace weft::examples
