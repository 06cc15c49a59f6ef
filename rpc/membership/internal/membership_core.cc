#include "weft/rpc/membership/internal/membership_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/faults/breakage.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostUnknown = 4096;  // incarnations looked up at a time
constexpr size_t kMostClaims = 64;     // compared at a time; also the number of contradicted ones
constexpr size_t kMostEnded = 1024;    // gone incarnations that are remembered separately
constexpr int kMostLimit = 16;         // times suspect_after: the longest silence that is excused
constexpr size_t kMostUnanswered =
    1024;  // heartbeats of one peer whose answers would still be used

// Returns `span` without `wait`, and reduces `wait` by what was subtracted.
Nanoseconds without(Nanoseconds span, Nanoseconds& wait) {
  if (WEFT_BREAK(waits_are_silence)) return span;
  const Nanoseconds taken = std::min(span, wait);
  wait -= taken;
  return span - taken;
}

// A worker that was late may soon be late again. So a lag fades by a fifth at each look.
Nanoseconds faded(Nanoseconds lag) { return lag / 5 * 4; }

absl::Status refusal(const std::string& why) { return absl::PermissionDeniedError(why); }

}  // namespace

MembershipCore::MembershipCore(WorkerInfo self, LeaseOptions limits, TimePoint now,
                               GroupFacts group)
    : self_(std::move(self)), limits_(limits), group_(group), last_tick_(now) {}

bool MembershipCore::ended(WorkerId worker) const {
  if (ended_.contains(worker)) return true;
  auto found = forgotten_.find(worker.index);
  return found != forgotten_.end() && worker.incarnation <= found->second;
}

bool MembershipCore::has_ended_later(WorkerId worker) const {
  auto later = ended_.upper_bound(worker);
  for (; later != ended_.end() && later->first.index == worker.index; ++later) {
    if (!later->second.name.empty() || later->second.by.valid()) return true;
  }
  return false;
}

std::string MembershipCore::named(WorkerId worker) const {
  if (worker == self_.id) return absl::StrCat("'", self_.name, "' (", worker.to_string(), ")");
  if (auto peer = peers_.find(worker); peer != peers_.end()) {
    return absl::StrCat("'", peer->second.name, "' (", worker.to_string(), ")");
  }
  auto found = ended_.find(worker);
  if (found != ended_.end() && !found->second.name.empty()) {
    return absl::StrCat("'", found->second.name, "' (", worker.to_string(), ")");
  }
  return worker.to_string();
}

// ---- the group

void MembershipCore::add(const WorkerInfo& member) {
  if (member.id == self_.id || ended(member.id)) return;
  peers_[member.id].name = member.name;
}

absl::Status MembershipCore::refusal_of(const WorkerInfo& joiner) const {
  const std::string who = absl::StrCat("'", joiner.name, "' (", joiner.id.to_string(), ")");
  if (is_fenced()) return refusal(absl::StrCat(named(self_.id), " was declared dead itself"));
  if (group_.world_size != 0 && joiner.id.index >= group_.world_size) {
    return refusal(absl::StrCat("worker ", who, " has no place in a group of ", group_.world_size));
  }
  if (ended(joiner.id) || has_ended_later(joiner.id)) {
    return refusal(absl::StrCat("worker ", who, " was declared dead, or has left"));
  }
  if (joiner.id.index == self_.id.index) {
    return refusal(absl::StrCat("worker ", who, " has the place of ", named(self_.id)));
  }
  for (const auto& [id, peer] : peers_) {
    if (id.index == joiner.id.index) {
      if (id.incarnation > joiner.id.incarnation) {
        return refusal(absl::StrCat("worker ", who, " is an earlier incarnation of ", named(id)));
      }
    } else if (peer.name == joiner.name) {
      return refusal(absl::StrCat("worker ", named(id), " has that name already"));
    }
  }
  if (joiner.name == self_.name) {
    return refusal(absl::StrCat("worker ", named(self_.id), " has that name already"));
  }
  return absl::OkStatus();
}

