#include "weft/rpc/membership/membership.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/fail_point.h"
#include "weft/base/log.h"
#include "weft/proto/weft.pb.h"

namespace weft::rpc_internal {

Membership::Membership(Agent& agent, Quiescence& quiescence, Clock& clock,
                       std::shared_ptr<VerdictList> list, Executor& store_thread, Options options)
    : agent_(agent),
      quiescence_(quiescence),
      clock_(clock),
      list_(std::move(list)),
      store_thread_(store_thread),
      options_(std::move(options)),
      gate_(std::make_shared<async_internal::Gate<Membership>>(*this)),
      core_(agent.self(), options_.lease, clock.now(),
            {.places = options_.places, .has_records = options_.find_life != nullptr}) {}

Membership::~Membership() { stop(); }

void Membership::attach(const std::vector<WorkerInfo>& members, bool newcomer) {
  {
    MutexLock lock(mutex_);
    newcomer_ = newcomer;
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
      const Verdict verdict{WorkerId::from_bits(post.death().worker()),
                            WorkerId::from_bits(post.death().by()),
                            printable(post.death().reason())};
      step([&](MembershipCore& core, MembershipActions& out) { core.on_notice(verdict, out); });
      quiescence_.gone(verdict.dead);  // if it was not known here, nobody else says so
    } else if (post.has_joined()) {
      on_joined(from);
      wire::MembershipPost answer;
      answer.mutable_welcome();
      agent_.post(from, Topic::kMembership, answer.SerializeAsString());
    } else if (post.has_welcome()) {
      welcomed(from);
    } else if (post.has_doubt()) {
      const WorkerId doubted = WorkerId::from_bits(post.doubt().worker());
      step([&](MembershipCore& core, MembershipActions& out) { core.look_after(doubted, out); });
    } else {
      quiescence_.joined(from);  // `admit` may not have come to that yet
      quiescence_.receive(from, post);
    }
  });
  agent_.set_membership({
      .admit = [this](const WorkerInfo& newcomer) { return admit(newcomer); },
      .stranger =
          [this](WorkerId stranger) {
            step([&](MembershipCore& core, MembershipActions& out) { core.meet(stranger, out); });
          },
      .give_up =
          [this](WorkerId stranger, const absl::Status& why) {
            step([&](MembershipCore& core, MembershipActions& out) {
              core.give_up(stranger, why, out);
            });
          },
      .opened = [this](WorkerId peer) { on_opened(peer); },
      .suspect = [this](WorkerId peer, const absl::Status& why) { on_suspicion(peer, why); },
      .beat_answered =
          [this](WorkerId peer, uint64_t number) {
            step([&](MembershipCore& core, MembershipActions& out) {
              core.on_beat_answer(peer, number, clock_.now(), out);
            });
          },
  });
  agent_.add_gone_listener([this](WorkerId peer, const absl::Status& reason, bool left) {
    on_gone(peer, reason, left);
  });
}

void Membership::start(const std::vector<Verdict>& verdicts) {
  step([&](MembershipCore& core, MembershipActions& out) { core.learn(verdicts, out); });
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
  act(actions);
}

void Membership::act(MembershipActions& actions) {
  for (const MembershipActions::Beat& beat : actions.beats) agent_.beat(beat.to, beat.number);
  // Out of order if two threads are here: the next answer, or the next look after a call, corrects
  // it.
  for (const MembershipActions::Trust& trust : actions.trusts)
    agent_.trust(trust.peer, trust.until);
  for (const MembershipActions::Notice& notice : actions.notices) {
    wire::MembershipPost post;
    wire::MembershipPost::Death& death = *post.mutable_death();
    death.set_worker(notice.verdict.dead.bits());
    death.set_by(notice.verdict.by.bits());
    death.set_reason(notice.verdict.reason);
    agent_.post(notice.to, Topic::kMembership, post.SerializeAsString());
    WEFT_FAIL_POINT("verdict.one.told");
  }
  // First: the end of the last who has not welcomed this worker is a welcome.
  if (!actions.refused.ok()) joined_.set_error(actions.refused);
  for (MembershipActions::Gone& gone : actions.gone) {
    agent_.declare_dead(gone.worker, std::move(gone.reason));
  }
  if (!actions.fenced.ok()) {
    joined_.set_error(actions.fenced);
    agent_.fence(actions.fenced);
    fail_awaiting(actions.fenced);
  }
  for (const MembershipActions::Question& question : actions.questions) {
    if (question.condemn) agent_.answer_no_beats_of(question.suspect);
    ask(question);
  }
  for (WorkerId stranger : actions.lookups) {
    look_up(stranger, [stranger](Membership& driver, const Record& record) {
      driver.on_found(stranger, record);
    });
  }
  for (const WorkerInfo& claimant : actions.claims) {
    look_up(claimant.id, [claimant](Membership& driver, const Record& record) {
      driver.on_compared(claimant, record);
    });
  }
  for (WorkerId doubted : actions.doubts) doubt(doubted);
  for (WorkerId silent : actions.redials) agent_.reach(silent);
}

