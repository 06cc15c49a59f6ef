#include "weft/tests/sim/lease_membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world.h"

namespace weft::sim {

using rpc_internal::MembershipActions;
using rpc_internal::MembershipCore;
using rpc_internal::Topic;

namespace {

constexpr Nanoseconds kStoreTimeout = std::chrono::milliseconds(500);

}  // namespace

LeaseMembership::Member::Member(WorkerId id, const LeaseLimits& limits, LocalClock clock_in,
                                TimePoint now, std::shared_ptr<RendezvousStore> store)
    : core({id, absl::StrCat("worker", id.index), ""}, limits, clock_in.at(now)),
      list(std::move(store), "sim", 1),
      clock(clock_in) {}

LeaseMembership::LeaseMembership(World& world)
    : world_(world), book_(world), all_(store_, "sim", 1) {
  // Longer than by default, and with less linger: beats are most of what happens in idle time.
  limits_.interval =
      world_.dice.chance(30) ? std::chrono::milliseconds(200) : std::chrono::milliseconds(400);
  limits_.linger = limits_.interval * static_cast<int64_t>(world_.dice.between(1, 4));
}

LeaseMembership::Member& LeaseMembership::at(const Worker& worker) const {
  return *members_[worker.slot];
}

TimePoint LeaseMembership::now(const Member& member) const {
  return member.clock.at(world_.schedule.now());
}

WorkerInfo LeaseMembership::info(WorkerId worker) const {
  return {worker, absl::StrCat("worker", worker.index), ""};
}

void LeaseMembership::add_member(Slot slot) {
  const int drift = static_cast<int>(world_.dice.below(2 * LocalClock::kMostDrift + 1));
  members_.push_back(std::make_unique<Member>(world_.life(slot).id, limits_,
                                              LocalClock{drift - LocalClock::kMostDrift},
                                              world_.schedule.now(), store_));
}

void LeaseMembership::on_start() {
  for (Slot slot = 0; slot < world_.lives().size(); ++slot) {
    add_member(slot);
    for (const Life& life : world_.lives()) members_[slot]->core.add(info(life.id));
    records_[world_.life(slot).id.index] = world_.life(slot).id;
    const Nanoseconds within =
        limits_.interval * static_cast<int64_t>(world_.dice.below(100)) / 100;
    arm(*world_.life(slot).worker, within);
  }
}

// Both of two may dial, at about the same time.
void LeaseMembership::on_static_join() {
  const Slot members = static_cast<Slot>(world_.lives().size());
  for (Slot slot = 0; slot < members; ++slot) {
    Sessions& sessions = world_.life(slot).worker->sessions;
    for (Slot other = 0; other < members; ++other) sessions.add_peer(other, false);
    world_.schedule.in(world_.dice.micros(0, 20000), EventKind::kStore, slot, members,
                       static_cast<uint64_t>(Phase::kDial));
  }
}

// ---- what the core asks for, in the order of Membership::act

template <class Event>
void LeaseMembership::step(Worker& worker, Event event) {
  MembershipActions actions;
  event(at(worker).core, actions);
  act(worker, actions);
}

void LeaseMembership::act(Worker& worker, MembershipActions& actions) {
  for (const MembershipActions::Beat& beat : actions.beats) {
    worker.sessions.beat(beat.to, beat.number);
  }
  for (const MembershipActions::Trust& trust : actions.trusts) {
    Member& member = at(worker);
    if (trust.until == kNever) {
      member.leases.erase(trust.peer);
      worker.sessions.trust(trust.peer, kNever);
    } else {
      member.leases.try_emplace(trust.peer, now(member));
      worker.sessions.trust(trust.peer,
                            world_.schedule.now() + member.clock.span(trust.until - now(member)));
    }
  }
  for (const MembershipActions::Notice& notice : actions.notices) {
    post(worker, notice.to, {Parcel::Kind::kDeath, notice.verdict});
  }
  for (const MembershipActions::Gone& gone : actions.gone) lose(worker, gone.worker);
  if (!actions.refused.ok()) fail_to_join(worker);
  if (!actions.fenced.ok()) {
    const std::vector<WorkerId> all = worker.sessions.all_live();
    worker.fence(all);
    for (const WorkerId peer : all) {
      met(worker, peer);
      welcomed(worker, peer);
    }
  }
  for (const MembershipActions::Question& question : actions.questions) ask(worker, question);
  for (const WorkerId stranger : actions.lookups) look_up(worker, stranger);
  for (const WorkerInfo& claimant : actions.claims) {
    world_.report.count(Effect::kClaims);
    read_record(worker, claimant.id, Phase::kCompared);
  }
  for (const WorkerId doubted : actions.doubts) {
    world_.report.count(Effect::kDoubts);
    for (const WorkerId member : worker.sessions.all_live()) {
      if (member == doubted || at(worker).unmet.contains(member)) continue;
      post(worker, member, {Parcel::Kind::kDoubt, {doubted, {}, {}}});
    }
  }
  for (const WorkerId silent : actions.redials) worker.sessions.reach(silent);
}

void LeaseMembership::post(Worker& from, WorkerId to, Parcel parcel) {
  from.sessions.post(to, Topic::kMembership, std::make_shared<Parcel>(std::move(parcel)), 40);
}

void LeaseMembership::lose(Worker& worker, WorkerId gone) {
  if (!worker.sessions.knows(gone)) world_.report.count(Effect::kStrangers);
  book_.part(worker.id, gone);
  worker.on_verdict(gone);
  at(worker).core.left(gone);
  met(worker, gone);
  welcomed(worker, gone);
}

// ---- the store

void LeaseMembership::ask(Worker& worker, const MembershipActions::Question& question) {
  const TimePoint now = world_.schedule.now();
  Nanoseconds there = world_.dice.micros(100, 1500), back = world_.dice.micros(100, 1500);
  if (world_.slow_store) {
    there += world_.dice.millis(10, 300);
    back += world_.dice.millis(10, 300);
    world_.felt(world_.slow_store_fault);
  }
  if (question.condemn) worker.sessions.answer_no_beats_of(question.suspect);
  Member& member = at(worker);
  const TimePoint reaches = std::max(now, member.store_free) + there;
  member.store_free = reaches + back;
  const uint64_t number = questions_.size();
  questions_.push_back({worker.slot, question, absl::UnavailableError("not asked")});
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("  ", worker.id.to_string(), " asks the list about ",
                                  question.suspect.to_string(), ": ", question.reason,
                                  question.condemn ? "" : " (reads)"));
  }
  const auto later = [&](TimePoint when, Slot slot, Phase phase) {
    world_.schedule.at(when, EventKind::kStore, slot, number, static_cast<uint64_t>(phase));
  };
  later(reaches, kNobody, Phase::kReaches);
  later(reaches + back, worker.slot, Phase::kAnswered);
  later(now + kStoreTimeout + member.clock.span(member.core.allowance()), worker.slot,
        Phase::kLate);
}