absl::Status MembershipCore::admit(const WorkerInfo& joiner, MembershipActions& out) {
  if (absl::Status refused = refusal_of(joiner); !refused.ok()) return refused;
  const std::optional<WorkerId> earlier = replaced_by(joiner.id);
  if (earlier && !WEFT_BREAK(claims_not_compared)) return claim(joiner, *earlier, out);
  take_in(joiner, out);
  return absl::OkStatus();
}

// A false claim to have replaced a worker that is gone does harm, too. Once the claimant has a
// death record, no incarnation of that index below it is admitted any more.
std::optional<WorkerId> MembershipCore::replaced_by(WorkerId joiner) const {
  const auto peer = peers_.lower_bound({joiner.index, 0});
  if (peer != peers_.end() && peer->first < joiner) return peer->first;
  if (!group_.has_records || peers_.contains(joiner)) return std::nullopt;
  const auto later = ended_.lower_bound(joiner);
  if (later != ended_.begin()) {
    const WorkerId last = std::prev(later)->first;
    if (last.index == joiner.index) return last;
  }
  const auto forgotten = forgotten_.find(joiner.index);
  if (forgotten == forgotten_.end()) return std::nullopt;
  return WorkerId{joiner.index, forgotten->second};
}

// Any process may claim to have replaced a worker. The group's records decide, because a worker
// that takes an index publishes its record before it dials. A contradicted claim is refused once,
// when a process with the same name and address asks again. So it cannot be held against a later
// process that really gets that incarnation.
absl::Status MembershipCore::claim(const WorkerInfo& joiner, WorkerId earlier,
                                   MembershipActions& out) {
  const std::string who = absl::StrCat("worker '", joiner.name, "' (", joiner.id.to_string(),
                                       ") says that it has replaced ", named(earlier));
  const auto contradicted = std::find(contradicted_.begin(), contradicted_.end(), joiner);
  if (contradicted != contradicted_.end()) {
    contradicted_.erase(contradicted);
    return refusal(absl::StrCat(who, ", but the group's records do not name it"));
  }
  if (!unknown_.contains(joiner.id) && claims_.size() < kMostClaims &&
      claims_.emplace(joiner.id, joiner).second) {
    out.claims.push_back(joiner);
  }
  return absl::AbortedError(
      absl::StrCat(who, ", which the group's records have not confirmed yet"));
}

bool MembershipCore::compared(const WorkerInfo& claimant,
                              const absl::StatusOr<std::optional<WorkerInfo>>& record,
                              MembershipActions& out) {
  auto found = claims_.find(claimant.id);
  if (found == claims_.end() || found->second != claimant) return false;
  claims_.erase(found);
  if (!record.ok()) return false;  // the dialler asks again, and then the record is read again
  if (!*record) {
    if (contradicted_.size() == kMostClaims) contradicted_.pop_front();
    contradicted_.push_back(claimant);
    return false;
  }
  if (!refusal_of(**record).ok()) return false;
  take_in(**record, out);
  return true;
}

void MembershipCore::take_in(const WorkerInfo& joiner, MembershipActions& out) {
  std::vector<WorkerId> earlier;
  for (const auto& [id, peer] : peers_) {
    if (id.index == joiner.id.index && id != joiner.id) earlier.push_back(id);
  }
  peers_[joiner.id].name = joiner.name;
  unknown_.erase(joiner.id);
  claims_.erase(joiner.id);
  for (WorkerId incarnation : earlier)
    suspect(incarnation, absl::UnavailableError("was restarted"), out);
  // No death record of an earlier incarnation is written any more.
  undecided_.erase(undecided_.lower_bound({joiner.id.index, 0}), undecided_.lower_bound(joiner.id));
  // The joiner read the list before it was known here. The writers of later records did not post
  // them to it.
  for (const auto& [dead, last] : ended_) {
    if (last.by.valid()) out.notices.push_back({joiner.id, {dead, last.by, last.reason}});
  }
}

