#include "weft/rpc/membership/internal/membership_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/breakage.h"

namespace weft::rpc_internal {
namespace {

constexpr size_t kMostUnknown = 4096;  // incarnations looked up at a time

absl::Status refusal(const std::string& why) { return absl::PermissionDeniedError(why); }

}  // namespace

MembershipCore::MembershipCore(WorkerInfo self, LeaseOptions limits, TimePoint now,
                               uint32_t world_size)
    : limits_(limits), roster_(std::move(self), limits, world_size), own_(limits, now) {}

// ---- the group

void MembershipCore::add(const WorkerInfo& member) {
  if (member.id != self() && !roster_.ended().contains(member.id)) roster_.put(member);
}

absl::Status MembershipCore::refusal_of(const WorkerInfo& joiner) const {
  if (!is_fenced()) return roster_.refusal_of(joiner);
  return refusal(absl::StrCat(roster_.named(self()), " was declared dead itself"));
}

absl::Status MembershipCore::admit(const WorkerInfo& joiner, MembershipActions& out) {
  if (absl::Status refused = refusal_of(joiner); !refused.ok()) return refused;
  const std::optional<WorkerId> earlier = roster_.replaced_by(joiner.id);
  if (earlier && !WEFT_BREAK(claims_not_compared)) return claim(joiner, *earlier, out);
  take_in(joiner, out);
  return absl::OkStatus();
}

// The group's records decide about a claim, because a worker that takes an index publishes its
// record before it dials.
absl::Status MembershipCore::claim(const WorkerInfo& joiner, WorkerId earlier,
                                   MembershipActions& out) {
  const std::string who = absl::StrCat("worker ", Roster::named(joiner),
                                       " says that it has replaced ", roster_.named(earlier));
  if (claims_.take_contradicted(joiner)) {
    return refusal(absl::StrCat(who, ", but the group's records do not name it"));
  }
  if (!unknown_.contains(joiner.id) && claims_.open(joiner)) out.claims.push_back(joiner);
  return absl::AbortedError(
      absl::StrCat(who, ", which the group's records have not confirmed yet"));
}

bool MembershipCore::compared(const WorkerInfo& claimant,
                              const absl::StatusOr<std::optional<WorkerInfo>>& record,
                              MembershipActions& out) {
  if (!claims_.close(claimant)) return false;
  if (!record.ok()) return false;  // the dialler asks again, and then the record is read again
  if (!*record) {
    claims_.contradict(claimant);
    return false;
  }
  if (!refusal_of(**record).ok()) return false;
  take_in(**record, out);
  return true;
}

void MembershipCore::take_in(const WorkerInfo& joiner, MembershipActions& out) {
  roster_.put(joiner);
  unknown_.erase(joiner.id);
  claims_.drop(joiner.id);
  for (const WorkerId earlier : roster_.others_of_index(joiner.id)) {
    suspect(earlier, absl::UnavailableError("was restarted"), out);
  }
  roster_.ended().settle_before(joiner.id);
  // The joiner read the list before it was known here. The writers of later records did not post
  // them to it.
  for (DeathRecord& death_record : roster_.ended().death_records()) {
    out.notices.push_back({joiner.id, std::move(death_record)});
  }
}

void MembershipCore::left(WorkerId worker) {
  MembershipActions none;
  end(worker, absl::OkStatus(), none);
}

void MembershipCore::meet(WorkerId unknown, MembershipActions& out) {
  if (unknown == self() || is_live(unknown)) return;
  if (is_fenced() || roster_.ended().contains(unknown)) {
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

void MembershipCore::learn(const std::vector<DeathRecord>& death_records, MembershipActions& out) {
  for (const DeathRecord& death_record : death_records) {
    if (!is_fenced()) on_notice(death_record, out);
  }
}

// ---- leases

std::vector<WorkerId> MembershipCore::to_watch() const {
  std::vector<WorkerId> watched;
  bool suspect_reports = false;
  for (const auto& [id, peer] : roster_.peers()) {
    suspect_reports = suspect_reports || !peer.suspicion.reported().ok();
    if (peer.lease.is_watched()) watched.push_back(id);
  }
  if (suspect_reports || !watched.empty()) watched.push_back(self());
  return watched;
}

void MembershipCore::tick(TimePoint now, const std::vector<Look>& looks, MembershipActions& out) {
  const PassedTime passed = own_.look(now);
  size_t leased = 0, silent = 0, heard = 0;
  Nanoseconds worst{0};
  for (const Look& look : looks) {
    Roster::Peer* const peer = roster_.find(look.peer);
    if (peer == nullptr) continue;
    Lease& lease = peer->lease;
    // Before a frame of the peer has come, nothing can be heard: the handshake has time limits of
    // its own. A lease that the end of a dial has begun goes on.
    if (look.busy && (look.met || lease.is_active())) lease.share(now);
    if (const std::optional<TimePoint> until = lease.look(look, now, passed)) {
      out.validities.push_back({look.peer, *until});
    }
    if (!lease.is_active()) continue;
    ++leased;
    worst = std::max(worst, lease.lag());
    if (lease.is_silent(worst_lag_)) ++silent;
    if (lease.is_heard()) ++heard;
    lease.sent(next_heartbeat_, now, own_.at(now));
    out.heartbeats.push_back({look.peer, next_heartbeat_++});
  }
  worst_lag_ = worst;
  // A worker that hears none of its peers is more likely cut off itself. It waits longer, so that
  // the others decide first.
  if (silent > 0) judge_silence(looks, leased > 1 && heard == 0, out);
  for (const Look& look : looks) settle_report(look, passed, out);
  read_again(out);
  if (to_watch().empty()) own_.drop_wait();
}

void MembershipCore::judge_silence(const std::vector<Look>& looks, bool deaf,
                                   MembershipActions& out) {
  const Nanoseconds more = deaf ? 2 * limits_.heartbeat_interval : Nanoseconds(0);
  for (const Look& look : looks) {
    const Roster::Peer* const peer = roster_.find(look.peer);
    if (peer == nullptr || !peer->lease.is_active()) continue;
    if (!peer->lease.is_silent(worst_lag_, more)) continue;
    const absl::Status why = absl::UnavailableError(peer->lease.describe(worst_lag_, more));
    if (established_ || WEFT_BREAK(joiner_declares_dead)) {
      suspect(look.peer, why, out);
    } else {
      report_suspect(look.peer, why, out);
    }
  }
}

// The others need `suspect_after` and a little more for their death record. So the report has twice
// that time before this worker reads the list.
void MembershipCore::settle_report(const Look& look, const PassedTime& passed,
                                   MembershipActions& out) {
  Roster::Peer* const peer = roster_.find(look.peer);
  if (peer == nullptr || peer->suspicion.reported().ok()) return;
  Suspicion& suspicion = peer->suspicion;
  if (established_ || suspicion.is_heard_since_report(look.heard)) {
    suspicion.withdraw_report();  // from now on the lease decides
  } else if (suspicion.age_report(passed.counted) >= 2 * peer->lease.silence_limit(worst_lag_)) {
    ask_only(look.peer, suspicion.reported(), out);
  }
}

void MembershipCore::on_heartbeat_answer(WorkerId from, uint64_t number, TimePoint now,
                                         MembershipActions& out) {
  Roster::Peer* const peer = roster_.find(from);
  if (peer == nullptr) return;
  if (const auto until = peer->lease.answered(number, own_.at(now))) {
    out.validities.push_back({from, *until});
  }
}

bool MembershipCore::has_valid_lease(WorkerId worker, TimePoint now) const {
  const Roster::Peer* const peer = roster_.find(worker);
  return peer != nullptr && peer->lease.is_valid(now);
}

size_t MembershipCore::leases() const {
  return static_cast<size_t>(
      std::count_if(roster_.peers().begin(), roster_.peers().end(),
                    [](const auto& entry) { return entry.second.lease.is_active(); }));
}

// ---- suspicion and death record

void MembershipCore::ask(WorkerId worker, const absl::Status& reason, bool declare_dead,
                         MembershipActions& out) {
  Roster::Peer* const peer = roster_.find(worker);
  if (peer == nullptr || peer->suspicion.is_asked()) return;
  const std::string why(reason.message());
  peer->suspicion.ask(next_question_, why, declare_dead);
  out.questions.push_back({worker, next_question_++, why, declare_dead});
}

void MembershipCore::unanswered(WorkerId by, const absl::Status& reason, MembershipActions& out) {
  if (!is_live(by)) return;
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
  if (roster_.find(worker)->suspicion.report(reason, own_.last_look())) {
    out.suspect_reports.push_back(worker);
  }
}

void MembershipCore::look_after(WorkerId worker, MembershipActions& out) {
  if (Roster::Peer* const peer = roster_.find(worker)) {
    peer->lease.share(own_.last_look());
  } else if (!is_fenced() && !roster_.ended().contains(worker)) {
    meet(worker, out);
  }
}

void MembershipCore::refused(WorkerId by, const absl::Status& reason, MembershipActions& out) {
  if (WEFT_BREAK(refused_declares_dead)) ask(by, reason, true, out);
  ask_only(by, reason, out);
  if (WEFT_BREAK(refusal_not_checked)) out.refused = reason;
}

void MembershipCore::ask_only(WorkerId worker, const absl::Status& reason, MembershipActions& out) {
  ask(worker, reason, false, out);
  if (Roster::Peer* const peer = roster_.find(worker)) peer->suspicion.set_undecided(reason);
}

// A worker that could not ask before may still write a death record of one of such a pair. This
// worker may have lost all workers that would post it. So it reads the list itself.
void MembershipCore::read_again(MembershipActions& out) {
  const bool due =
      roster_.ended().has_undecided() && reading_ == 0 && own_.last_look() - read_ >= pause_;
  if (is_fenced() || !due || !out.questions.empty() || WEFT_BREAK(undecided_not_read_again)) return;
  reading_ = next_question_++;
  out.questions.push_back({self(), reading_, "", /*declare_dead=*/false});
}

void MembershipCore::answer(WorkerId suspect, uint64_t question,
                            const absl::StatusOr<std::vector<DeathRecord>>& death_records,
                            MembershipActions& out) {
  if (death_records.ok()) learn(*death_records, out);
  if (question == reading_) {
    reading_ = 0;
    read_ = own_.last_look();
    if (!absl::IsAborted(death_records.status())) pause_ = bounded(2 * pause_, limits_);
    return;
  }
  const Roster::Peer* const peer = roster_.find(suspect);
  if (is_fenced() || peer == nullptr || !peer->suspicion.is_asked(question)) return;
  if (WEFT_BREAK(unknown_decides_nothing)) return;
  // The list does not decide, so the two part for themselves alone.
  const absl::Status why = absl::UnavailableError(peer->suspicion.reason());
  if (!peer->suspicion.undecided().ok()) out.refused = peer->suspicion.undecided();
  end(suspect, why, out);
  roster_.ended().part_undecided(suspect);
  read_ = own_.last_look();
  pause_ = limits_.suspect_after;
  // No member ever answered this worker, so none will post it its own death record.
  if (!established_ && roster_.peers().empty() && !out.refused.ok())
    standing_ = out.fenced = out.refused;
}

void MembershipCore::on_notice(const DeathRecord& death_record, MembershipActions& out) {
  if (death_record.dead == self()) {
    if (!WEFT_BREAK(own_death_ignored)) fence(death_record, out);
    return;
  }
  const bool own = death_record.by == self();
  end(death_record.dead,
      absl::UnavailableError(own ? death_record.reason
                                 : absl::StrCat("was declared dead by worker ",
                                                roster_.named(death_record.by), ": ",
                                                death_record.reason)),
      out);
  // Another worker may have read the record before its writer was answered. So the writer tells the
  // others when it first sees the record, from whatever source.
  if (!roster_.ended().learn(death_record) || !roster_.ended().speaks_for(self(), death_record.by))
    return;
  tell_others(death_record, out);
  // The dead worker may have been a writer, and may have died before it told all.
  for (const DeathRecord& written : roster_.ended().written_by(death_record.dead)) {
    tell_others(written, out);
  }
}

void MembershipCore::tell_others(const DeathRecord& death_record, MembershipActions& out) const {
  if (WEFT_BREAK(death_record_not_told)) return;
  for (const auto& [id, peer] : roster_.peers()) out.notices.push_back({id, death_record});
}

void MembershipCore::end(WorkerId worker, absl::Status reason, MembershipActions& out) {
  const bool was_live = roster_.end(worker), looked_up = unknown_.erase(worker) > 0;
  claims_.drop(worker);
  if (was_live || looked_up) out.gone.push_back({worker, std::move(reason)});
}

// Other workers' messages have named these incarnations. An earlier incarnation of an index is gone
// once a later one is known.
void MembershipCore::settle_ended(const std::vector<WorkerId>& tied, MembershipActions& out) const {
  for (const WorkerId worker : tied) {
    if (worker == self() || is_live(worker)) continue;
    if (is_fenced()) {
      out.gone.push_back({worker, standing_});
    } else if (roster_.ended().contains(worker) || roster_.is_outlived(worker)) {
      out.gone.push_back({worker, absl::UnavailableError("had ended")});
    }
  }
}

void MembershipCore::fence(const DeathRecord& death_record, MembershipActions& out) {
  if (is_fenced()) return;
  standing_ = absl::UnavailableError(
      absl::StrCat("worker ", roster_.named(self()), " was declared dead by worker ",
                   roster_.named(death_record.by), ": it ", death_record.reason));
  out.fenced = standing_;
  roster_.drop_peers();
  for (WorkerId unknown : unknown_) out.gone.push_back({unknown, standing_});
  unknown_.clear();
  claims_.drop_all();
}

}  // namespace weft::rpc_internal