void LeaseMembership::reach(Question& question) {
  if (world_.life(question.by).worker == nullptr) return;
  if (world_.silent_store) {
    world_.felt(world_.silent_store_fault);
    store_->set_mood(world_.dice.chance(50) ? VirtualStore::Mood::kLosesQuestions
                                            : VirtualStore::Mood::kLosesAnswers);
  }
  const size_t before = book_.list().size();
  VerdictList& list = members_[question.by]->list;
  question.answer =
      question.what.condemn
          ? list.condemn(world_.life(question.by).id, question.what.suspect, question.what.reason)
          : list.read();
  store_->set_mood(VirtualStore::Mood::kWell);
  note_appended();
  // The worst moment for a writer to die is before it has told anybody.
  if (book_.list().size() > before && world_.may_crash() && world_.dice.chance(15)) {
    world_.crash(question.by);
  }
}

void LeaseMembership::meet(Worker& at, WorkerId stranger) {
  at.sessions.add_stranger(world_.slot_of(stranger));
  step(at, [&](MembershipCore& core, auto& out) { core.meet(stranger, out); });
}

void LeaseMembership::look_up(Worker& worker, WorkerId stranger) {
  if (!worker.sessions.knows(stranger)) worker.sessions.add_stranger(world_.slot_of(stranger));
  read_record(worker, stranger, Phase::kFound);
}

