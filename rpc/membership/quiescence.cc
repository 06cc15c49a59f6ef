#include "weft/rpc/membership/quiescence.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status.h"

namespace weft::rpc_internal {
namespace {

// How often a worker that has entered checks whether it is idle: kSoon after each activity, then
// after twice as long each time, up to kSeldom.
constexpr Nanoseconds kSoon = std::chrono::milliseconds(1);
constexpr Nanoseconds kSeldom = std::chrono::milliseconds(50);

std::vector<WorkerId> ids_of(const std::vector<WorkerInfo>& members) {
  std::vector<WorkerId> ids;
  for (const WorkerInfo& member : members) ids.push_back(member.id);
  return ids;
}

}  // namespace

// Keeps timers from using a driver that has stopped. A timer holds the mutex while it uses the
// driver, so `stop` waits for it.
struct Quiescence::Gate {
  Mutex mutex;
  Quiescence* driver ABSL_GUARDED_BY(mutex) = nullptr;
};

Quiescence::Quiescence(Agent& agent, Executor& executor, Clock& clock,
                       const std::vector<WorkerInfo>& members, bool alone)
    : agent_(agent),
      executor_(executor),
      clock_(clock),
      alone_(alone),
      gate_(std::make_shared<Gate>()),
      core_(agent.self().id, ids_of(members)) {
  MutexLock lock(gate_->mutex);
  gate_->driver = this;
}

Quiescence::~Quiescence() { stop(); }

void Quiescence::attach() {
  agent_.add_gone_listener([this](WorkerId peer, const absl::Status&, bool) { gone(peer); });
  step([](QuiescenceCore&, TimePoint, MembershipMessages&) {
  });  // a group of one: others_entered at once
}

void Quiescence::receive(WorkerId from, const wire::MembershipPost& post) {
  step([&](QuiescenceCore& core, TimePoint now, MembershipMessages& out) {
    core.receive(from, post, now, out);
  });
}

void Quiescence::joined(WorkerId worker) {
  if (alone_) return;
  step([&](QuiescenceCore& core, TimePoint, MembershipMessages& out) { core.joined(worker, out); });
  if (!agent_.is_live(worker)) gone(worker);  // the agent may have reported it as gone before
}

void Quiescence::gone(WorkerId worker) {
  step([&](QuiescenceCore& core, TimePoint now, MembershipMessages& out) {
    core.gone(worker, now, out);
  });
}

bool Quiescence::admits() const {
  // A worker that leaves alone still accepts joiners until it has sent GOODBYE.
  if (alone_) return true;
  MutexLock lock(mutex_);
  return core_.admits();
}

Future<void> Quiescence::others_entered() {
  MutexLock lock(mutex_);
  waits_ = true;
  return others_entered_.future();
}

void Quiescence::append_awaited(std::vector<WorkerId>& out) const {
  MutexLock lock(mutex_);
  if (waits_ || core_.stage() != QuiescenceCore::Stage::kOpen) core_.append_missing(out);
}

void Quiescence::enter(Timeout timeout) {
  step([&](QuiescenceCore& core, TimePoint now, MembershipMessages& out) {
    core.enter(timeout, now, out);
  });
}

void Quiescence::references_dropped() {
  step([&](QuiescenceCore& core, TimePoint now, MembershipMessages& out) {
    core.references_dropped(now, out);
  });
}

template <class Event>
void Quiescence::step(Event event) {
  MembershipMessages messages;
  bool others = false, drained = false, over = false;
  absl::Status result;
  {
    MutexLock lock(mutex_);
    event(core_, clock_.now(), messages);
    using Stage = QuiescenceCore::Stage;
    const Stage stage = core_.stage();
    others = core_.others_entered();
    over = stage == Stage::kEnded;
    drained = over || stage == Stage::kDropping || stage == Stage::kMessages;
    if (over) result = outcome();
    if (stage == Stage::kCalls || stage == Stage::kDropping || stage == Stage::kMessages) {
      interval_ = kSoon;
      arm(interval_);
    }
  }
  for (const MembershipMessage& message : messages) {
    agent_.post(message.to, Topic::kMembership, message.post.SerializeAsString());
  }
  if (others) others_entered_.set_value();
  if (drained) calls_drained_.set_value();
  if (over) ended_.set(result.ok() ? absl::StatusOr<Unit>(Unit{}) : result);
}

void Quiescence::arm(Nanoseconds delay) {
  if (timer_.number != 0) clock_.cancel(timer_);
  timer_ = clock_.call_at(clock_.now() + delay, [gate = gate_] {
    MutexLock lock(gate->mutex);
    if (gate->driver != nullptr) gate->driver->tick();
  });
}

void Quiescence::tick() {
  auto traffic = look();
  Nanoseconds next{0};
  bool asked = false;
  {
    MutexLock lock(mutex_);
    asked = core_.asked();
    const uint64_t activity = agent_.activity();
    const bool calm = activity == std::exchange(seen_activity_, activity);
    next = calm ? std::min(interval_ * 2, kSeldom) : kSoon;
  }
  std::string work = asked && !traffic ? this->work() : "";
  step([&](QuiescenceCore& core, TimePoint now, MembershipMessages& out) {
    if (traffic) {
      core.idle(*std::move(traffic), now, out);
    } else if (!work.empty()) {
      core.busy(std::move(work), now, out);
    } else {
      core.tick(now, out);
    }
  });
  MutexLock lock(mutex_);
  if (core_.stage() == QuiescenceCore::Stage::kEnded) return;
  interval_ = next;
  arm(interval_);
}

std::optional<std::vector<PeerTraffic>> Quiescence::look() const {
  // The checks below are not atomic. Any event between the first and the last line changes the
  // activity, so the result holds for one moment. A task that began and completed meanwhile without
  // such an event left nothing behind.
  const uint64_t before = agent_.activity();
  if (!agent_.quiescent()) return std::nullopt;
  const std::vector<WorkerId> live = agent_.live();
  std::vector<PeerTraffic> traffic;
  for (const Agent::Traffic& peer : agent_.traffic()) {
    if (alone_ && peer.peer != agent_.self().id) continue;
    if (std::find(live.begin(), live.end(), peer.peer) == live.end()) continue;
    traffic.push_back({peer.peer, peer.sent, peer.received});
  }
  if (!executor_.idle() || agent_.activity() != before) return std::nullopt;
  return traffic;
}

std::string Quiescence::work() const {
  std::string work = agent_.work();
  if (work.empty() && !executor_.idle()) work = "runs tasks or continuations";
  return work;
}

absl::Status Quiescence::outcome() const {
  if (!core_.timed_out()) return absl::OkStatus();
  std::string names;
  for (const AtWork& each : core_.at_work()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", "'", agent_.name_of(each.worker), "' (",
                    each.work, ")");
  }
  return raised_at(
      absl::DeadlineExceededError(absl::StrCat(
          "the group was not quiescent within the shutdown timeout; still at work: ", names)),
      agent_.self().name);
}

void Quiescence::stop() {
  {
    MutexLock lock(gate_->mutex);
    gate_->driver = nullptr;
  }
  const absl::Status status = absl::CancelledError("the worker leaves without waiting for others");
  others_entered_.set_error(status);
  calls_drained_.set_error(status);
  ended_.set_error(status);
}

}  // namespace weft::rpc_internal
