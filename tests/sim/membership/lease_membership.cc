#include "weft/tests/sim/membership/lease_membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using rpc_internal::MembershipActions;
using rpc_internal::MembershipCore;
using rpc_internal::Topic;

namespace {

constexpr Nanoseconds kStoreTimeout = std::chrono::milliseconds(500);

}  // namespace

LeaseMembership::Member::Member(WorkerId id, const LeaseOptions& limits, LocalClock clock_in,
                                TimePoint now, std::shared_ptr<RendezvousStore> store)
    : core({id, absl::StrCat("worker", id.index), ""}, limits, clock_in.at(now)),
      list(std::move(store), "sim", 1),
      clock(clock_in) {}

LeaseMembership::LeaseMembership(World& world)
    : world_(world), book_(world), all_(store_, "sim", 1) {
  // The interval is longer than the default and the linger shorter, because idle workers mostly
  // send heartbeats.
  limits_.heartbeat_interval =
      world_.dice.chance(30) ? std::chrono::milliseconds(200) : std::chrono::milliseconds(400);
  limits_.linger = limits_.heartbeat_interval * static_cast<int64_t>(world_.dice.between(1, 4));
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
  members_.push_back(std::make_unique<Member>(world_.incarnation(slot).id, limits_,
                                              LocalClock{drift - LocalClock::kMostDrift},
                                              world_.schedule.now(), store_));
}

void LeaseMembership::on_start() {
  for (Slot slot = 0; slot < world_.incarnations().size(); ++slot) {
    add_member(slot);
    for (const Incarnation& incarnation : world_.incarnations())
      members_[slot]->core.add(info(incarnation.id));
    records_[world_.incarnation(slot).id.index] = world_.incarnation(slot).id;
    const Nanoseconds within =
        limits_.heartbeat_interval * static_cast<int64_t>(world_.dice.below(100)) / 100;
    arm(*world_.incarnation(slot).worker, within);
  }
}

// Two workers may dial each other at about the same time.
void LeaseMembership::on_static_join() {
  const Slot members = static_cast<Slot>(world_.incarnations().size());
  for (Slot slot = 0; slot < members; ++slot) {
    Sessions& sessions = world_.incarnation(slot).worker->sessions;
    for (Slot other = 0; other < members; ++other) sessions.add_peer(other, false);
    world_.schedule.in(world_.dice.micros(0, 20000), EventKind::kStore, slot, members,
                       static_cast<uint64_t>(Phase::kDial));
  }
}

// ---- the actions of the core, in the order of Membership::act

template <class Event>
void LeaseMembership::step(Worker& worker, Event event) {
  MembershipActions actions;
  event(at(worker).core, actions);
  act(worker, actions);
}

void LeaseMembership::act(Worker& worker, MembershipActions& actions) {
  auto& [heartbeats, validities, questions, gone, notices, suspect_reports, redials, lookups,
         claims, refused, fenced] = actions;
  for (const MembershipActions::Heartbeat& heartbeat : heartbeats) {
    worker.sessions.heartbeat(heartbeat.to, heartbeat.number);
  }
  for (const MembershipActions::Validity& validity : validities) {
    Member& member = at(worker);
    if (validity.until == kNever) {
      member.leases.erase(validity.peer);
      worker.sessions.set_valid_until(validity.peer, kNever);
    } else {
      member.leases.try_emplace(validity.peer, now(member));
      worker.sessions.set_valid_until(
          validity.peer, world_.schedule.now() + member.clock.span(validity.until - now(member)));
    }
  }
  for (const MembershipActions::Notice& notice : notices) {
    post(worker, notice.to, {MessageBatch::Kind::kDeath, notice.death_record});
  }
  if (!refused.ok()) fail_to_join(worker);
  for (const MembershipActions::Gone& one : gone) lose(worker, one.worker);
  if (!fenced.ok()) {
    const std::vector<WorkerId> all = worker.sessions.all_live();
    worker.fence(all);
    for (const WorkerId peer : all) {
      met(worker, peer);
      welcomed(worker, peer);
    }
  }
  for (const MembershipActions::Question& question : questions) ask(worker, question);
  for (const WorkerId unknown : lookups) look_up(worker, unknown);
  for (const WorkerInfo& claimant : claims) {
    world_.report.count(Effect::kClaims);
    read_record(worker, claimant.id, Phase::kCompared);
  }
  for (const WorkerId suspected : suspect_reports) {
    world_.report.count(Effect::kSuspectReports);
    for (const WorkerId member : worker.sessions.all_live()) {
      if (member == suspected || at(worker).unmet.contains(member)) continue;
      post(worker, member, {MessageBatch::Kind::kSuspectReport, {suspected, {}, {}}});
    }
  }
  for (const WorkerId silent : redials) worker.sessions.reach(silent);
}