void LeaseMembership::read_record(Worker& worker, WorkerId life, Phase then) {
  if (world_.silent_store) world_.felt(world_.silent_store_fault);
  world_.schedule.in(world_.silent_store ? kStoreTimeout : world_.dice.micros(200, 3000),
                     EventKind::kStore, worker.slot, life.bits(), static_cast<uint64_t>(then));
}

absl::StatusOr<std::optional<WorkerInfo>> LeaseMembership::record_of(WorkerId life) const {
  if (world_.silent_store) {
    return absl::DeadlineExceededError("the rendezvous store did not answer in time");
  }
  const auto found = records_.find(life.index);
  if (found == records_.end() || found->second != life) return std::nullopt;
  return info(life);
}

void LeaseMembership::on_found(Worker& worker, WorkerId stranger) {
  const auto record = record_of(stranger);
  bool member = false;
  step(worker,
       [&](MembershipCore& core, auto& out) { member = core.found(stranger, record, out); });
  if (member) worker.sessions.reach(stranger);
}

void LeaseMembership::on_compared(Worker& worker, WorkerId claimant) {
  const auto record = record_of(claimant);
  bool member = false;
  step(worker, [&](MembershipCore& core, auto& out) {
    member = core.compared(info(claimant), record, out);
    if (member) worker.sessions.admit(claimant);
  });
  if (!member) return;
  greet(worker, claimant);
  worker.sessions.reach(claimant);
}

void LeaseMembership::note_appended() {
  const absl::StatusOr<std::vector<Verdict>> fresh = all_.read();
  if (!fresh.ok()) return world_.violate("one order", fresh.status().ToString());
  for (const Verdict& verdict : *fresh) {
    if (world_.trace.on()) {
      world_.trace.add(absl::StrCat("  the list: ", verdict.dead.to_string(), " is dead, by ",
                                    verdict.by.to_string()));
    }
    bool trusted = false;
    if (const Worker* accused = world_.worker(verdict.dead); accused != nullptr) {
      const Member& member = at(*accused);
      trusted = member.beaten.contains(verdict.by) && member.core.trusts(verdict.by, now(member));
    }
    book_.append(verdict, limits_.patience, limits_.interval, trusted);
  }
  if (fresh->size() > 1) world_.violate("one order", "one question, two verdicts");
}

void LeaseMembership::on_event(const Event& event) {
  if (event.kind == EventKind::kLook) return look(*world_.life(event.slot).worker);
  switch (static_cast<Phase>(event.b)) {
    case Phase::kReaches:
      return reach(questions_[event.a]);
    case Phase::kPublish:
      return publish(*world_.life(event.slot).worker);
    case Phase::kDial:
      for (Slot slot = 0; slot < event.a; ++slot) {
        const WorkerId id = world_.life(slot).id;
        if (slot != event.slot) world_.life(event.slot).worker->sessions.reach(id);
      }
      return;
    case Phase::kLeave:
      if (world_.life(static_cast<Slot>(event.a)).worker != nullptr) {
        world_.leave(static_cast<Slot>(event.a));
      }
      return;
    case Phase::kFound:
      return on_found(*world_.life(event.slot).worker, WorkerId::from_bits(event.a));
    case Phase::kCompared:
      return on_compared(*world_.life(event.slot).worker, WorkerId::from_bits(event.a));
    case Phase::kSpread:
      return check_spread(spreads_[event.a]);
    case Phase::kAnswered:
    case Phase::kLate:
      return on_answer(questions_[event.a], static_cast<Phase>(event.b) == Phase::kLate);
  }
}

