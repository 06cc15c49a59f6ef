#include "weft/rpc/membership/membership.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/faults/fail_point.h"
#include "weft/base/log.h"
#include "weft/proto/weft.pb.h"

namespace weft::rpc_internal {

Membership::Membership(Agent& agent, Quiescence& quiescence, Clock& clock,
                       std::shared_ptr<DeathRecords> list, Executor& store_thread, Options options)
    : agent_(agent),
      quiescence_(quiescence),
      clock_(clock),
      list_(std::move(list)),
      store_thread_(store_thread),
      options_(std::move(options)),
      watch_(agent, clock),
      gate_(std::make_shared<async_internal::Gate<Membership>>(*this)),
      core_(agent.self(), options_.lease, clock.now(), options_.world_size) {}

Membership::~Membership() { stop(); }

void Membership::attach(const std::vector<WorkerInfo>& members, bool joiner) {
  watch_.begin_with(members);
  {
    MutexLock lock(mutex_);
    joiner_ = joiner;
    for (const WorkerInfo& member : members) {
      if (member.id == agent_.self().id) continue;
      core_.add(member);
      unmet_.insert(member.id);
      unwelcome_.insert(member.id);
    }
  }
  agent_.set_post_handler(Topic::kMembership, [this](WorkerId from, Frame frame) {
    wire::MembershipPost post;
    if (!post.ParseFromString(frame.body)) {
      on_suspicion(from, absl::UnavailableError("sent a membership post that is malformed"));
    } else if (post.has_death()) {
      const DeathRecord death_record{WorkerId::from_bits(post.death().worker()),
                                     WorkerId::from_bits(post.death().by()),
                                     printable(post.death().reason())};
      step(
          [&](MembershipCore& core, MembershipActions& out) { core.on_notice(death_record, out); });
      // The agent does not report a worker that was never known here.
      quiescence_.gone(death_record.dead);
    } else if (post.has_joined()) {
      on_joined(from);
      wire::MembershipPost answer;
      answer.mutable_welcome();
      agent_.post(from, Topic::kMembership, answer.SerializeAsString());
    } else if (post.has_welcome()) {
      welcomed(from);
    } else if (post.has_suspect_report()) {
      const WorkerId suspected = WorkerId::from_bits(post.suspect_report().worker());
      step([&](MembershipCore& core, MembershipActions& out) { core.look_after(suspected, out); });
    } else {
      quiescence_.joined(from);  // `admit` may not have reached its own call yet
      quiescence_.receive(from, post);
    }
  });
  agent_.set_membership({
      .admit = [this](const WorkerInfo& joiner) { return admit(joiner); },
      .unknown =
          [this](WorkerId unknown) {
            step([&](MembershipCore& core, MembershipActions& out) { core.meet(unknown, out); });
          },
      .give_up =
          [this](WorkerId unknown, const absl::Status& why) {
            step([&](MembershipCore& core, MembershipActions& out) {
              core.give_up(unknown, why, out);
            });
          },
      .opened = [this](WorkerId peer) { on_opened(peer); },
      .suspect = [this](WorkerId peer, const absl::Status& why) { on_suspicion(peer, why); },
      .heartbeat_answered =
          [this](WorkerId peer, uint64_t number) {
            step([&](MembershipCore& core, MembershipActions& out) {
              core.on_heartbeat_answer(peer, number, clock_.now(), out);
            });
          },
  });
  agent_.add_gone_listener([this](WorkerId peer, const absl::Status& reason, bool left) {
    on_gone(peer, reason, left);
  });
}

void Membership::start(const std::vector<DeathRecord>& death_records) {
  step([&](MembershipCore& core, MembershipActions& out) { core.learn(death_records, out); });
  met({});
  welcomed({});
  arm();
}

template <class Event>
void Membership::step(Event event) {
  MembershipActions actions;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    event(core_, actions);
  }
  // Without the lock, because the agent's listeners call this driver again.
  act(actions);
}