void MembershipCore::left(WorkerId worker) {
  MembershipActions none;
  end(worker, absl::OkStatus(), none);
}

void MembershipCore::meet(WorkerId unknown, MembershipActions& out) {
  if (unknown == self_.id || peers_.contains(unknown)) return;
  if (is_fenced() || ended(unknown)) {
    out.gone.push_back({unknown, absl::UnavailableError("has ended")});
  } else if (!unknown_.contains(unknown) && unknown_.size() == kMostUnknown) {
    unknown_.insert(unknown);
    end(unknown,
        absl::ResourceExhaustedError(
            absl::StrCat("is not known here, and ", kMostUnknown, " others are looked up already")),
        out);
  } else if (unknown_.insert(unknown).second) {
    out.lookups.push_back(unknown);
  }
}

bool MembershipCore::found(WorkerId unknown,
                           const absl::StatusOr<std::optional<WorkerInfo>>& record,
                           MembershipActions& out) {
  if (!unknown_.contains(unknown)) return false;
  std::string why = "is not in the group any more";
  if (!record.ok()) {
    why =
        absl::StrCat("is not known here, and nothing was heard of it: ", record.status().message());
  } else if (*record) {
    const absl::Status refused = refusal_of(**record);
    if (refused.ok()) {
      take_in(**record, out);
      return true;
    }
    why = std::string(refused.message());
  }
  end(unknown, absl::UnavailableError(why), out);
  return false;
}

void MembershipCore::give_up(WorkerId unknown, const absl::Status& why, MembershipActions& out) {
  end(unknown, why, out);
}

void MembershipCore::learn(const std::vector<DeathRecord>& death_records, MembershipActions& out) {
  for (const DeathRecord& death_record : death_records) take(death_record, out);
}

// ---- leases

std::vector<WorkerId> MembershipCore::to_watch() const {
  std::vector<WorkerId> watched;
  bool suspect_reports = false;
  for (const auto& [id, peer] : peers_) {
    suspect_reports = suspect_reports || !peer.suspect_report.ok();
    if (is_watched(peer)) watched.push_back(id);
  }
  if (suspect_reports || !watched.empty()) watched.push_back(self_.id);
  return watched;
}

bool MembershipCore::is_watched(const Peer& peer) const {
  return peer.leased && 2 * peer.unheard >= 3 * limits_.heartbeat_interval;
}

void MembershipCore::waited(Nanoseconds time) {
  own_wait_ = std::min<Nanoseconds>(own_wait_ + time, limits_.suspect_after);
}

MembershipCore::Passed MembershipCore::note_passed(TimePoint now) {
  const Nanoseconds all = now - last_tick_;
  // The time for which this worker did not run does not count as silence of the peers.
  const Nanoseconds awake = WEFT_BREAK(stopped_time_counts)
                                ? all
                                : std::min<Nanoseconds>(all, 2 * limits_.heartbeat_interval);
  last_tick_ = now;
  awake_ += awake;
  lag_ = std::max<Nanoseconds>(all - 2 * limits_.heartbeat_interval, faded(lag_));
  // One sixteenth always counts. Otherwise a worker that always waits would suspect no peer.
  return {awake, std::max<Nanoseconds>(without(awake, own_wait_), awake / kMostLimit)};
}

Nanoseconds MembershipCore::bounded(Nanoseconds lag) const {
  return std::min<Nanoseconds>(lag, kMostLimit * limits_.suspect_after);
}

Nanoseconds MembershipCore::lag_of(const Peer& peer) const {
  return bounded(bounded(peer.lag) + peer.late.value_or(Nanoseconds(0)));
}

Nanoseconds MembershipCore::allowance() const { return bounded(2 * std::max(worst_lag_, lag_)); }