void LeaseMembership::on_answer(const Question& question, bool late) {
  const absl::StatusOr<std::vector<Verdict>> answer =
      late ? absl::DeadlineExceededError("the rendezvous store did not answer in time")
           : question.answer;
  Worker& worker = *world_.life(question.by).worker;
  const auto has = [&](WorkerId dead) {
    return answer.ok() && std::any_of(answer->begin(), answer->end(),
                                      [&](const Verdict& v) { return v.dead == dead; });
  };
  // Who wrote a verdict tells it, and what the dead one had written.
  if (answer.ok() && !answer->empty() && answer->back().by == worker.id && !worker.fenced) {
    watch_spread(worker.id, worker.sessions.all_live(), answer->back().dead);
    for (const Verdict& verdict : *answer) {
      if (verdict.by == answer->back().dead) {
        watch_spread(worker.id, worker.sessions.all_live(), verdict.dead);
      }
    }
  }
  if (answer.ok()) book_.read(*answer);
  step(worker, [&](MembershipCore& core, auto& out) {
    core.answer(question.what.suspect, question.what.number, answer, out);
  });
  if (has(worker.id) && !worker.fenced) {
    world_.violate("fence", worker.id.to_string() + " has read of its own death and goes on");
  }
}

void LeaseMembership::watch_spread(WorkerId teller, std::vector<WorkerId> told, WorkerId dead) {
  spreads_.push_back({dead, teller, std::move(told), world_.schedule.now()});
  world_.schedule.in(std::chrono::milliseconds(500), EventKind::kStore, kNobody,
                     spreads_.size() - 1, static_cast<uint64_t>(Phase::kSpread));
}

// By post it takes no longer than a connection that is made again.
void LeaseMembership::check_spread(const Spread& spread) {
  const Worker* teller = world_.worker(spread.teller);
  if (teller == nullptr || teller->fenced) return;
  for (const WorkerId told : spread.told) {
    const Worker* worker = world_.worker(told);
    if (worker == nullptr || worker->fenced || told == spread.dead) continue;
    if (!teller->sessions.is_live(told) || !at(*worker).core.is_live(spread.dead)) continue;
    const bool apart = book_.cut_off(told, spread.teller, spread.since).count() > 0 ||
                       book_.cut_off(spread.teller, told, spread.since).count() > 0;
    if (apart || condemned(told)) continue;
    world_.violate("verdict reaches all", absl::StrCat(told.to_string(), " was not told that ",
                                                       spread.dead.to_string(), " is dead"));
  }
}

// ---- leases

void LeaseMembership::arm(const Worker& worker, Nanoseconds within) {
  if (!world_.over) world_.schedule.in(within, EventKind::kLook, worker.slot);
}

void LeaseMembership::look(Worker& worker) {
  Member& member = at(worker);
  tied_.clear();
  looks_.clear();
  worker.references.core().append_ties(tied_);
  worker.passes.core().append_ties(tied_);
  const std::vector<WorkerId> strangers = tied_;
  worker.calls.append_callers(tied_);
  std::sort(tied_.begin(), tied_.end());
  worker.sessions.append_looks(tied_, looks_, member.clock);
  ask_kernel(worker);
  MembershipActions actions;
  member.core.tick(now(member), looks_, actions);
  member.core.bury(strangers, actions);
  worker.sessions.say_in_beats(member.core.lag());
  member.beaten.clear();
  for (const MembershipActions::Beat& beat : actions.beats) member.beaten.insert(beat.to);
  act(worker, actions);
  arm(worker, member.clock.span(limits_.interval));
}

// All workers are on one machine: as ProcessorWaits does.
void LeaseMembership::ask_kernel(Worker& worker) {
  Member& member = at(worker);
  std::map<WorkerId, Nanoseconds> told;
  const auto waited = [&](WorkerId whom) {
    const Life& life = world_.life(world_.slot_of(whom));
    const Nanoseconds all =
        life.waited + (life.slow ? world_.schedule.now() - life.paused_at : Nanoseconds(0));
    told[whom] = all;
    const auto before = member.waits.find(whom);
    return before == member.waits.end() ? Nanoseconds(0) : all - before->second;
  };
  for (const WorkerId watched : member.core.to_watch()) {
    if (watched == worker.id) {
      member.core.waited(waited(watched));
      continue;
    }
    for (MembershipCore::Look& look : looks_) {
      if (look.peer == watched) look.waited = waited(watched);
    }
  }
  member.waits = std::move(told);
}

