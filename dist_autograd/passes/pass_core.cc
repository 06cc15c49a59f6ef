#include "weft/dist_autograd/passes/pass_core.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "weft/base/faults/breakage.h"
#include "weft/base/status.h"

namespace weft::dist_autograd_internal {

using namespace backward;  // NOLINT: the actions, in the file that gives them

PassCore::PassCore(Setup setup) : setup_(std::move(setup)) {
  for (const Source& source : setup_.sources) {
    sources_.emplace(source.id, SourceState{.peer = source.peer});
  }
  if (initiator()) detector_.expect(setup_.self);
}

void PassCore::start(absl::Duration budget, AutogradActions& out) {
  engage(budget, out);
  if (setup_.mode == BackwardMode::kEager) {
    begin_discovery(out);
  } else {
    ++open_;
    out.push_back(FeedRoots{id()});
  }
}

void PassCore::engage(absl::Duration budget, AutogradActions& out) {
  EngageLocal engage{.pass = id(), .retain_graph = setup_.retain_graph};
  for (const auto& [send, state] : sources_) engage.sources.push_back(send);
  out.push_back(std::move(engage));
  if (budget != absl::InfiniteDuration()) out.push_back(ArmDeadline{id(), budget});
}

PassHeader PassCore::header() const {
  return {.pass = id(), .mode = setup_.mode, .retain_graph = setup_.retain_graph};
}

PassFailure PassCore::failure_here(absl::Status status) const {
  return {.status = std::move(status), .worker = setup_.self};
}

// If the worker is dead, fails the pass and returns false.
bool PassCore::reachable(WorkerId to, AutogradActions& out) {
  if (setup_.dead == nullptr || !setup_.dead->contains(to)) return true;
  PassFailure failure = failure_here(absl::UnavailableError(
      absl::StrCat(id().to_string(), " needs worker ", to.to_string(), ", which is dead")));
  failure.died = to;
  fail(std::move(failure), out);
  return false;
}

// ---- messages

// Counts a received message and takes its reports. Returns false for a repetition, and for every
// message after a failure here; then the message must be ignored.
bool PassCore::take_counted(WorkerId from, uint64_t number, std::vector<PassReport>& reports) {
  if (state_ != State::kRunning || !counts_.count_received(from, number)) return false;
  changed_ = true;
  if (!WEFT_BREAK(carried_reports_dropped)) carry(reports);
  return true;
}

// Keeps the newest report of each worker.
void PassCore::carry(std::vector<PassReport>& reports) {
  for (PassReport& report : reports) {
    if (initiator() && !detector_.update(report.counts)) continue;
    PassReport& known = reports_[report.counts.worker];
    if (known.counts.version < report.counts.version) known = std::move(report);
  }
}

void PassCore::on_message(WorkerId from, GradMessage& message, AutogradActions& out) {
  if (!take_counted(from, message.number, message.reports)) return;
  feed(from, message.entries, out);
  settle(out.size(), out);
}

void PassCore::on_message(WorkerId from, ActivateMessage& message, AutogradActions& out) {
  if (!take_counted(from, message.number, message.reports)) return;
  activate(message.sends, out);
  settle(out.size(), out);
}

void PassCore::on_message(WorkerId from, SealMessage& message, AutogradActions& out) {
  std::vector<PassReport> none;
  if (from != id().initiator || !take_counted(from, message.number, none)) return;
  cancel_inactive(out);
  settle(out.size(), out);
}

void PassCore::on_message(WorkerId, ReportMessage& message, AutogradActions& out) {
  if (state_ != State::kRunning || !initiator()) return;
  carry(message.reports);
  settle(out.size(), out);
}

void PassCore::on_message(WorkerId from, PublishMessage&, AutogradActions& out) {
  if (from == id().initiator) on_decided(true, out);
}

void PassCore::on_message(WorkerId from, FailMessage& message, AutogradActions& out) {
  if (state_ != State::kRunning || !initiator()) return;
  // The abort must reach `from`. Its reports may have been lost with a dead worker that carried
  // them, so the detector may not know it yet.
  detector_.expect(from);
  abort(std::move(message.failure), out);
}

void PassCore::on_message(WorkerId from, AbortMessage& message, AutogradActions& out) {
  if (ended() || initiator() || WEFT_BREAK(abort_not_heard)) return;
  failure_ = std::move(message.failure);
  forward_abort(from, out);
  end(State::kAborted, out);
}

// ---- the local graph

// Whether gradients for this send may be fed: at most once, and only by the holder of the recv.
absl::Status PassCore::check_entry(WorkerId from, const GradEntry& entry) const {
  auto it = sources_.find(entry.send);
  auto text = [&](const std::string& what) {
    return absl::StrCat("worker ", from.to_string(), " sent gradients for ", entry.send.to_string(),
                        what);
  };
  if (it == sources_.end()) {
    if (entry.present.empty()) return absl::OkStatus();  // without gradients: feed() ignores it
    return absl::FailedPreconditionError(
        text(", whose graph is gone: to run backward through it a second time, the first backward "
             "needs retain_graph"));
  }
  // The cancel has already said that nothing comes, so feed() ignores this entry too.
  if (it->second.cancelled && entry.present.empty()) return absl::OkStatus();
  if (it->second.peer != from) {
    return absl::InvalidArgumentError(
        text(absl::StrCat(", which went to worker ", it->second.peer.to_string())));
  }
  if (it->second.fed && !WEFT_BREAK(fed_twice)) return absl::InternalError(text(" twice"));
  if (it->second.cancelled && !WEFT_BREAK(cancelled_send_fed))
    return absl::InternalError(text(", which was cancelled"));
  return absl::OkStatus();
}

// Checks all entries before it moves one, so that a refused message keeps its payloads. The caller
// then destroys the tensors outside the lock.
void PassCore::feed(WorkerId from, std::vector<GradEntry>& entries, AutogradActions& out) {
  for (const GradEntry& entry : entries) {
    absl::Status status = check_entry(from, entry);
    if (!status.ok()) {
      PassFailure failure = failure_here(std::move(status));
      failure.call = entry.send;
      return fail(std::move(failure), out);
    }
    auto it = sources_.find(entry.send);
    if (it != sources_.end() && !it->second.cancelled) it->second.fed = true;
  }
  Feed action{.pass = id(), .from = from};
  for (GradEntry& entry : entries) {
    auto it = sources_.find(entry.send);
    if (it != sources_.end() && it->second.fed) action.entries.push_back(std::move(entry));
  }
  if (action.entries.empty()) return;
  ++open_;
  out.push_back(std::move(action));
}

// A walk from the roots has reached these sends. Earlier passes have used up the graphs of unknown
// ones. If a gradient comes for one of these, feed() refuses it.
void PassCore::activate(const std::vector<SendId>& sends, AutogradActions& out) {
  Discover action{.pass = id()};
  for (const SendId& send : sends) {
    auto it = sources_.find(send);
    if (it == sources_.end() || it->second.active) continue;
    it->second.active = true;
    action.sources.push_back(send);
  }
  if (action.sources.empty()) return;
  ++open_;
  out.push_back(std::move(action));
}

void PassCore::cancel_inactive(AutogradActions& out) {
  sealed_ = true;
  CancelSends action{.pass = id()};
  for (auto& [send, source] : sources_) {
    const bool active = source.active && !WEFT_BREAK(seal_cancels_active);
    if (active || source.fed || source.cancelled) continue;
    source.cancelled = true;
    action.sources.push_back(send);
  }
  if (action.sources.empty()) return;
  ++open_;
  out.push_back(std::move(action));
}

// Whether this entry need not be sent. An entry without gradients tells the worker of the send that
// none will come. After the seal, that worker cancels each send whose recv no walk reached, so it
// needs no such entry.
bool PassCore::needless(const GradEntry& entry) const {
  if (WEFT_BREAK(empty_answers_not_sent)) return entry.present.empty();
  return sealed_ && entry.present.empty() && !reached_.contains(entry.send);
}

void PassCore::on_local_progress(LocalProgress& progress, AutogradActions& out) {
  if (state_ != State::kRunning) return;
  if (progress.done) {
    --open_;
    changed_ = changed_ || waiting_ != progress.waiting;
    waiting_ = progress.waiting;
  }
  const size_t first_new = out.size();
  for (PeerGradients& output : progress.outputs) {
    std::erase_if(output.entries, [this](const GradEntry& entry) { return needless(entry); });
    if (output.entries.empty()) continue;
    if (output.peer == setup_.self) {
      feed(setup_.self, output.entries, out);  // this sends no message, so it counts nothing
    } else if (reachable(output.peer, out)) {
      changed_ = true;
      out.push_back(Send{output.peer, GradMessage{.header = header(),
                                                  .number = counts_.count_sent(output.peer),
                                                  .entries = std::move(output.entries)}});
    }
    if (state_ != State::kRunning) return;
  }
  settle(first_new, out);
}

void PassCore::on_discovered(const std::vector<PeerSends>& reached, AutogradActions& out) {
  if (state_ != State::kRunning) return;
  --open_;
  const size_t first_new = out.size();
  for (const PeerSends& group : reached) {
    reached_.insert(group.sends.begin(), group.sends.end());
    if (group.peer == setup_.self) {
      activate(group.sends, out);
    } else if (reachable(group.peer, out)) {
      changed_ = true;
      out.push_back(Send{group.peer, ActivateMessage{.header = header(),
                                                     .number = counts_.count_sent(group.peer),
                                                     .sends = group.sends}});
    }
    if (state_ != State::kRunning) return;
  }
  settle(first_new, out);
}

void PassCore::on_local_failure(PassFailure failure, AutogradActions& out) {
  if (!failure.worker.valid()) failure.worker = setup_.self;
  fail(std::move(failure), out);
}

void PassCore::on_hold() {
  if (!WEFT_BREAK(holds_not_counted)) ++holds_;
}

void PassCore::on_hold_released(AutogradActions& out) {
  if (!WEFT_BREAK(holds_not_counted)) --holds_;
  if (state_ == State::kRunning) settle(out.size(), out);
}

// ---- idle: a participant reports; the initiator checks whether the pass is quiescent

// Every event that may have made this worker idle calls this last. The actions from `first_new` on
// belong to this event and are not sent yet. So a report can be piggybacked on one of their
// messages.
void PassCore::settle(size_t first_new, AutogradActions& out) {
  if (state_ != State::kRunning || (!idle() && !WEFT_BREAK(reports_while_working))) return;
  if (initiator()) {
    decide_if_quiescent(out);
  } else {
    report_to_initiator(first_new, out);
  }
}

PassReport PassCore::own_report() {
  PassReport report{.counts = counts_.report(setup_.self), .waiting = waiting_};
  if (waiting_ && setup_.mode == BackwardMode::kAllSends) {
    for (const auto& [send, source] : sources_) {
      if (!source.fed && report.unfed.size() < kMaxUnfedListed) report.unfed.push_back(send);
    }
  }
  changed_ = false;
  return report;
}

// If this worker has just sent a counted message, its report is piggybacked on it. The receiver
// becomes active, so later it sends a report or another counted message, with this report. The pass
// cannot be quiescent before the receiver's own report. So nothing is decided later because of
// this.
void PassCore::report_to_initiator(size_t first_new, AutogradActions& out) {
  if (!changed_ && reports_.empty()) return;
  std::vector<PassReport> reports;
  for (auto& [worker, report] : reports_) reports.push_back(std::move(report));
  reports_.clear();
  if (changed_) reports.push_back(own_report());

  std::vector<PassReport>* carrier = nullptr;
  for (size_t i = first_new; i < out.size(); ++i) {
    auto* send = std::get_if<Send>(&out[i]);
    if (send == nullptr) continue;
    std::vector<PassReport>* place = nullptr;
    if (auto* grad = std::get_if<GradMessage>(&send->message)) place = &grad->reports;
    if (auto* activate = std::get_if<ActivateMessage>(&send->message)) place = &activate->reports;
    if (place != nullptr && (carrier == nullptr || send->to == id().initiator)) carrier = place;
  }
  if (carrier != nullptr) {
    *carrier = std::move(reports);
  } else {
    out.push_back(Send{id().initiator, ReportMessage{id(), std::move(reports)}});
  }
}

// ---- the initiator

void PassCore::decide_if_quiescent(AutogradActions& out) {
  PassReport own = own_report();
  detector_.update(own.counts);
  reports_[setup_.self] = std::move(own);
  if (!detector_.quiescent() && !WEFT_BREAK(commits_before_quiescence)) return;
  const bool waiting = std::any_of(reports_.begin(), reports_.end(),
                                   [](const auto& report) { return report.second.waiting; });
  switch (phase_) {
    case Phase::kFeed:
      if (!waiting || WEFT_BREAK(commits_while_waiting)) return commit(out);
      if (setup_.mode != BackwardMode::kAllSends) return begin_discovery(out);
      return abort(failure_here(absl::FailedPreconditionError(absl::StrCat(
                       "backward in mode all_sends waits for calls that the loss does not use: ",
                       unfed_calls()))),
                   out);
    case Phase::kDiscover:
      return seal(out);
    case Phase::kSealed:
      if (!waiting || WEFT_BREAK(commits_while_waiting_sealed)) return commit(out);
      return abort(failure_here(absl::InternalError(absl::StrCat(
                       id().to_string(), " holds gradients that nothing can release"))),
                   out);
  }
}

std::string PassCore::unfed_calls() const {
  std::vector<std::string> calls;
  for (const auto& [worker, report] : reports_) {
    for (const SendId& send : report.unfed) {
      calls.push_back(absl::StrCat(send.to_string(), " on ", worker.to_string()));
    }
  }
  return absl::StrJoin(calls, ", ");
}

void PassCore::begin_discovery(AutogradActions& out) {
  phase_ = Phase::kDiscover;
  ++open_;
  out.push_back(Discover{.pass = id(), .from_roots = true});
}

// Discovery is complete on all workers: sends that it did not reach will get nothing.
void PassCore::seal(AutogradActions& out) {
  phase_ = Phase::kSealed;
  for (WorkerId worker : others()) {
    if (worker == others().back() && WEFT_BREAK(seal_misses_one)) continue;
    if (!reachable(worker, out)) return;
    out.push_back(Send{worker, SealMessage{id(), counts_.count_sent(worker)}});
  }
  cancel_inactive(out);
  if (setup_.mode == BackwardMode::kEager) {
    ++open_;
    out.push_back(FeedRoots{id()});
  }
  settle(out.size(), out);
}

void PassCore::commit(AutogradActions& out) {
  for (WorkerId worker : others()) {
    if (WEFT_BREAK(commit_not_published)) break;
    out.push_back(Send{worker, PublishMessage{.pass = id()}});
  }
  end(State::kCommitted, out);
}

// All workers that are known to be engaged, except this one and the dead.
std::vector<WorkerId> PassCore::others() const {
  std::set<WorkerId> all;
  for (WorkerId worker : detector_.workers()) all.insert(worker);
  for (WorkerId worker : counts_.peers()) all.insert(worker);
  all.erase(setup_.self);
  if (setup_.dead != nullptr) {
    for (WorkerId worker : *setup_.dead) all.erase(worker);
  }
  return {all.begin(), all.end()};
}

// ---- failure and end

void PassCore::fail(PassFailure failure, AutogradActions& out) {
  if (state_ != State::kRunning) return;
  if (initiator()) return abort(std::move(failure), out);
  state_ = State::kFailed;
  failure_ = failure;
  out.push_back(StopLocal{id()});
  out.push_back(Send{id().initiator, FailMessage{id(), std::move(failure)}});
}

// Only at the initiator.
void PassCore::abort(PassFailure failure, AutogradActions& out) {
  failure_ = std::move(failure);
  for (WorkerId worker : others()) out.push_back(Send{worker, AbortMessage{id(), failure_}});
  end(State::kAborted, out);
}

// An abort follows the gradients. This worker sends it to every worker that it may have engaged,
// because the initiator may not know that they are engaged.
void PassCore::forward_abort(WorkerId except, AutogradActions& out) {
  for (WorkerId worker : counts_.receivers()) {
    if (WEFT_BREAK(abort_not_passed_on)) break;
    if (worker == except || worker == id().initiator) continue;
    if (setup_.dead != nullptr && setup_.dead->contains(worker)) continue;
    out.push_back(Send{worker, AbortMessage{id(), failure_}});
  }
}

void PassCore::end(State state, AutogradActions& out) {
  state_ = state;
  if (state == State::kCommitted ||
      (state == State::kAborted && WEFT_BREAK(aborted_stage_merged))) {
    StageMerge merge{.pass = id()};
    for (const auto& [send, source] : sources_) {
      if (source.fed && !setup_.retain_graph) merge.spent.push_back(send);
    }
    out.push_back(std::move(merge));
  } else {
    out.push_back(DropStage{id()});
  }
  out.push_back(CancelDeadline{id()});
  if (initiator()) out.push_back(CompleteBackward{id(), failure_});
}

void PassCore::on_peer_dead(WorkerId dead, AutogradActions& out) {
  if (ended() || WEFT_BREAK(death_in_pass_ignored)) return;
  const bool is_peer = counts_.exchanged_with(dead) || detector_.knows(dead);
  if (dead != id().initiator && !is_peer) return;
  PassFailure failure = failure_here(absl::UnavailableError(
      absl::StrCat("worker ", dead.to_string(), " died while ", id().to_string(), " ran")));
  failure.died = dead;
  if (dead == id().initiator) {
    failure_ = std::move(failure);
    forward_abort(dead, out);
    end(State::kDropped, out);
  } else {
    fail(std::move(failure), out);
  }
}

void PassCore::on_deadline(AutogradActions& out) {
  if (ended()) return;
  if (past_deadline_ && !WEFT_BREAK(kept_after_deadline)) {
    return drop(absl::DeadlineExceededError("no decision in time"), out);
  }
  past_deadline_ = true;
  std::string text = absl::StrCat(id().to_string(), " passed its deadline");
  if (initiator()) {
    absl::StrAppend(&text, ", waiting for ",
                    absl::StrJoin(detector_.unsettled(), ", ",
                                  [](std::string* to, WorkerId w) { to->append(w.to_string()); }));
  }
  fail(failure_here(absl::DeadlineExceededError(text)), out);
  if (!ended()) out.push_back(ArmDeadline{id(), kDecisionGrace});
}

// If this worker failed after its last report, the initiator may still commit the pass. The staged
// gradients are complete then, so a failed worker merges them too.
void PassCore::on_decided(bool committed, AutogradActions& out) {
  if (ended() || initiator()) return;
  if (!committed) {
    failure_ = failure_here(absl::AbortedError("the initiator aborted the pass"));
    forward_abort(setup_.self, out);
  }
  end(committed ? State::kCommitted : State::kAborted, out);
}

void PassCore::drop(absl::Status why, AutogradActions& out) {
  if (ended()) return;
  if (initiator()) return abort(failure_here(std::move(why)), out);
  failure_ = failure_here(std::move(why));
  end(State::kDropped, out);
}

}  // namespace weft::dist_autograd_internal