Nanoseconds MembershipCore::silence_limit(const Peer& peer) const {
  // A peer that has answered no heartbeat is assumed to be as late as the others.
  return bounded(limits_.suspect_after + 2 * (peer.late ? lag_of(peer) : worst_lag_));
}

bool MembershipCore::is_silent(const Peer& peer, Nanoseconds more) const {
  if (peer.unheard >= kMostLimit * limits_.suspect_after) return true;
  // The first look at a peer's waits has nothing to compare with, so two looks are needed.
  return peer.watched > 1 && peer.silence >= silence_limit(peer) + more;
}

void MembershipCore::tick(TimePoint now, const std::vector<Look>& looks, MembershipActions& out) {
  const Passed passed = note_passed(now);
  size_t leased = 0, silent = 0, heard = 0;
  Nanoseconds worst{0};
  for (const Look& look : looks) {
    auto found = peers_.find(look.peer);
    if (found == peers_.end()) continue;
    Peer& peer = found->second;
    if (look.busy) peer.shared_until = now + limits_.linger;
    listen(peer, look, now, passed, out);
    if (!peer.leased) continue;
    ++leased;
    worst = std::max(worst, lag_of(peer));
    if (is_silent(peer)) ++silent;
    if (peer.silence < limits_.suspect_after / 2) ++heard;
    peer.unanswered.push_back({next_heartbeat_, now, awake_});
    // An answer to an older heartbeat would tell nothing any more.
    while (peer.unanswered.size() > kMostUnanswered ||
           peer.unanswered.front().sent + kMostLimit * limits_.suspect_after <= now) {
      peer.unanswered.pop_front();
    }
    out.heartbeats.push_back({look.peer, next_heartbeat_++});
  }
  worst_lag_ = worst;
  // A worker that hears none of its peers is more likely cut off itself. It waits longer, so that
  // the others decide first.
  if (silent > 0) judge_silence(looks, leased > 1 && heard == 0, out);
  for (const Look& look : looks) settle_report(look, passed, out);
  read_again(out);
  if (to_watch().empty()) own_wait_ = Nanoseconds(0);
}

void MembershipCore::judge_silence(const std::vector<Look>& looks, bool deaf,
                                   MembershipActions& out) {
  const Nanoseconds more = deaf ? 2 * limits_.heartbeat_interval : Nanoseconds(0);
  const absl::Status why = absl::UnavailableError(absl::StrCat(
      "was not heard of for ", absl::FormatDuration(absl::FromChrono(limits_.suspect_after))));
  for (const Look& look : looks) {
    auto found = peers_.find(look.peer);
    if (found == peers_.end() || !found->second.leased) continue;
    if (!is_silent(found->second, more)) continue;
    if (established_ || WEFT_BREAK(joiner_declares_dead)) {
      suspect(look.peer, why, out);
    } else {
      report_suspect(look.peer, why, out);
    }
  }
}

// The others need `suspect_after` and a little more for their death record. So the report has twice
// that time before this worker reads the list.
void MembershipCore::settle_report(const Look& look, const Passed& passed, MembershipActions& out) {
  auto found = peers_.find(look.peer);
  if (found == peers_.end() || found->second.suspect_report.ok()) return;
  Peer& peer = found->second;
  peer.report_age += passed.counted;
  if (look.heard > peer.suspected || established_) {  // from now on the lease decides
    if (peer.undecided == peer.suspect_report) {
      peer.undecided = absl::OkStatus();
      if (!peer.declaring) peer.question = 0;
    }
    peer.suspect_report = absl::OkStatus();
  } else if (peer.report_age >= 2 * silence_limit(peer)) {
    ask_only(look.peer, peer.suspect_report, out);
  }
}