void Membership::act(MembershipActions& actions) {
  // All kinds by name: a further one without a name here does not compile.
  auto& [heartbeats, validities, questions, gone, notices, suspect_reports, redials, lookups,
         claims, refused, fenced] = actions;
  for (const MembershipActions::Heartbeat& heartbeat : heartbeats)
    agent_.heartbeat(heartbeat.to, heartbeat.number);
  // Two threads may set these out of order. The next answer, or the next look after a call,
  // corrects that.
  for (const MembershipActions::Validity& validity : validities)
    agent_.set_valid_until(validity.peer, validity.until);
  for (const MembershipActions::Notice& notice : notices) {
    wire::MembershipPost post;
    wire::MembershipPost::Death& death = *post.mutable_death();
    death.set_worker(notice.death_record.dead.bits());
    death.set_by(notice.death_record.by.bits());
    death.set_reason(notice.death_record.reason);
    agent_.post(notice.to, Topic::kMembership, post.SerializeAsString());
    WEFT_FAIL_POINT("death_record.one.told");
  }
  // Before `gone`: a member that is gone counts as having welcomed this worker. If it is the last
  // one, `joined_` would complete without the refusal.
  if (!refused.ok()) joined_.set_error(refused);
  for (MembershipActions::Gone& one : gone) {
    agent_.declare_dead(one.worker, std::move(one.reason));
  }
  if (!fenced.ok()) {
    joined_.set_error(fenced);
    agent_.fence(fenced);
    watch_.close(fenced);
  }
  for (const MembershipActions::Question& question : questions) {
    if (question.declare_dead) agent_.answer_no_heartbeats_of(question.suspect);
    ask(question);
  }
  for (WorkerId unknown : lookups) {
    look_up(unknown, [unknown](Membership& driver, const Record& record) {
      driver.on_found(unknown, record);
    });
  }
  for (const WorkerInfo& claimant : claims) {
    look_up(claimant.id, [claimant](Membership& driver, const Record& record) {
      driver.on_compared(claimant, record);
    });
  }
  for (WorkerId suspected : suspect_reports) report_suspect(suspected);
  for (WorkerId silent : redials) agent_.reach(silent);
}

void Membership::report_suspect(WorkerId worker) {
  wire::MembershipPost post;
  post.mutable_suspect_report()->set_worker(worker.bits());
  const std::string text = post.SerializeAsString();
  for (WorkerId member : agent_.live()) {
    if (member == worker || member == agent_.self().id) continue;
    {
      MutexLock lock(mutex_);
      if (unmet_.contains(member)) continue;
    }
    agent_.post(member, Topic::kMembership, text);
  }
}

void Membership::ask(const MembershipActions::Question& question) {
  const auto answered = [gate = gate_, suspect = question.suspect, number = question.number](
                            const absl::StatusOr<std::vector<DeathRecord>>& death_records) {
    gate->enter([&](Membership& driver) {
      driver.step([&](MembershipCore& core, MembershipActions& out) {
        core.answer(suspect, number, death_records, out);
      });
    });
  };
  if (list_ == nullptr) {
    answered(absl::UnavailableError("this group has no list of death records"));
    return;
  }
  // The list is read again and again, so the queue of such questions must not grow.
  if (question.suspect == agent_.self().id && !store_thread_.idle()) {
    answered(absl::AbortedError("the rendezvous store is asked something else"));
    return;
  }
  // The task and the timer share `late`. After the time limit a queued question is not asked any
  // more. Its pair is over by then, and a death record would kill a worker that goes on with the
  // others.
  const auto late = std::make_shared<std::atomic<bool>>(false);
  store_thread_.schedule([list = list_, self = agent_.self().id, question, answered, late] {
    if (late->load()) return;
    answered(question.declare_dead ? list->declare_dead(self, question.suspect, question.reason)
                                   : list->read());
  });
  clock_.call_at(clock_.now() + store_timeout(), [answered, late] {
    late->store(true);
    answered(absl::DeadlineExceededError("the rendezvous store did not answer in time"));
  });
}

