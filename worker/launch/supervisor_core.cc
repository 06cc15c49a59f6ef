#include "weft/worker/launch/supervisor_core.h"

#include <algorithm>
#include <signal.h>

namespace weft::launch {

SupervisorCore::SupervisorCore(const SupervisorOptions& options)
    : options_(options), processes_(options.processes) {}

std::vector<Action> SupervisorCore::start() {
  std::vector<Action> actions;
  for (uint32_t rank = 0; rank < processes_.size(); ++rank) {
    processes_[rank].running = true;
    ++running_;
    actions.push_back({Action::Kind::kStart, rank, 0, 0});
  }
  return actions;
}

std::vector<Action> SupervisorCore::on_exit(uint32_t rank, ExitStatus status, TimePoint now) {
  Process& process = processes_[rank];
  process.running = false;
  --running_;
  if (running_ == 0) deadline_.reset();
  if (status.ok()) return {};

  const bool may_restart = options_.on_failure == FailurePolicy::kRestart && !stopping_ &&
                           process.restarts < options_.max_restarts;
  if (may_restart) {
    process.running = true;
    ++process.restarts;
    ++running_;
    return {{Action::Kind::kStart, rank, process.restarts, 0}};
  }
  if (exit_code_ == 0) exit_code_ = status.shell_code();
  if (stopping_ || options_.on_failure == FailurePolicy::kContinue) return {};
  return stop_all(SIGTERM, now);
}

std::vector<Action> SupervisorCore::on_start_failed(uint32_t rank, int code, TimePoint now) {
  processes_[rank].running = false;
  --running_;
  if (exit_code_ == 0) exit_code_ = code;
  return stop_all(SIGTERM, now);
}

std::vector<Action> SupervisorCore::on_signal(int signal, TimePoint now) {
  std::vector<Action> actions;
  if (signal == SIGINT && interrupted_) {
    stopping_ = true;
    signal_all(SIGKILL, actions);
    return actions;
  }
  interrupted_ = interrupted_ || signal == SIGINT;
  return stop_all(signal, now);
}

std::vector<Action> SupervisorCore::on_group_failure(int code, TimePoint now) {
  if (exit_code_ == 0) exit_code_ = code;
  if (stopping_) return {};
  return stop_all(SIGTERM, now);
}

std::vector<Action> SupervisorCore::on_time(TimePoint now) {
  std::vector<Action> actions;
  if (!deadline_ || now < *deadline_) return actions;
  deadline_.reset();
  signal_all(SIGKILL, actions);
  return actions;
}

bool SupervisorCore::asked_for(ExitStatus status) const {
  if (!stopping_) return status.ok();
  return status.ok() || std::any_of(sent_.begin(), sent_.end(), [&](int signal) {
           return status.shell_code() == 128 + signal;
         });
}

// The grace period counts from the first reason to stop, so later signals do not prolong it.
std::vector<Action> SupervisorCore::stop_all(int signal, TimePoint now) {
  std::vector<Action> actions;
  if (!stopping_ && running_ > 0) deadline_ = now + options_.grace;
  stopping_ = true;
  signal_all(signal, actions);
  return actions;
}

void SupervisorCore::signal_all(int signal, std::vector<Action>& actions) {
  sent_.push_back(signal);
  for (uint32_t rank = 0; rank < processes_.size(); ++rank) {
    if (processes_[rank].running) actions.push_back({Action::Kind::kSignal, rank, 0, signal});
  }
}

}  // namespace weft::launch
