#include "weft/tests/sim/membership/membership.h"

#include "weft/tests/sim/world/world.h"

namespace weft::sim {
namespace {

constexpr Nanoseconds kInterval = std::chrono::milliseconds(200);
constexpr Nanoseconds kPatience = std::chrono::milliseconds(1800);

}  // namespace

// If a slot has a later incarnation, the joiner suspects every earlier one at once.
void OracleMembership::on_join(Worker& worker) {
  for (const WorkerId dead : list_) learn(worker, dead);
  for (const Incarnation& incarnation : world_.incarnations()) {
    if (world_.newest(incarnation.id.index) != incarnation.id) suspect(worker, incarnation.id);
  }
  for (uint32_t index = 0; index < world_.places(); ++index) {
    const WorkerId other = world_.newest(index);
    if (other != worker.id && !worker.known_dead.contains(other)) {
      worker.sessions.add_peer(world_.slot_of(other), true);
    }
  }
}

bool OracleMembership::takes_part(const Worker& worker) const { return !worker.fenced; }

Membership::Door OracleMembership::accepts(Worker& at, WorkerId dialler) {
  if (at.fenced || at.known_dead.contains(dialler)) return Door::kRefused;
  at.sessions.add_peer(world_.slot_of(dialler), false);
  if (dialler.incarnation > 1) greet(at, dialler);
  return Door::kOpen;
}

// Suspects the earlier incarnations at once. It also tells the joiner all dead workers. The joiner
// may have read the list before the last entries, and notices of those went only to known workers.
void OracleMembership::greet(Worker& at, WorkerId joiner) {
  auto post = std::make_shared<DeathRecordPost>();
  post->dead.assign(at.known_dead.begin(), at.known_dead.end());
  if (!post->dead.empty()) {
    at.sessions.post(joiner, rpc_internal::Topic::kMembership, std::move(post), 40);
  }
  for (uint32_t incarnation = 1; incarnation < joiner.incarnation; ++incarnation) {
    suspect(at, {joiner.index, incarnation});
  }
}

void OracleMembership::meet(Worker& at, WorkerId unknown) {
  at.sessions.add_peer(world_.slot_of(unknown), true);
}

void OracleMembership::suspect(Worker& by, WorkerId whom) {
  if (by.fenced || by.known_dead.contains(whom)) return;
  if (!asked_.emplace(by.id, whom).second) return;
  Nanoseconds delay = world_.dice.micros(200, 3000);
  if (world_.slow_store) {
    delay += world_.dice.millis(20, 400);
    world_.felt(world_.slow_store_fault);
  }
  questions_.push_back({by.id, whom});
  world_.schedule.in(delay, EventKind::kStore, by.slot, questions_.size() - 1);
}

void OracleMembership::unanswered(Worker& by, WorkerId whom) { by.sessions.reach(whom); }

// All peers are gone for this worker. So are incarnations that messages named and that it never
// met.
void OracleMembership::fence(Worker& worker) {
  std::vector<WorkerId> all;
  for (const Incarnation& incarnation : world_.incarnations()) all.push_back(incarnation.id);
  worker.fence(all);
}

// The first writer wins. A worker that finds itself in the list fences itself.
void OracleMembership::on_answer(Worker& by, const Question& question) {
  asked_.erase({question.by, question.about});
  if (by.fenced) return;
  if (death_records_.contains(by.id)) return fence(by);
  if (death_records_.insert(question.about).second) {
    list_.push_back(question.about);
    world_.note_end();
    world_.report.count(Effect::kDeathRecords);
    const Worker* accused = world_.worker(question.about);
    if (accused != nullptr) world_.report.count(Effect::kFalseDeathRecords);
    auto post = std::make_shared<DeathRecordPost>();
    post->dead = {question.about};
    for (const WorkerId peer : by.sessions.live_peers()) {
      if (peer != question.about) {
        by.sessions.post(peer, rpc_internal::Topic::kMembership, post, 40);
      }
    }
  }
  learn(by, question.about);
}

// The earlier incarnations of its slot are dead too, unless one is still a live peer.
// MembershipCore::settle_ended does the same for those with shared state here.
void OracleMembership::learn(Worker& at, WorkerId dead) {
  if (dead == at.id) return fence(at);
  at.on_death_record(dead);
  for (WorkerId earlier = dead; earlier.incarnation > 1;) {
    --earlier.incarnation;
    const bool left_alone = earlier == at.id || at.sessions.is_live(earlier);
    if (!left_alone && !at.known_dead.contains(earlier)) at.on_death_record(earlier);
  }
}

void OracleMembership::on_post(Worker& at, WorkerId, const std::shared_ptr<void>& body) {
  const std::shared_ptr<void> kept = body;
  for (const WorkerId dead : static_cast<const DeathRecordPost*>(kept.get())->dead) {
    if (!at.known_dead.contains(dead)) learn(at, dead);
  }
}

void OracleMembership::disturb() {
  if (std::exchange(looking_, true)) return;
  world_.schedule.in(kInterval, EventKind::kLease, kNobody);
}

void OracleMembership::on_resume(Worker& worker) {
  // Time in which this worker's own timer did not run counts for at most two intervals.
  for (const WorkerId peer : worker.sessions.live_peers()) {
    worker.sessions.set_heard(
        peer, std::max(worker.sessions.heard(peer), world_.schedule.now() - 2 * kInterval));
  }
}

void OracleMembership::on_event(const Event& event) {
  if (event.kind == EventKind::kLease) return look();
  const Question question = questions_[event.a];
  if (Worker* by = world_.worker(question.by)) on_answer(*by, question);
}

// Does what heartbeats and their answers would do for each pair.
void OracleMembership::look() {
  bool wanted = world_.network.any_silent();
  std::vector<std::pair<Worker*, WorkerId>> suspicions;
  const TimePoint now = world_.schedule.now();
  for (const Incarnation& incarnation : world_.incarnations()) {
    wanted = wanted || incarnation.paused;
    if (incarnation.worker == nullptr || incarnation.worker->fenced) continue;
    Worker& worker = *incarnation.worker;
    for (const WorkerId peer : worker.sessions.live_peers()) {
      const Incarnation& other = world_.incarnation(world_.slot_of(peer));
      const bool answers = other.worker != nullptr && (!other.paused || other.slow) &&
                           !incarnation.paused &&
                           !world_.network.silent(incarnation.id.index, peer.index) &&
                           !world_.network.silent(peer.index, incarnation.id.index) &&
                           other.worker->sessions.is_live(incarnation.id);
      wanted = wanted || !answers;
      if (answers) worker.sessions.set_heard(peer, now);
      if (!incarnation.paused && now - worker.sessions.heard(peer) > kPatience) {
        suspicions.emplace_back(&worker, peer);
      }
    }
  }
  for (const auto& [worker, peer] : suspicions) suspect(*worker, peer);
  looking_ = false;
  if (wanted) disturb();
}

}  // namespace weft::sim