void Membership::doubt(WorkerId worker) {
  wire::MembershipPost post;
  post.mutable_doubt()->set_worker(worker.bits());
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
                            const absl::StatusOr<std::vector<Verdict>>& verdicts) {
    gate->enter([&](Membership& driver) {
      driver.step([&](MembershipCore& core, MembershipActions& out) {
        core.answer(suspect, number, verdicts, out);
      });
    });
  };
  if (list_ == nullptr) {
    answered(absl::UnavailableError("this group has no list of verdicts"));
    return;
  }
  // The list is read again and again: no queue of such questions may grow.
  if (question.suspect == agent_.self().id && !store_thread_.idle()) {
    answered(absl::AbortedError("the rendezvous store is asked something else"));
    return;
  }
  // Shared by both. A question that is still queued then is not asked: its pair is over, and a
  // verdict would kill who lives on with the others.
  const auto late = std::make_shared<std::atomic<bool>>(false);
  store_thread_.schedule([list = list_, self = agent_.self().id, question, answered, late] {
    if (late->load()) return;
    answered(question.condemn ? list->condemn(self, question.suspect, question.reason)
                              : list->read());
  });
  clock_.call_at(clock_.now() + store_timeout(), [answered, late] {
    late->store(true);
    answered(absl::DeadlineExceededError("the rendezvous store did not answer in time"));
  });
}

void Membership::look_up(WorkerId life,
                         std::function<void(Membership& driver, const Record&)> answered) {
  const auto answer = [gate = gate_, answered = std::move(answered)](const Record& record) {
    gate->enter([&](Membership& driver) { answered(driver, record); });
  };
  if (options_.find_life == nullptr) {
    answer(absl::UnavailableError("this group keeps no records"));
    return;
  }
  const auto late = std::make_shared<std::atomic<bool>>(false);  // as in `ask`
  store_thread_.schedule([find = options_.find_life, life, answer, late] {
    if (!late->load()) answer(find(life));
  });
  clock_.call_at(clock_.now() + store_timeout(), [answer, late] {
    late->store(true);
    answer(absl::DeadlineExceededError("the rendezvous store did not answer in time"));
  });
}