void Membership::look_up(WorkerId incarnation,
                         std::function<void(Membership& driver, const Record&)> answered) {
  const auto answer = [gate = gate_, answered = std::move(answered)](const Record& record) {
    gate->enter([&](Membership& driver) { answered(driver, record); });
  };
  const auto late = std::make_shared<std::atomic<bool>>(false);  // as in `ask`
  store_thread_.schedule([find = options_.find_incarnation, incarnation, answer, late] {
    if (!late->load()) answer(find(incarnation));
  });
  clock_.call_at(clock_.now() + store_timeout(), [answer, late] {
    late->store(true);
    answer(absl::DeadlineExceededError("the rendezvous store did not answer in time"));
  });
}

void Membership::on_found(WorkerId unknown, const Record& record) {
  bool member = false;
  step([&](MembershipCore& core, MembershipActions& out) {
    member = core.found(unknown, record, out);
    if (member) agent_.add_member(**record);  // under the lock, as in `admit`
  });
  if (member) take_in(unknown);
}

void Membership::on_compared(const WorkerInfo& claimant, const Record& record) {
  const bool admits = quiescence_.admits();
  bool member = false;
  step([&](MembershipCore& core, MembershipActions& out) {
    if (!admits) core.drop_claims();
    member = core.compared(claimant, record, out);
    if (member) agent_.add_member(**record);  // under the lock, as in `admit`
  });
  if (member) take_in(claimant.id);
}

void Membership::take_in(WorkerId joiner) {
  quiescence_.joined(joiner);
  agent_.reach(joiner);
}

absl::Status Membership::admit(const WorkerInfo& joiner) {
  if (!quiescence_.admits()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the group of worker '", agent_.self().name, "' is shutting down"));
  }
  absl::Status admitted =
      absl::UnavailableError(absl::StrCat("worker '", agent_.self().name, "' leaves"));
  step([&](MembershipCore& core, MembershipActions& out) {
    admitted = core.admit(joiner, out);
    // Under the lock, so that no thread declares it dead before the agent knows it.
    if (admitted.ok()) agent_.add_member(joiner);
  });
  // Before its first frame is read, because that frame may say that it has entered the shutdown.
  if (admitted.ok()) quiescence_.joined(joiner.id);
  WEFT_FAIL_POINT("member.admitted");
  return admitted;
}

void Membership::on_opened(WorkerId peer) {
  {
    MutexLock lock(mutex_);
    // In a static group one connection is enough. A joiner needs the welcome of all members.
    if (!joiner_) core_.established();
  }
  met(peer);
}

void Membership::on_joined(WorkerId joiner) {
  if (watch_.joined(joiner) && options_.listener != nullptr) {
    options_.listener(agent_.info_of(joiner), MemberChange::kJoined, absl::OkStatus());
  }
}

void Membership::on_gone(WorkerId peer, const absl::Status& reason, bool left) {
  {
    MutexLock lock(mutex_);
    core_.left(peer);
  }
  met(peer);
  welcomed(peer);
  const MemberChange change = left ? MemberChange::kLeft : MemberChange::kDied;
  if (watch_.gone(peer, change, reason) && options_.listener != nullptr) {
    options_.listener(agent_.info_of(peer), change, reason);
  }
}

void Membership::on_suspicion(WorkerId peer, const absl::Status& reason) {
  step([&](MembershipCore& core, MembershipActions& out) {
    // The dialler's codes: refused, no answer that can be read, or no such process.
    if (absl::IsPermissionDenied(reason)) {
      core.refused(peer, reason, out);
    } else if (absl::IsDeadlineExceeded(reason)) {
      core.unanswered(peer, reason, out);
    } else {
      core.suspect(peer, reason, out);
    }
  });
}

void Membership::met(WorkerId peer) {
  {
    MutexLock lock(mutex_);
    unmet_.erase(peer);
    if (!joiner_ || !unmet_.empty() || std::exchange(announced_, true)) return;
  }
  // All members are met, so references to this joiner reach only workers that know it. Now it may
  // tell its name.
  wire::MembershipPost post;
  post.mutable_joined();
  const std::string text = post.SerializeAsString();
  for (WorkerId member : agent_.live()) {
    if (member != agent_.self().id) agent_.post(member, Topic::kMembership, text);
  }
}