void LeaseMembership::on_beat_answer(Worker& worker, WorkerId from, uint64_t number) {
  step(worker, [&](MembershipCore& core, auto& out) {
    core.on_beat_answer(from, number, now(at(worker)), out);
  });
}

// Who has had time to be answered calls nobody whom it does not trust.
void LeaseMembership::call_sent(const Worker& by, WorkerId to) {
  const Member& member = at(by);
  const auto lease = member.leases.find(to);
  if (lease == member.leases.end() || now(member) - lease->second < limits_.trust) return;
  if (!member.core.trusts(to, now(member))) {
    world_.violate("S6", absl::StrCat(by.id.to_string(), " calls ", to.to_string(),
                                      ", which it does not trust"));
  }
}

void LeaseMembership::suspect(Worker& by, WorkerId whom) {
  step(by, [&](MembershipCore& core, auto& out) {
    core.suspect(whom, absl::UnavailableError("cannot be reached"), out);
  });
}

void LeaseMembership::unanswered(Worker& by, WorkerId whom) {
  step(by, [&](MembershipCore& core, auto& out) {
    core.unanswered(whom, absl::DeadlineExceededError("does not answer"), out);
  });
}

void LeaseMembership::refused(Worker& by, WorkerId whom) {
  step(by, [&](MembershipCore& core, auto& out) {
    core.refused(whom, absl::PermissionDeniedError("refuses this worker"), out);
  });
}

// ---- newcomers

// The list is read before the record is written, and the others' records after it.
void LeaseMembership::on_join(Worker& worker) {
  add_member(worker.slot);
  Member& member = at(worker);
  member.newcomer = true;
  member.joined = false;
  const absl::StatusOr<std::vector<Verdict>> read = member.list.read();
  if (read.ok()) member.read = *read;
  book_.read(member.read);
  world_.schedule.in(world_.dice.micros(200, 20000), EventKind::kStore, worker.slot, 0,
                     static_cast<uint64_t>(Phase::kPublish));
}

void LeaseMembership::publish(Worker& worker) {
  Member& member = at(worker);
  records_[worker.id.index] = worker.id;
  for (const auto& record : records_) {
    const WorkerId newest = record.second;
    const auto ended = [&](const Verdict& verdict) { return verdict.dead == newest; };
    if (newest == worker.id || std::any_of(member.read.begin(), member.read.end(), ended)) continue;
    member.core.add(info(newest));
    member.unmet.insert(newest);
    member.unwelcome.insert(newest);
    worker.sessions.add_peer(world_.slot_of(newest), true);
  }
  step(worker, [&](MembershipCore& core, auto& out) { core.learn(member.read, out); });
  met(worker, {});
  welcomed(worker, {});
  arm(worker, limits_.interval);
}

Membership::Door LeaseMembership::accepts(Worker& worker, WorkerId dialler) {
  if (worker.sessions.knows(dialler)) {
    return worker.sessions.is_gone(dialler) ? Door::kRefused : Door::kOpen;
  }
  absl::Status admitted;
  step(worker, [&](MembershipCore& core, auto& out) {
    admitted = core.admit(info(dialler), out);
    if (admitted.ok()) worker.sessions.admit(dialler);
  });
  if (absl::IsAborted(admitted)) return Door::kNotYet;
  if (!admitted.ok()) return Door::kRefused;
  greet(worker, dialler);
  return Door::kOpen;
}

void LeaseMembership::greet(Worker& worker, WorkerId newcomer) {
  for (const WorkerId dead : worker.known_dead) {
    if (condemned(dead) && !book_.any_severed()) watch_spread(worker.id, {newcomer}, dead);
  }
}

void LeaseMembership::opened(Worker& worker, WorkerId peer) {
  at(worker).met_anybody = true;
  if (!at(worker).newcomer) at(worker).core.established();
  met(worker, peer);
}

void LeaseMembership::met(Worker& worker, WorkerId peer) {
  Member& member = at(worker);
  member.unmet.erase(peer);
  if (!member.newcomer || !member.unmet.empty() || std::exchange(member.announced, true)) return;
  for (const WorkerId other : worker.sessions.all_live()) {
    post(worker, other, {Parcel::Kind::kJoined, {}});
  }
}