void Membership::on_found(WorkerId stranger, const Record& record) {
  bool member = false;
  step([&](MembershipCore& core, MembershipActions& out) {
    member = core.found(stranger, record, out);
    if (member) agent_.add_member(**record);  // under the lock, as in `admit`
  });
  if (member) take_in(stranger);
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

void Membership::take_in(WorkerId newcomer) {
  quiescence_.joined(newcomer);
  agent_.reach(newcomer);
}

absl::Status Membership::admit(const WorkerInfo& newcomer) {
  if (!quiescence_.admits()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the group of worker '", agent_.self().name, "' is shutting down"));
  }
  absl::Status admitted =
      absl::UnavailableError(absl::StrCat("worker '", agent_.self().name, "' leaves"));
  step([&](MembershipCore& core, MembershipActions& out) {
    admitted = core.admit(newcomer, out);
    // Under the lock: nobody may end it before it is there.
    if (admitted.ok()) agent_.add_member(newcomer);
  });
  // Before its first frame, which may say that it wants to end.
  if (admitted.ok()) quiescence_.joined(newcomer.id);
  WEFT_FAIL_POINT("member.admitted");
  return admitted;
}

std::optional<WorkerInfo> Membership::live_member(std::string_view name) const {
  const absl::StatusOr<WorkerId> id = agent_.resolve(name);
  if (!id.ok() || !agent_.is_live(*id)) return std::nullopt;
  return agent_.info_of(*id);
}

Future<WorkerInfo> Membership::when_live(std::string_view name, Timeout timeout) {
  auto answer = std::make_shared<Future<WorkerInfo>::State>(nullptr);
  Future<WorkerInfo> future(answer);
  {
    MutexLock lock(mutex_);
    if (stopped_ || core_.is_fenced()) {
      answer->complete(stopped_ ? absl::CancelledError("the worker leaves") : core_.standing());
      return future;
    }
    awaited_.push_back({std::string(name), answer});
  }
  tell_awaiting();
  const TimePoint deadline = timeout.deadline_from(clock_.now());
  if (future.done() || deadline == kNever) return future;
  clock_.call_at(deadline, [answer, name = std::string(name), timeout] {
    answer->complete(absl::DeadlineExceededError(
        absl::StrCat("no worker '", name, "' joined within ",
                     absl::FormatDuration(absl::FromChrono(timeout.limit())))));
  });
  return future;
}

void Membership::tell_awaiting() {
  std::vector<std::pair<std::shared_ptr<Future<WorkerInfo>::State>, WorkerInfo>> live;
  {
    MutexLock lock(mutex_);
    std::erase_if(awaited_, [&](const Awaited& awaited) {
      if (awaited.answer->done()) return true;  // late, or cancelled
      std::optional<WorkerInfo> member = live_member(awaited.name);
      if (member) live.emplace_back(awaited.answer, *std::move(member));
      return member.has_value();
    });
  }
  for (auto& [answer, member] : live) answer->complete(std::move(member));
}

void Membership::fail_awaiting(const absl::Status& status) {
  std::vector<Awaited> awaited;
  {
    MutexLock lock(mutex_);
    awaited.swap(awaited_);
  }
  for (const Awaited& one : awaited) one.answer->complete(status);
}

void Membership::on_opened(WorkerId peer) {
  {
    MutexLock lock(mutex_);
    if (!newcomer_) core_.established();
  }
  met(peer);
}

void Membership::on_joined(WorkerId newcomer) {
  if (!agent_.name_member(newcomer)) return;
  tell_awaiting();
  if (options_.listener != nullptr) {
    options_.listener(agent_.info_of(newcomer), MemberChange::kJoined, absl::OkStatus());
  }
}

void Membership::on_gone(WorkerId peer, const absl::Status& reason, bool left) {
  {
    MutexLock lock(mutex_);
    core_.left(peer);
  }
  met(peer);
  welcomed(peer);
  if (options_.listener != nullptr && agent_.has_name(peer)) {
    options_.listener(agent_.info_of(peer), left ? MemberChange::kLeft : MemberChange::kDied,
                      reason);
  }
}

void Membership::on_suspicion(WorkerId peer, const absl::Status& reason) {
  step([&](MembershipCore& core, MembershipActions& out) {
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
    if (!newcomer_ || !unmet_.empty() || std::exchange(announced_, true)) return;
  }
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
    if (!newcomer_ || !unwelcome_.empty()) return;
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
  clock_.call_at(clock_.now() + options_.lease.interval, [gate = gate_] {
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
    core_.bury(tied, actions);
  }
  say_lag();  // with the beats of this look already
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
    wire::Beat said;
    if (!said.ParseFromString(look.said)) said.Clear();
    constexpr uint64_t kMostLag = 3600 * 1000000ull;  // what a core makes of more is the same
    looks.push_back({look.peer, busy, look.heard,
                     std::chrono::microseconds(std::min<uint64_t>(said.lag_us(), kMostLag)),
                     waited(look.peer, {said.host(), said.pid(), said.started()})});
  }
  if (waits != nullptr) {
    const Nanoseconds own = waited(agent_.self().id, waits->self());
    MutexLock lock(mutex_);
    core_.waited(own);
  }
  // The kernel's files take their time: who was heard meanwhile is not silent.
  for (MembershipCore::Look& look : looks) {
    if (!watched.empty()) look.heard = std::max(look.heard, agent_.last_heard(look.peer));
  }
  return looks;
}

void Membership::say_lag() {
  wire::Beat beat;
  {
    MutexLock lock(mutex_);
    beat.set_lag_us(static_cast<uint64_t>(core_.lag() / std::chrono::microseconds(1)));
  }
  if (const ProcessorWaits* waits = options_.processor_waits.get(); waits != nullptr) {
    beat.set_host(waits->self().host);
    beat.set_pid(waits->self().pid);
    beat.set_started(waits->self().started);
  }
  agent_.say_in_beats(beat.SerializeAsString());
}

// The store may be as late as the workers.
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
  fail_awaiting(absl::CancelledError("the worker leaves"));
  joined_.set_error(absl::CancelledError("the worker leaves"));
}

}  // namespace weft::rpc_internal