// Begins, continues or closes a peer's lease.
void MembershipCore::listen(Peer& peer, const Look& look, TimePoint now, const Passed& passed,
                            MembershipActions& out) const {
  peer.lag = look.lag;
  if (now >= peer.shared_until) {
    if (std::exchange(peer.leased, false)) out.validities.push_back({look.peer, kNever});
  } else if (!peer.leased) {
    peer.leased = true;
    out.validities.push_back({look.peer, now + limits_.valid_for});
    peer.silence = peer.unheard = peer.wait = Nanoseconds(0);
    peer.heard = look.heard;
    peer.watched = 0;
    peer.unanswered.clear();
    peer.late.reset();
    peer.valid_until = WEFT_BREAK(valid_before_any_answer) ? now + limits_.valid_for : now;
  } else if (look.heard > peer.heard && !WEFT_BREAK(frames_not_heard)) {
    peer.heard = look.heard;
    peer.unheard = std::min<Nanoseconds>(now - look.heard, passed.awake);
    peer.silence = std::min<Nanoseconds>(peer.unheard, passed.counted);
    if (WEFT_BREAK(whole_tick_heard)) peer.unheard = peer.silence = Nanoseconds(0);
    peer.wait = Nanoseconds(0);
    peer.watched = 0;
    if (peer.late) peer.late = faded(*peer.late);
  } else {
    if (is_watched(peer)) ++peer.watched;
    peer.unheard += passed.awake;
    peer.wait += look.waited;
    peer.silence += without(passed.counted, peer.wait);
  }
}

void MembershipCore::on_heartbeat_answer(WorkerId from, uint64_t number, TimePoint now,
                                         MembershipActions& out) {
  auto found = peers_.find(from);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  while (!peer.unanswered.empty() && peer.unanswered.front().number <= number) {
    if (const SentHeartbeat heartbeat = peer.unanswered.front(); heartbeat.number == number) {
      // `awake_` leaves out the time for which this worker was stopped. That time is not the peer's
      // lateness.
      const Nanoseconds taken =
          awake_ - heartbeat.awake +
          std::min<Nanoseconds>(now - last_tick_, 2 * limits_.heartbeat_interval);
      peer.late = std::max<Nanoseconds>(taken - limits_.heartbeat_interval,
                                        peer.late.value_or(Nanoseconds(0)));
      peer.valid_until = heartbeat.sent + limits_.valid_for;
      if (WEFT_BREAK(valid_for_longer_than_suspect_after))
        peer.valid_until += limits_.suspect_after;
      if (peer.leased) out.validities.push_back({from, peer.valid_until});
    }
    peer.unanswered.pop_front();
  }
}

bool MembershipCore::has_valid_lease(WorkerId peer, TimePoint now) const {
  auto found = peers_.find(peer);
  return found != peers_.end() && (!found->second.leased || now < found->second.valid_until);
}

size_t MembershipCore::leases() const {
  return static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(),
                                           [](const auto& entry) { return entry.second.leased; }));
}

// ---- suspicion and death record

void MembershipCore::ask(WorkerId worker, const absl::Status& reason, bool declare_dead,
                         MembershipActions& out) {
  auto found = peers_.find(worker);
  if (found == peers_.end() || found->second.question != 0) return;
  found->second.question = next_question_++;
  found->second.declaring = declare_dead;
  found->second.suspicion = std::string(reason.message());
  out.questions.push_back({worker, found->second.question, found->second.suspicion, declare_dead});
}

void MembershipCore::unanswered(WorkerId by, const absl::Status& reason, MembershipActions& out) {
  if (!peers_.contains(by)) return;
  if (WEFT_BREAK(joiner_declares_dead)) return suspect(by, reason, out);
  if (established_) {
    look_after(by, out);
  } else {
    report_suspect(by, reason, out);
  }
  out.redials.push_back(by);
}

void MembershipCore::report_suspect(WorkerId worker, const absl::Status& reason,
                                    MembershipActions& out) {
  Peer& peer = peers_.at(worker);
  if (!peer.suspect_report.ok()) return;
  peer.suspect_report = reason;
  peer.suspected = last_tick_;
  peer.report_age = Nanoseconds(0);
  out.suspect_reports.push_back(worker);
}