void LeaseMembership::welcomed(Worker& worker, WorkerId by) {
  Member& member = at(worker);
  member.unwelcome.erase(by);
  if (!member.newcomer || !member.unwelcome.empty() || member.failed) return;
  member.core.established();
  if (!std::exchange(member.joined, true)) world_.report.count(Effect::kJoined);
}

// Worker::join has failed: the process ends.
void LeaseMembership::fail_to_join(Worker& worker) {
  Member& member = at(worker);
  if (!member.newcomer || member.joined || std::exchange(member.failed, true)) return;
  world_.report.count(Effect::kNotJoined);
  const bool outlived = world_.newest(worker.id.index) != worker.id;
  if (!book_.any_severed() && !outlived && !book_.condemned(worker.id)) {
    world_.violate("newcomer", worker.id.to_string() + " was refused by nobody that lives");
  }
  if (world_.trace.on()) world_.trace.add("  could not join");
  world_.schedule.in(std::chrono::microseconds(100), EventKind::kStore, kNobody, worker.slot,
                     static_cast<uint64_t>(Phase::kLeave));
}

void LeaseMembership::on_post(Worker& worker, WorkerId from, const std::shared_ptr<void>& body) {
  const std::shared_ptr<void> kept = body;
  const Parcel& parcel = *static_cast<const Parcel*>(kept.get());
  switch (parcel.kind) {
    case Parcel::Kind::kDeath:
      world_.report.count(Effect::kTold);
      return step(worker,
                  [&](MembershipCore& core, auto& out) { core.on_notice(parcel.verdict, out); });
    case Parcel::Kind::kDoubt:
      return step(worker, [&](MembershipCore& core, auto& out) {
        core.look_after(parcel.verdict.dead, out);
      });
    case Parcel::Kind::kJoined:
      worker.sessions.name(from);
      return post(worker, from, {Parcel::Kind::kWelcome, {}});
    case Parcel::Kind::kWelcome:
      return welcomed(worker, from);
  }
}

bool LeaseMembership::takes_part(const Worker& worker) const {
  return !worker.fenced && at(worker).joined;
}

// ---- when all is mended

void LeaseMembership::check_ended() {
  const auto settled = [this](WorkerId id) { return !book_.severed(id); };
  for (const Life& life : world_.lives()) {
    if (life.worker == nullptr) continue;
    const Worker& worker = *life.worker;
    const Member& member = at(worker);
    // Alone, it has nobody who would tell it, and nobody whom it could harm.
    const bool alone = worker.sessions.all_live().empty();
    // Who wrote of it may have died before it told, and whoever found that had no store.
    const bool told = std::all_of(
        book_.list().begin(), book_.list().end(),
        [&](const Verdict& verdict) { return verdict.dead != life.id || settled(verdict.by); });
    if (told && book_.must_be_known(life.id) && settled(life.id) && !worker.fenced && !alone) {
      world_.violate("fence", life.id.to_string() + " is dead to the others and does not know it");
    }
    if (worker.fenced && !book_.condemned(life.id) && member.met_anybody) {
      world_.violate("fence", life.id.to_string() + " fenced itself without a verdict");
    }
    if (!member.joined && !member.failed) {
      world_.violate("newcomer", life.id.to_string() + " neither joined nor failed");
    }
    if (worker.fenced || alone || condemned(life.id) || !settled(life.id)) continue;
    for (const Verdict& verdict : book_.list()) {
      if (!settled(verdict.by) || !book_.must_be_known(verdict.dead)) continue;
      if (!member.core.is_live(verdict.dead)) continue;
      world_.violate("verdict reaches all",
                     absl::StrCat(life.id.to_string(), " does not know that ",
                                  verdict.dead.to_string(), " is dead"));
    }
    for (const Life& other : world_.lives()) {
      if (other.worker == nullptr || condemned(other.id) || !settled(other.id)) continue;
      if (other.id == life.id || member.core.is_live(other.id)) continue;
      world_.violate("members", absl::StrCat(life.id.to_string(), " has lost ",
                                             other.id.to_string(), " and both live"));
    }
  }
}

}  // namespace weft::sim
