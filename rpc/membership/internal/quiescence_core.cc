#include "weft/rpc/membership/internal/quiescence_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "weft/base/faults/breakage.h"
#include "weft/base/log.h"

namespace weft::rpc_internal {
namespace {

// A worker waits for the shutdown leader this long after the deadline, because the leader can name
// the workers that still have work.
constexpr Nanoseconds kGrace = std::chrono::milliseconds(500);
// Of that time, the shutdown leader waits this long for the others to name their work.
constexpr Nanoseconds kAnswerTime = std::chrono::milliseconds(250);
constexpr size_t kMaxWork = 512;  // bytes of the text that describes one worker's work

uint64_t wire_timeout(Timeout timeout) {
  if (timeout.infinite()) return 0;
  return std::max<uint64_t>(
      1, std::chrono::duration_cast<std::chrono::microseconds>(timeout.limit()).count());
}

}  // namespace

QuiescenceCore::QuiescenceCore(WorkerId self, const std::vector<WorkerId>& members)
    : self_(self), members_(members.begin(), members.end()) {
  members_.insert(self);
  for (WorkerId member : members_) live_[member];
}

void QuiescenceCore::send_to_all(const wire::MembershipPost& post, MembershipMessages& out) const {
  for (const auto& [worker, member] : live_) {
    if (worker != self_) out.push_back({worker, post});
  }
}

void QuiescenceCore::enter(Timeout timeout, TimePoint now, MembershipMessages& out) {
  if (stage_ != Stage::kOpen) return;
  stage_ = Stage::kCalls;
  Member& self = live_[self_];
  self.entered = true;
  self.timeout = timeout;
  send_to_all(entry(), out);
  check(now, out);
}

// The post says that this worker has entered. If it is the shutdown leader, it also asks for
// reports of its round.
wire::MembershipPost QuiescenceCore::entry() const {
  wire::MembershipPost post;
  post.mutable_report()->set_phase(1);
  post.mutable_report()->set_timeout_us(wire_timeout(live_.at(self_).timeout));
  post.mutable_report()->set_round(live_.at(self_).round);
  return post;
}

bool QuiescenceCore::admits() const {
  return stage_ == Stage::kOpen || stage_ == Stage::kCalls || WEFT_BREAK(joiners_always_admitted);
}

void QuiescenceCore::joined(WorkerId worker, MembershipMessages& out) {
  if (!admits() || live_.contains(worker)) return;
  const WorkerId before = leader();
  live_[worker];
  if (leader() != before) last_.reset();  // the new leader has no report of this worker
  members_.insert(worker);
  for (const auto& [from, report] : std::exchange(held_, {})) take_report(from, report);
  const bool entered = stage_ == Stage::kCalls && !WEFT_BREAK(joiner_not_told_of_entry);
  if (entered) out.push_back({worker, entry()});
}

void QuiescenceCore::references_dropped(TimePoint now, MembershipMessages& out) {
  if (stage_ != Stage::kDropping) return;
  stage_ = Stage::kMessages;
  last_.reset();
  check(now, out);
}

void QuiescenceCore::idle(std::vector<PeerTraffic> traffic, TimePoint now,
                          MembershipMessages& out) {
  if (asked_ && !draining()) return busy("drops its references", now, out);
  if (draining() && (asked_ || last_ != traffic)) {
    last_ = std::move(traffic);
    ++version_;
    report(out);
  }
  check(now, out);
}

void QuiescenceCore::busy(std::string work, TimePoint now, MembershipMessages& out) {
  if (std::exchange(asked_, false)) {
    wire::MembershipPost post;
    post.mutable_report()->set_phase(phase());
    work.resize(std::min(work.size(), kMaxWork));
    post.mutable_report()->set_work(std::move(work));
    submit(std::move(post), out);
  }
  check(now, out);
}

void QuiescenceCore::report(MembershipMessages& out) {
  if (!draining() || !last_) return;
  wire::MembershipPost post;
  auto& report = *post.mutable_report();
  report.set_phase(phase());
  report.set_version(version_);
  report.set_round(live_.at(leader()).round);
  for (const PeerTraffic& peer : *last_) {
    auto& counter = *report.add_counters();
    counter.set_worker(peer.peer.bits());
    counter.set_sent(peer.sent);
    counter.set_received(peer.received);
  }
  if (std::exchange(asked_, false)) report.set_work("");
  submit(std::move(post), out);
}

void QuiescenceCore::submit(wire::MembershipPost post, MembershipMessages& out) {
  if (leader() == self_) {
    on_report(self_, post.report());
  } else {
    out.push_back({leader(), std::move(post)});
  }
}

void QuiescenceCore::on_report(WorkerId from,
                               const wire::MembershipPost::QuiescenceReport& report) {
  if (report.has_work()) answers_[from] = printable(report.work(), kMaxWork);
  if (report.work().empty()) take_report(from, report);
}

void QuiescenceCore::take_report(WorkerId from,
                                 const wire::MembershipPost::QuiescenceReport& report) {
  const bool earlier_round = report.phase() == 1 && report.round() < live_.at(self_).round;
  if (earlier_round && !WEFT_BREAK(old_rounds_report_counts)) return;
  // Two threads of the sender's driver may send reports out of order.
  if (auto held = held_.find(from); held != held_.end()) {
    if (held->second.version() > report.version()) return;
  }
  TerminationReport row;
  row.worker = from;
  row.version = report.version();
  std::set<WorkerId> holds;
  for (const auto& counter : report.counters()) {
    const WorkerId peer = WorkerId::from_bits(counter.worker());
    holds.insert(peer);
    if (counter.sent() != 0) row.sent.push_back({peer, counter.sent()});
    if (counter.received() != 0) row.received.push_back({peer, counter.received()});
  }
  // The report may name a worker that is not known here. That worker has just joined, or it died
  // before this worker was there. In the second case the sender does not know of the death yet, and
  // reports again when it does.
  if (!std::includes(members_.begin(), members_.end(), holds.begin(), holds.end())) {
    if (!WEFT_BREAK(report_with_unknown_dropped)) held_[from] = report;
    return;
  }
  held_.erase(from);
  if (report.version() <= newest_[from]) return;
  newest_[from] = report.version();
  if (WEFT_BREAK(left_out_not_compared)) holds.clear();
  std::set_difference(members_.begin(), members_.end(), holds.begin(), holds.end(),
                      std::back_inserter(row.left_out));
  const auto by_worker = [](const PeerCount& a, const PeerCount& b) { return a.worker < b.worker; };
  std::sort(row.sent.begin(), row.sent.end(), by_worker);
  std::sort(row.received.begin(), row.received.end(), by_worker);
  const uint32_t phase = WEFT_BREAK(reports_of_any_phase_count) ? this->phase() : report.phase();
  detectors_[phase - 1].update(std::move(row));
}

void QuiescenceCore::receive(WorkerId from, const wire::MembershipPost& post, TimePoint now,
                             MembershipMessages& out) {
  auto member = live_.find(from);
  if (member == live_.end()) return;
  if (post.has_report()) {
    const auto& report = post.report();
    if (report.phase() != 1 && report.phase() != 2) return;
    if (report.version() == 0 && !report.has_work()) {
      Timeout timeout;
      if (report.timeout_us() != 0) {
        timeout = absl::Microseconds(std::min<uint64_t>(report.timeout_us(), uint64_t{1} << 50));
      }
      // Two entries may arrive out of order.
      member->second = {true, timeout, std::max(member->second.round, report.round())};
      if (from == leader()) last_.reset();  // the leader asks for a new report, or has none yet
    } else {
      highest_phase_ = std::max(highest_phase_, report.phase());
      on_report(from, report);
    }
  } else if (post.has_phase_end()) {
    const auto& phase_end = post.phase_end();
    if (phase_end.phase() != 1 && phase_end.phase() != 2) return;
    std::vector<AtWork> at_work;
    for (int i = 0; i < phase_end.not_quiescent_size(); ++i) {
      at_work.push_back({WorkerId::from_bits(phase_end.not_quiescent(i)),
                         i < phase_end.work_size() ? printable(phase_end.work(i), kMaxWork) : ""});
    }
    const bool ends_calls =
        stage_ == Stage::kCalls && phase_end.phase() == 1 && !phase_end.timed_out();
    if (ends_calls && !others_entered() && !WEFT_BREAK(phase_end_taken_early)) {
      // An entry is still on its way. Or `from` does not know a joiner that is known here; this may
      // happen if the others have declared `from` dead. Then `gone` drops what it said.
      calls_ended_for_.insert(from);
      return;
    }
    end_phase(phase_end.phase(), phase_end.timed_out(), std::move(at_work));
  } else if (post.has_ask_work()) {
    asked_ = stage_ != Stage::kOpen && stage_ != Stage::kEnded;
  }
  check(now, out);
}

void QuiescenceCore::gone(WorkerId worker, TimePoint now, MembershipMessages& out) {
  const WorkerId before = leader();
  if (worker == self_) return;
  // At its next idle moment this worker must report again, even if its counters are the same. Only
  // a new report says that it takes nothing from `worker` any more. Its last report may be from
  // before it knew `worker`, or it may never meet it. A new leader has no report at all.
  if (!WEFT_BREAK(end_not_reported)) last_.reset();
  if (live_.erase(worker) == 0) return;
  held_.erase(worker);
  answers_.erase(worker);
  calls_ended_for_.erase(worker);
  for (TerminationDetector& detector : detectors_) detector.leave_out(worker);
  if (leader() != before) {
    // The old leader may have died before it told the others that a phase was complete.
    if (WEFT_BREAK(ended_phase_not_known)) return check(now, out);
    if (stage_ == Stage::kDropping || stage_ == Stage::kMessages) announce(1, out);
    if (stage_ == Stage::kEnded) announce(2, out);
  }
  const bool asks = leader() == self_ && (stage_ == Stage::kOpen || stage_ == Stage::kCalls);
  if (asks && !WEFT_BREAK(leader_asks_once)) begin_round(out);
  check(now, out);
}

// Begins a report round after a death. An earlier report that does not name the dead worker may be
// older than the sender's first contact with it. It may also have come before this worker knew of
// the dead one. So only new reports say which workers have left it out. The leader's entry asks for
// them. A worker that takes another one for its leader reports when that leader is gone. Earlier
// reports that are still under way name an earlier round.
void QuiescenceCore::begin_round(MembershipMessages& out) {
  ++live_.at(self_).round;
  held_.clear();
  detectors_[0] = {};
  for (const WorkerId member : members_) {
    if (!live_.contains(member)) detectors_[0].leave_out(member);
  }
  if (stage_ == Stage::kOpen) return;  // `enter` will ask
  send_to_all(entry(), out);
}

void QuiescenceCore::tick(TimePoint now, MembershipMessages& out) { check(now, out); }

bool QuiescenceCore::others_entered() const {
  return std::all_of(live_.begin(), live_.end(), [this](const auto& entry) {
    return entry.first == self_ || entry.second.entered;
  });
}

void QuiescenceCore::append_missing(std::vector<WorkerId>& out) const {
  for (const auto& [worker, member] : live_) {
    if (worker != self_ && !member.entered) out.push_back(worker);
  }
}

void QuiescenceCore::start_clock(TimePoint now) {
  if (stage_ == Stage::kOpen || deadline_ != kNever || !others_entered()) return;
  for (const auto& [worker, member] : live_) {
    deadline_ = std::min(deadline_, member.timeout.deadline_from(now));
  }
}

void QuiescenceCore::check(TimePoint now, MembershipMessages& out) {
  start_clock(now);
  if (!calls_ended_for_.empty() && others_entered()) end_phase(1, false, {});
  const bool leads = leader() == self_;
  if (leads && stage_ == Stage::kCalls && highest_phase_ == 2 &&
      !WEFT_BREAK(ended_phase_not_known)) {
    // An earlier leader completed phase 1 and died before it told all workers.
    announce(1, out);
    end_phase(1, false, {});
  }
  if (draining() && leads && (others_entered() || WEFT_BREAK(entry_not_awaited))) {
    TerminationDetector& detector = detectors_[phase() - 1];
    for (const auto& [worker, member] : live_) {
      if (member.entered || !WEFT_BREAK(entry_not_awaited)) detector.expect(worker);
    }
    if (detector.quiescent()) {
      announce(phase(), out);
      end_phase(phase(), false, {});
    }
  }
  if (stage_ != Stage::kOpen && stage_ != Stage::kEnded && deadline_ != kNever) {
    check_deadline(now, out);
  }
}

void QuiescenceCore::check_deadline(TimePoint now, MembershipMessages& out) {
  if (leader() != self_) {
    if (now >= deadline_ + kGrace) end_phase(2, true, {{leader(), "does not answer"}});
    return;
  }
  if (now < deadline_) return;
  if (answers_until_ == kNever) {
    answers_until_ = now + kAnswerTime;
    asked_ = true;
    wire::MembershipPost question;
    question.mutable_ask_work();
    send_to_all(question, out);
  }
  if (!all_answered() && now < answers_until_) return;
  end_phase(2, true, find_at_work());
  announce(2, out);
}

bool QuiescenceCore::all_answered() const {
  return std::all_of(live_.begin(), live_.end(), [this](const auto& entry) {
    return !entry.second.entered || answers_.contains(entry.first);
  });
}

std::vector<AtWork> QuiescenceCore::find_at_work() const {
  std::vector<AtWork> all;
  for (const auto& [worker, member] : live_) {
    const auto answer = answers_.find(worker);
    if (!member.entered) {
      all.push_back({worker, "has not entered shutdown"});
    } else if (answer == answers_.end()) {
      all.push_back({worker, "does not say what it is at"});
    } else if (!answer->second.empty()) {
      all.push_back({worker, answer->second});
    }
  }
  if (!all.empty()) return all;
  if (stage_ == Stage::kDropping) return {{self_, "drops its references"}};
  for (WorkerId worker : detectors_[phase() - 1].unsettled()) {
    all.push_back({worker, "is idle, but messages from or to it are under way"});
  }
  return all;
}

void QuiescenceCore::end_phase(uint32_t phase, bool timed_out, std::vector<AtWork> at_work) {
  if (stage_ == Stage::kOpen || stage_ == Stage::kEnded) return;
  if (phase == 1 && !timed_out) {
    if (stage_ == Stage::kCalls) stage_ = Stage::kDropping;
    return;
  }
  stage_ = Stage::kEnded;
  timed_out_ = timed_out;
  at_work_ = std::move(at_work);
}

void QuiescenceCore::announce(uint32_t phase, MembershipMessages& out) const {
  wire::MembershipPost post;
  auto& phase_end = *post.mutable_phase_end();
  phase_end.set_phase(phase);
  phase_end.set_timed_out(timed_out_);
  for (const AtWork& each : at_work_) {
    phase_end.add_not_quiescent(each.worker.bits());
    phase_end.add_work(each.work);
  }
  send_to_all(post, out);
}

}  // namespace weft::rpc_internal