void MembershipCore::look_after(WorkerId worker, MembershipActions& out) {
  auto found = peers_.find(worker);
  if (found == peers_.end()) {
    if (!is_fenced() && !ended(worker)) meet(worker, out);
    return;
  }
  found->second.shared_until = std::max(found->second.shared_until, last_tick_ + limits_.linger);
}

void MembershipCore::refused(WorkerId by, const absl::Status& reason, MembershipActions& out) {
  if (WEFT_BREAK(refused_declares_dead)) ask(by, reason, true, out);
  ask_only(by, reason, out);
  if (WEFT_BREAK(refusal_not_checked)) out.refused = reason;
}

void MembershipCore::ask_only(WorkerId worker, const absl::Status& reason, MembershipActions& out) {
  ask(worker, reason, false, out);
  auto found = peers_.find(worker);
  if (found != peers_.end()) found->second.undecided = reason;
}

// A worker that could not ask before may still write a death record of one of such a pair. This
// worker may have lost all workers that would post it. So it reads the list itself.
void MembershipCore::read_again(MembershipActions& out) {
  const bool due = !undecided_.empty() && reading_ == 0 && last_tick_ - read_ >= pause_;
  if (is_fenced() || !due || !out.questions.empty() || WEFT_BREAK(undecided_not_read_again)) return;
  reading_ = next_question_++;
  out.questions.push_back({self_.id, reading_, "", /*declare_dead=*/false});
}

void MembershipCore::answer(WorkerId suspect, uint64_t question,
                            const absl::StatusOr<std::vector<DeathRecord>>& death_records,
                            MembershipActions& out) {
  if (death_records.ok()) {
    for (const DeathRecord& death_record : *death_records) take(death_record, out);
  }
  if (question == reading_) {
    reading_ = 0;
    read_ = last_tick_;
    if (!absl::IsAborted(death_records.status())) pause_ = bounded(2 * pause_);
    return;
  }
  auto found = peers_.find(suspect);
  if (is_fenced() || found == peers_.end() || found->second.question != question) return;
  if (WEFT_BREAK(unknown_decides_nothing)) return;
  // The list does not decide, so the two part for themselves alone.
  const absl::Status why = absl::UnavailableError(found->second.suspicion);
  if (!found->second.undecided.ok()) out.refused = found->second.undecided;
  end(suspect, why, out);
  undecided_.insert(suspect);
  read_ = last_tick_;
  pause_ = limits_.suspect_after;
  // No member ever answered this worker, so none will post it its own death record.
  if (!established_ && peers_.empty() && !out.refused.ok()) standing_ = out.fenced = out.refused;
}

void MembershipCore::take(const DeathRecord& death_record, MembershipActions& out) {
  if (!is_fenced()) on_notice(death_record, out);
}

void MembershipCore::on_notice(const DeathRecord& death_record, MembershipActions& out) {
  if (death_record.dead == self_.id) {
    if (!WEFT_BREAK(own_death_ignored)) fence(death_record, out);
    return;
  }
  const bool own = death_record.by == self_.id;
  end(death_record.dead,
      absl::UnavailableError(own ? death_record.reason
                                 : absl::StrCat("was declared dead by worker ",
                                                named(death_record.by), ": ", death_record.reason)),
      out);
  // Another worker may have read the record before its writer was answered. So the writer tells the
  // others when it first sees the record, from whatever source.
  if (!remember(death_record) || !speaks_for(death_record.by)) return;
  tell_others(death_record, out);
  tell_what_it_wrote(death_record.dead, out);
}

// The writer of a death record posts it to all. If it declared another writer dead, it also posts
// that one's records, because that one may have died before it told all.
bool MembershipCore::speaks_for(WorkerId writer) const {
  // The limit is for damaged death records, whose writers may form a circle.
  for (size_t links = 0; writer != self_.id && links < kMostEnded; ++links) {
    const auto ended = ended_.find(writer);
    if (ended == ended_.end() || WEFT_BREAK(last_words_not_told)) return false;
    writer = ended->second.by;
  }
  return writer == self_.id;
}