void LeaseMembership::post(Worker& from, WorkerId to, MessageBatch batch) {
  from.sessions.post(to, Topic::kMembership, std::make_shared<MessageBatch>(std::move(batch)), 40);
}

void LeaseMembership::lose(Worker& worker, WorkerId gone) {
  if (!worker.sessions.knows(gone)) world_.report.count(Effect::kUnknownEnded);
  book_.part(worker.id, gone);
  worker.on_death_record(gone);
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
  if (question.declare_dead) worker.sessions.answer_no_heartbeats_of(question.suspect);
  Member& member = at(worker);
  const TimePoint reaches = std::max(now, member.store_free) + there;
  member.store_free = reaches + back;
  const uint64_t number = questions_.size();
  questions_.push_back({worker.slot, question, absl::UnavailableError("not asked")});
  if (world_.trace.on()) {
    world_.trace.add(absl::StrCat("  ", worker.id.to_string(), " asks the list about ",
                                  question.suspect.to_string(), ": ", question.reason,
                                  question.declare_dead ? "" : " (reads)"));
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
  if (world_.incarnation(question.by).worker == nullptr) return;
  if (world_.silent_store) {
    world_.felt(world_.silent_store_fault);
    store_->set_mood(world_.dice.chance(50) ? VirtualStore::Mood::kLosesQuestions
                                            : VirtualStore::Mood::kLosesAnswers);
  }
  const size_t before = book_.list().size();
  DeathRecords& list = members_[question.by]->list;
  question.answer = question.what.declare_dead
                        ? list.declare_dead(world_.incarnation(question.by).id,
                                            question.what.suspect, question.what.reason)
                        : list.read();
  store_->set_mood(VirtualStore::Mood::kWell);
  note_appended();
  // The worst moment for a writer to crash is before it has told any worker.
  if (book_.list().size() > before && world_.may_crash() && world_.dice.chance(15)) {
    world_.crash(question.by);
  }
}

void LeaseMembership::meet(Worker& at, WorkerId unknown) {
  at.sessions.add_unknown(world_.slot_of(unknown));
  step(at, [&](MembershipCore& core, auto& out) { core.meet(unknown, out); });
}

void LeaseMembership::look_up(Worker& worker, WorkerId unknown) {
  if (!worker.sessions.knows(unknown)) worker.sessions.add_unknown(world_.slot_of(unknown));
  read_record(worker, unknown, Phase::kFound);
}

void LeaseMembership::read_record(Worker& worker, WorkerId incarnation, Phase then) {
  if (world_.silent_store) world_.felt(world_.silent_store_fault);
  world_.schedule.in(world_.silent_store ? kStoreTimeout : world_.dice.micros(200, 3000),
                     EventKind::kStore, worker.slot, incarnation.bits(),
                     static_cast<uint64_t>(then));
}

absl::StatusOr<std::optional<WorkerInfo>> LeaseMembership::record_of(WorkerId incarnation) const {
  if (world_.silent_store) {
    return absl::DeadlineExceededError("the rendezvous store did not answer in time");
  }
  const auto found = records_.find(incarnation.index);
  if (found == records_.end() || found->second != incarnation) return std::nullopt;
  return info(incarnation);
}

void LeaseMembership::on_found(Worker& worker, WorkerId unknown) {
  const auto record = record_of(unknown);
  bool member = false;
  step(worker, [&](MembershipCore& core, auto& out) { member = core.found(unknown, record, out); });
  if (member) worker.sessions.reach(unknown);
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
  const absl::StatusOr<std::vector<DeathRecord>> fresh = all_.read();
  if (!fresh.ok()) return world_.violate("one order", fresh.status().ToString());
  for (const DeathRecord& death_record : *fresh) {
    if (world_.trace.on()) {
      world_.trace.add(absl::StrCat("  the list: ", death_record.dead.to_string(), " is dead, by ",
                                    death_record.by.to_string()));
    }
    bool lease_valid = false;
    if (const Worker* accused = world_.worker(death_record.dead); accused != nullptr) {
      const Member& member = at(*accused);
      lease_valid = member.leased.contains(death_record.by) &&
                    member.core.has_valid_lease(death_record.by, now(member));
    }
    book_.append(death_record, limits_.suspect_after, limits_.heartbeat_interval, lease_valid);
  }
  if (fresh->size() > 1) world_.violate("one order", "one question, two death records");
}

void LeaseMembership::on_event(const Event& event) {
  if (event.kind == EventKind::kLook) return look(*world_.incarnation(event.slot).worker);
  switch (static_cast<Phase>(event.b)) {
    case Phase::kReaches:
      return reach(questions_[event.a]);
    case Phase::kPublish:
      return publish(*world_.incarnation(event.slot).worker);
    case Phase::kDial:
      for (Slot slot = 0; slot < event.a; ++slot) {
        const WorkerId id = world_.incarnation(slot).id;
        if (slot != event.slot) world_.incarnation(event.slot).worker->sessions.reach(id);
      }
      return;
    case Phase::kLeave:
      if (world_.incarnation(static_cast<Slot>(event.a)).worker != nullptr) {
        world_.leave(static_cast<Slot>(event.a));
      }
      return;
    case Phase::kFound:
      return on_found(*world_.incarnation(event.slot).worker, WorkerId::from_bits(event.a));
    case Phase::kCompared:
      return on_compared(*world_.incarnation(event.slot).worker, WorkerId::from_bits(event.a));
    case Phase::kSpread:
      return check_spread(spreads_[event.a]);
    case Phase::kAnswered:
    case Phase::kLate:
      return on_answer(questions_[event.a], static_cast<Phase>(event.b) == Phase::kLate);
  }
}

void LeaseMembership::on_answer(const Question& question, bool late) {
  const absl::StatusOr<std::vector<DeathRecord>> answer =
      late ? absl::DeadlineExceededError("the rendezvous store did not answer in time")
           : question.answer;
  Worker& worker = *world_.incarnation(question.by).worker;
  const auto has = [&](WorkerId dead) {
    return answer.ok() && std::any_of(answer->begin(), answer->end(),
                                      [&](const DeathRecord& v) { return v.dead == dead; });
  };
  // The writer of a death record tells its peers of it, and of the records that the dead worker
  // wrote.
  if (answer.ok() && !answer->empty() && answer->back().by == worker.id && !worker.fenced) {
    watch_spread(worker.id, worker.sessions.all_live(), answer->back().dead);
    for (const DeathRecord& death_record : *answer) {
      if (death_record.by == answer->back().dead) {
        watch_spread(worker.id, worker.sessions.all_live(), death_record.dead);
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

// A notice travels by post. So it takes at most as long as a connection takes to be made again.
void LeaseMembership::check_spread(const Spread& spread) {
  const Worker* teller = world_.worker(spread.teller);
  if (teller == nullptr || teller->fenced) return;
  for (const WorkerId told : spread.told) {
    const Worker* worker = world_.worker(told);
    if (worker == nullptr || worker->fenced || told == spread.dead) continue;
    if (!teller->sessions.is_live(told) || !at(*worker).core.is_live(spread.dead)) continue;
    const bool apart = book_.cut_off(told, spread.teller, spread.since).count() > 0 ||
                       book_.cut_off(spread.teller, told, spread.since).count() > 0;
    if (apart || declared_dead(told)) continue;
    world_.violate("death record reaches all", absl::StrCat(told.to_string(), " was not told that ",
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
  const std::vector<WorkerId> unknown = tied_;
  worker.calls.append_callers(tied_);
  std::sort(tied_.begin(), tied_.end());
  worker.sessions.append_looks(tied_, looks_, member.clock);
  ask_kernel(worker);
  MembershipActions actions;
  member.core.tick(now(member), looks_, actions);
  member.core.settle_ended(unknown, actions);
  worker.sessions.say_in_heartbeats(member.core.lag());
  member.leased.clear();
  for (const MembershipActions::Heartbeat& heartbeat : actions.heartbeats)
    member.leased.insert(heartbeat.to);
  act(worker, actions);
  arm(worker, member.clock.span(limits_.heartbeat_interval));
}

// Reads the waits from the kernel as ProcessorWaits does. All workers are on one machine.
void LeaseMembership::ask_kernel(Worker& worker) {
  Member& member = at(worker);
  std::map<WorkerId, Nanoseconds> told;
  const auto waited = [&](WorkerId whom) {
    const Incarnation& incarnation = world_.incarnation(world_.slot_of(whom));
    const Nanoseconds all =
        incarnation.waited +
        (incarnation.slow ? world_.schedule.now() - incarnation.paused_at : Nanoseconds(0));
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

void LeaseMembership::on_heartbeat_answer(Worker& worker, WorkerId from, uint64_t number) {
  step(worker, [&](MembershipCore& core, auto& out) {
    core.on_heartbeat_answer(from, number, now(at(worker)), out);
  });
}

// If there was time for an answer, a worker sends no call to a peer without a valid lease.
void LeaseMembership::call_sent(const Worker& by, WorkerId to) {
  const Member& member = at(by);
  const auto lease = member.leases.find(to);
  if (lease == member.leases.end() || now(member) - lease->second < limits_.valid_for) return;
  if (!member.core.has_valid_lease(to, now(member))) {
    world_.violate("S6", absl::StrCat(by.id.to_string(), " calls ", to.to_string(),
                                      ", whose lease is not valid"));
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

// ---- joiners

// A joiner reads the list before it writes its record, and the records of others after that.
void LeaseMembership::on_join(Worker& worker) {
  add_member(worker.slot);
  Member& member = at(worker);
  member.joiner = true;
  member.joined = false;
  const absl::StatusOr<std::vector<DeathRecord>> read = member.list.read();
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
    const auto ended = [&](const DeathRecord& death_record) { return death_record.dead == newest; };
    if (newest == worker.id || std::any_of(member.read.begin(), member.read.end(), ended)) continue;
    member.core.add(info(newest));
    member.unmet.insert(newest);
    member.unwelcome.insert(newest);
    worker.sessions.add_peer(world_.slot_of(newest), true);
  }
  step(worker, [&](MembershipCore& core, auto& out) { core.learn(member.read, out); });
  met(worker, {});
  welcomed(worker, {});
  arm(worker, limits_.heartbeat_interval);
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

void LeaseMembership::greet(Worker& worker, WorkerId joiner) {
  for (const WorkerId dead : worker.known_dead) {
    if (declared_dead(dead) && !book_.any_severed()) watch_spread(worker.id, {joiner}, dead);
  }
}

void LeaseMembership::opened(Worker& worker, WorkerId peer) {
  at(worker).met_anybody = true;
  if (!at(worker).joiner) at(worker).core.established();
  met(worker, peer);
}

void LeaseMembership::met(Worker& worker, WorkerId peer) {
  Member& member = at(worker);
  member.unmet.erase(peer);
  if (!member.joiner || !member.unmet.empty() || std::exchange(member.announced, true)) return;
  for (const WorkerId other : worker.sessions.all_live()) {
    post(worker, other, {MessageBatch::Kind::kJoined, {}});
  }
}

void LeaseMembership::welcomed(Worker& worker, WorkerId by) {
  Member& member = at(worker);
  member.unwelcome.erase(by);
  if (!member.joiner || !member.unwelcome.empty() || member.failed) return;
  member.core.established();
  if (!std::exchange(member.joined, true)) world_.report.count(Effect::kJoined);
}

// Worker::join has failed, so the process exits.
void LeaseMembership::fail_to_join(Worker& worker) {
  Member& member = at(worker);
  if (!member.joiner || member.joined || std::exchange(member.failed, true)) return;
  world_.report.count(Effect::kNotJoined);
  const bool outlived = world_.newest(worker.id.index) != worker.id;
  if (!book_.any_severed() && !outlived && !book_.declared_dead(worker.id)) {
    world_.violate("joiner", worker.id.to_string() + " was refused by nobody that lives");
  }
  if (world_.trace.on()) world_.trace.add("  could not join");
  world_.schedule.in(std::chrono::microseconds(100), EventKind::kStore, kNobody, worker.slot,
                     static_cast<uint64_t>(Phase::kLeave));
}

void LeaseMembership::on_post(Worker& worker, WorkerId from, const std::shared_ptr<void>& body) {
  const std::shared_ptr<void> kept = body;
  const MessageBatch& batch = *static_cast<const MessageBatch*>(kept.get());
  switch (batch.kind) {
    case MessageBatch::Kind::kDeath:
      world_.report.count(Effect::kTold);
      return step(worker, [&](MembershipCore& core, auto& out) {
        core.on_notice(batch.death_record, out);
      });
    case MessageBatch::Kind::kSuspectReport:
      return step(worker, [&](MembershipCore& core, auto& out) {
        core.look_after(batch.death_record.dead, out);
      });
    case MessageBatch::Kind::kJoined:
      worker.sessions.name(from);
      return post(worker, from, {MessageBatch::Kind::kWelcome, {}});
    case MessageBatch::Kind::kWelcome:
      return welcomed(worker, from);
  }
}

bool LeaseMembership::takes_part(const Worker& worker) const {
  return !worker.fenced && at(worker).joined;
}

// ---- when everything is repaired

void LeaseMembership::check_ended() {
  const auto settled = [this](WorkerId id) { return !book_.severed(id); };
  for (const Incarnation& incarnation : world_.incarnations()) {
    if (incarnation.worker == nullptr) continue;
    const Worker& worker = *incarnation.worker;
    const Member& member = at(worker);
    // A worker that is alone has no peer that could tell it, and none that it could harm.
    const bool alone = worker.sessions.all_live().empty();
    // The writer of its record may have died before it told any worker, and the others had no
    // store.
    const bool told =
        std::all_of(book_.list().begin(), book_.list().end(), [&](const DeathRecord& death_record) {
          return death_record.dead != incarnation.id || settled(death_record.by);
        });
    if (told && book_.must_be_known(incarnation.id) && settled(incarnation.id) && !worker.fenced &&
        !alone) {
      world_.violate("fence",
                     incarnation.id.to_string() + " is dead to the others and does not know it");
    }
    if (worker.fenced && !book_.declared_dead(incarnation.id) && member.met_anybody) {
      world_.violate("fence", incarnation.id.to_string() + " fenced itself without a death record");
    }
    if (!member.joined && !member.failed) {
      world_.violate("joiner", incarnation.id.to_string() + " neither joined nor failed");
    }
    if (worker.fenced || alone || declared_dead(incarnation.id) || !settled(incarnation.id))
      continue;
    for (const DeathRecord& death_record : book_.list()) {
      if (!settled(death_record.by) || !book_.must_be_known(death_record.dead)) continue;
      if (!member.core.is_live(death_record.dead)) continue;
      world_.violate("death record reaches all",
                     absl::StrCat(incarnation.id.to_string(), " does not know that ",
                                  death_record.dead.to_string(), " is dead"));
    }
    for (const Incarnation& other : world_.incarnations()) {
      if (other.worker == nullptr || declared_dead(other.id) || !settled(other.id)) continue;
      if (other.id == incarnation.id || member.core.is_live(other.id)) continue;
      world_.violate("members", absl::StrCat(incarnation.id.to_string(), " has lost ",
                                             other.id.to_string(), " and both live"));
    }
  }
}

}  // namespace weft::sim