void Membership::welcomed(WorkerId by) {
  {
    MutexLock lock(mutex_);
    unwelcome_.erase(by);
    if (!joiner_ || !unwelcome_.empty()) return;
    core_.established();
  }
  joined_.set_value();
}

absl::Status Membership::standing() const {
  MutexLock lock(mutex_);
  return core_.standing();
}

size_t Membership::leases() const {
  MutexLock lock(mutex_);
  return core_.leases();
}

void Membership::arm() {
  clock_.call_at(clock_.now() + options_.lease.heartbeat_interval, [gate = gate_] {
    gate->enter([](Membership& driver) {
      driver.tick();
      driver.arm();
    });
  });
}

void Membership::tick() {
  std::vector<WorkerId> tied;
  for (const Ties& ties : ties_) ties(tied);
  std::sort(tied.begin(), tied.end());
  const std::vector<MembershipCore::Look> looks = look(tied);
  MembershipActions actions;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    core_.tick(clock_.now(), looks, actions);
    core_.settle_ended(tied, actions);
  }
  say_lag();  // before `act`, so that the heartbeats of this look carry it
  act(actions);
}

std::vector<MembershipCore::Look> Membership::look(const std::vector<WorkerId>& tied) {
  std::vector<WorkerId> watched;
  {
    MutexLock lock(mutex_);
    watched = core_.to_watch();
  }
  ProcessorWaits* const waits = options_.processor_waits.get();
  if (waits != nullptr) waits->begin(clock_.now());
  const auto waited = [&](WorkerId worker, const HostProcess& process) {
    const bool asked = std::find(watched.begin(), watched.end(), worker) != watched.end();
    return waits == nullptr || !asked ? Nanoseconds(0) : waits->of(process);
  };
  std::vector<MembershipCore::Look> looks;
  for (Agent::PeerLook& look : agent_.look_at_peers()) {
    const bool busy = look.busy || std::binary_search(tied.begin(), tied.end(), look.peer);
    wire::Heartbeat said;
    if (!said.ParseFromString(look.said)) said.Clear();
    constexpr uint64_t kMostLag = 3600 * 1000000ull;  // us; the core treats more the same
    looks.push_back({look.peer, busy, look.heard,
                     std::chrono::microseconds(std::min<uint64_t>(said.lag_us(), kMostLag)),
                     waited(look.peer, {said.host(), said.pid(), said.started()}), look.met});
  }
  if (waits != nullptr) {
    const Nanoseconds own = waited(agent_.self().id, waits->self());
    MutexLock lock(mutex_);
    core_.waited(own);
  }
  // Reading the kernel's files takes time. A peer that was heard meanwhile is not silent.
  for (MembershipCore::Look& look : looks) {
    if (!watched.empty()) look.heard = std::max(look.heard, agent_.last_heard(look.peer));
  }
  return looks;
}

void Membership::say_lag() {
  wire::Heartbeat heartbeat;
  {
    MutexLock lock(mutex_);
    heartbeat.set_lag_us(static_cast<uint64_t>(core_.lag() / std::chrono::microseconds(1)));
  }
  if (const ProcessorWaits* waits = options_.processor_waits.get(); waits != nullptr) {
    heartbeat.set_host(waits->self().host);
    heartbeat.set_pid(waits->self().pid);
    heartbeat.set_started(waits->self().started);
  }
  agent_.say_in_heartbeats(heartbeat.SerializeAsString());
}

// The store runs on a machine of the group, so it may be as late as the workers.
Nanoseconds Membership::store_timeout() const {
  MutexLock lock(mutex_);
  return options_.store_timeout + core_.allowance();
}

void Membership::stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  gate_->close();
  watch_.close(absl::CancelledError("the worker leaves"));
  joined_.set_error(absl::CancelledError("the worker leaves"));
}

}  // namespace weft::rpc_internal