bool MembershipCore::remember(const DeathRecord& death_record) {
  Ended& ended = ended_.at(death_record.dead);  // by end()
  const bool fresh = ended.by != death_record.by;
  ended.by = death_record.by;
  ended.reason = death_record.reason;
  undecided_.erase(death_record.dead);
  return fresh;
}

void MembershipCore::tell_others(const DeathRecord& death_record, MembershipActions& out) const {
  if (WEFT_BREAK(death_record_not_told)) return;
  for (const auto& [id, peer] : peers_) out.notices.push_back({id, death_record});
}

// A writer may have died before it told all. The workers that it declared dead may have been
// writers, too.
void MembershipCore::tell_what_it_wrote(WorkerId writer, MembershipActions& out) const {
  if (WEFT_BREAK(last_words_not_told)) return;
  // Each writer once, because the writers of damaged death records may form a circle.
  std::vector<WorkerId> writers = {writer};
  for (size_t next = 0; next < writers.size(); ++next) {
    for (const auto& [dead, last] : ended_) {
      if (last.by != writers[next]) continue;
      tell_others({dead, last.by, last.reason}, out);
      if (std::find(writers.begin(), writers.end(), dead) == writers.end()) {
        writers.push_back(dead);
      }
    }
  }
}

void MembershipCore::end(WorkerId worker, absl::Status reason, MembershipActions& out) {
  auto found = peers_.find(worker);
  if (const auto [place, fresh] = ended_.try_emplace(worker); fresh) {
    if (found != peers_.end()) place->second.name = found->second.name;
    ended_order_.push_back(worker);
    if (ended_order_.size() > kMostEnded) forget_oldest();
  }
  claims_.erase(worker);
  const bool looked_up = unknown_.erase(worker) > 0;
  if (found == peers_.end() && !looked_up) return;
  if (found != peers_.end()) peers_.erase(found);
  out.gone.push_back({worker, std::move(reason)});
}

// A worker never forgets that a member is gone. For each index it keeps one number for good.
void MembershipCore::forget_oldest() {
  const auto oldest = ended_.find(ended_order_.front());
  ended_order_.pop_front();
  if (!oldest->second.name.empty()) {
    uint32_t& last = forgotten_[oldest->first.index];
    last = std::max(last, oldest->first.incarnation);
  }
  undecided_.erase(oldest->first);
  ended_.erase(oldest);
}

// Other workers' messages have named these incarnations. An earlier incarnation of an index is gone
// once a later one is known.
void MembershipCore::settle_ended(const std::vector<WorkerId>& tied, MembershipActions& out) const {
  for (const WorkerId worker : tied) {
    if (worker == self_.id || peers_.contains(worker)) continue;
    if (is_fenced()) {
      out.gone.push_back({worker, standing_});
    } else if (ended(worker) || outlived(worker)) {
      out.gone.push_back({worker, absl::UnavailableError("had ended")});
    }
  }
}

bool MembershipCore::outlived(WorkerId worker) const {
  const auto later = peers_.upper_bound(worker);
  return (later != peers_.end() && later->first.index == worker.index) || has_ended_later(worker) ||
         (worker.index == self_.id.index && worker.incarnation < self_.id.incarnation);
}

void MembershipCore::fence(const DeathRecord& death_record, MembershipActions& out) {
  if (is_fenced()) return;
  standing_ = absl::UnavailableError(
      absl::StrCat("worker ", named(self_.id), " was declared dead by worker ",
                   named(death_record.by), ": it ", death_record.reason));
  out.fenced = standing_;
  peers_.clear();
  for (WorkerId unknown : unknown_) out.gone.push_back({unknown, standing_});
  unknown_.clear();
  claims_.clear();
}

}  // namespace weft::rpc_internal
