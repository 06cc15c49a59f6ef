#include "weft/tests/sim/rooms/steps.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "weft/base/overloaded.h"
#include "weft/base/status.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using dist_optim_internal::CallerAction;
using dist_optim_internal::CallerActions;
using dist_optim_internal::StepCallerCore;
using Kind = StepRequest::Kind;
namespace step = dist_optim_internal::step;

namespace {

constexpr Nanoseconds kAgain = std::chrono::milliseconds(20);
constexpr Nanoseconds kDecisionWait = std::chrono::seconds(1);

template <class T>
absl::StatusOr<T> answer(const absl::Status& failure, const T& value) {
  if (!failure.ok()) return failure;
  return value;
}

}  // namespace

Steps::Steps(Worker& worker) : worker_(worker), world_(worker.world), owner_(worker, *this) {}

bool Steps::stepping() const {
  return current_ != nullptr && (current_->open > 0 || current_->core->stepping());
}

// ---- the program

void Steps::step() {
  if (!world_.step_owners.contains(worker_.id.index) || stepping()) return;
  std::vector<WorkerId> owners;
  if (!owners_now(&owners)) return;
  if (current_ == nullptr || current_->failed || current_->owners != owners) {
    if (current_ != nullptr) part(*current_);
    return make_optimizer(std::move(owners));
  }
  if (!current_->ready) return;
  if (current_->lost) return resume(current_);
  begin(current_);
}

// Finds the incarnations in the owners' slots that this worker knows.
bool Steps::owners_now(std::vector<WorkerId>* owners) const {
  for (const uint32_t place : world_.step_owners.at(worker_.id.index)) {
    WorkerId owner = worker_.id;
    if (place != worker_.id.index) {
      owner = {};
      for (const WorkerId peer : worker_.sessions.live_peers()) {
        if (peer.index == place) owner = peer;
      }
    }
    if (!owner.valid()) return false;
    owners->push_back(owner);
  }
  return true;
}

StepRequest Steps::request(const Optimizer& optimizer, Kind kind) const {
  StepRequest request;
  request.kind = kind;
  request.step = {optimizer.id, optimizer.core->step().number};
  request.sequence = world_.sequence_of(worker_.id.index);
  request.max_norm = optimizer.max_norm;
  return request;
}

// The owners get the list of the other owners, so that a prepared shard knows which of them to ask.
void Steps::make_optimizer(std::vector<WorkerId> owners) {
  const auto optimizer = std::make_shared<Optimizer>();
  optimizer->id = {worker_.id, next_optimizer_++};
  optimizer->owners = std::move(owners);
  StepCallerCore::Options options;
  options.optimizer = optimizer->id;
  options.sequence = world_.sequence_of(worker_.id.index);
  for (const WorkerId owner : optimizer->owners) {
    options.owners.push_back({owner.to_string(), owner == worker_.id});
  }
  optimizer->core = std::make_unique<StepCallerCore>(std::move(options));
  current_ = optimizer;
  optimizer->open = optimizer->owners.size();
  for (const WorkerId owner : std::vector<WorkerId>(optimizer->owners)) {
    StepRequest meet = request(*optimizer, Kind::kMeet);
    for (const WorkerId other : optimizer->owners) {
      if (other != owner) meet.workers.push_back(other);
    }
    send(owner, std::move(meet), kNever,
         [optimizer](const absl::Status& failure, const StepReply&) {
           optimizer->failed |= !failure.ok();
           if (--optimizer->open == 0) optimizer->ready = !optimizer->failed;
         });
  }
}

void Steps::part(const Optimizer& optimizer) {
  for (const WorkerId owner : optimizer.owners) {
    send(owner, request(optimizer, Kind::kPart), kNever,
         [](const absl::Status&, const StepReply&) {});
  }
}

void Steps::begin(const OptimizerPtr& optimizer) {
  Dice& dice = world_.dice;
  optimizer->max_norm = dice.chance(50) ? static_cast<double>(dice.between(1, 3)) : 0;
  optimizer->timeout = dice.chance(60) ? dice.micros(500, 400000) : Nanoseconds(0);
  optimizer->deadline =
      optimizer->timeout.count() > 0 ? world_.schedule.now() + optimizer->timeout : kNever;
  ++optimizer->steps;
  if (!std::exchange(optimizer->told, false)) {
    world_.violate("told truly", "a step ended without a result");
  }
  event(optimizer, [&](StepCallerCore& core, CallerActions& out) {
    if (!core.begin(optimizer->max_norm, out).ok()) {
      world_.violate("told truly", "a step was refused although none was under way");
    }
  });
}

// As DistributedOptimizer::resume: asks all owners, then all go back, then all resume.
void Steps::resume(const OptimizerPtr& optimizer) {
  if (++optimizer->resumes > 2)
    return world_.new_sequence(worker_.id.index), void(current_ = nullptr);
  struct Standings {
    uint64_t furthest = 0, held = UINT64_MAX;
    bool failed = false;
  };
  const auto all = std::make_shared<Standings>();  // shared by the answers to come
  optimizer->open = optimizer->owners.size();
  for (const WorkerId owner : std::vector<WorkerId>(optimizer->owners)) {
    send(owner, request(*optimizer, Kind::kJoin), kNever,
         [this, optimizer, all](const absl::Status& failure, const StepReply& reply) {
           all->failed |= !failure.ok();
           const dist_optim_internal::SequenceStanding& standing = reply.standing;
           all->furthest = std::max(all->furthest, standing.applied);
           if (standing.restored) all->held = std::min(all->held, standing.applied);
           if (--optimizer->open > 0 || all->failed) return;
           bring(optimizer, Kind::kGoBack, all->held == UINT64_MAX ? all->furthest : all->held);
         });
  }
}

void Steps::bring(const OptimizerPtr& optimizer, Kind kind, uint64_t number) {
  const auto failed = std::make_shared<bool>(false);  // shared by the answers to come
  optimizer->open = optimizer->owners.size();
  for (const WorkerId owner : std::vector<WorkerId>(optimizer->owners)) {
    StepRequest there = request(*optimizer, kind);
    there.number = number;
    send(owner, std::move(there), kNever,
         [this, optimizer, failed, kind, number](const absl::Status& failure, const StepReply&) {
           *failed |= !failure.ok();
           if (--optimizer->open > 0 || *failed) return;
           if (kind == Kind::kGoBack) {
             world_.steps.resume(world_.sequence_of(worker_.id.index), number);
             return bring(optimizer, Kind::kResume, number);
           }
           if (!optimizer->core->resumed(number).ok()) return;
           optimizer->lost = false;
           optimizer->resumes = 0;
         });
  }
}

// ---- the actions of the core, as in StepCaller::carry_out

template <class Event>
void Steps::event(const OptimizerPtr& optimizer, Event event) {
  CallerActions actions;
  event(*optimizer->core, actions);
  carry_out(optimizer, std::move(actions));
}

void Steps::carry_out(const OptimizerPtr& optimizer, CallerActions actions) {
  for (const CallerAction& action : actions) carry_out(optimizer, action);
}

void Steps::carry_out(const OptimizerPtr& o, const CallerAction& action) {
  const auto tell = [this, o](auto method, size_t i, auto pick) {
    return [this, o, method, i, pick](const absl::Status& failure, const StepReply& reply) {
      event(o, [&](StepCallerCore& core, CallerActions& out) {
        (core.*method)(i, answer(failure, pick(reply)), out);
      });
    };
  };
  const auto to = [&](size_t i, Kind kind, TimePoint deadline, auto change, Then then) {
    StepRequest message = request(*o, kind);
    change(message);
    send(o->owners[i], std::move(message), deadline, std::move(then));
  };
  const auto same = [](StepRequest&) {};
  const auto join = [&](const step::Join& asked) {
    to(asked.owner, Kind::kJoin, o->deadline, same,
       tell(&StepCallerCore::on_joined, asked.owner, [](const auto& r) { return r.standing; }));
  };
  const auto prepare = [&](const step::Prepare& asked) {
    to(asked.owner, Kind::kPrepare, o->deadline, same,
       tell(&StepCallerCore::on_prepared, asked.owner, [](const auto& r) { return r.norm2; }));
  };
  const auto finish = [&](const step::Finish& asked) {
    to(
        asked.owner, Kind::kFinish, o->deadline,
        [&](StepRequest& message) { message.others_norm2 = asked.others_norm2; },
        tell(&StepCallerCore::on_finished, asked.owner, [](const auto& r) { return r.summary; }));
  };
  const auto settle = [&](const step::Settle& asked) {
    to(asked.owner, Kind::kSettle, kNever, same,
       tell(&StepCallerCore::on_settled, asked.owner, [](const auto& r) { return r.decision; }));
  };
  const auto commit = [&](const step::Commit& asked) {
    world_.doom(worker_.slot, 3);
    to(
        asked.owner, Kind::kCommit, kNever,
        [&](StepRequest& message) { message.clip = asked.clip; },
        tell(&StepCallerCore::on_committed, asked.owner, [](const auto& r) { return r.durable; }));
  };
  const auto abort = [&](const step::Abort& asked) {
    const auto over = std::make_shared<bool>(false);  // set by the answer or by the time limit
    const auto done = [this, o, over, i = asked.owner] {
      if (std::exchange(*over, true)) return;
      event(o, [&](StepCallerCore& core, CallerActions& out) { core.on_aborted(i, out); });
    };
    to(asked.owner, Kind::kAbort, kNever, same,
       [done](const absl::Status&, const StepReply&) { done(); });
    after(o->timeout.count() > 0 ? o->timeout : kDecisionWait, done);
  };
  const auto wait = [&](const step::LimitWait&) {
    after(o->timeout.count() > 0 ? o->timeout : kDecisionWait, [this, o, number = o->steps] {
      if (o->steps != number) return;  // that step is over
      event(o, [](StepCallerCore& core, CallerActions& out) { core.on_late("late", out); });
    });
  };
  const auto told = [&](const step::Tell& asked) {
    if (std::exchange(o->told, true)) world_.violate("told truly", "a step was told twice");
    o->lost = asked.result.outcome == StepResult::Outcome::kDataLoss;
    world_.steps.tell(worker_.id, world_.sequence_of(worker_.id.index), o->owners, o->core->step(),
                      asked.result);
  };
  // The simulator has no optimizer of mode hogwild, and nothing to clean up at the end of a step.
  const auto none = [](const OneOf<step::ApplyAlone, step::End> auto&) {};
  std::visit(Overloaded{join, prepare, finish, settle, commit, abort, wait, told, none}, action);
}

// ---- calls

void Steps::send(WorkerId to, StepRequest request, TimePoint deadline, Then then) {
  const uint64_t ticket = next_ticket_++;
  tickets_.emplace(ticket, Ticket{to, std::move(request), deadline, std::move(then)});
  dispatch(ticket);
}

void Steps::dispatch(uint64_t number) {
  const Ticket& ticket = tickets_.at(number);
  CallPlan plan;
  plan.kind = CallKind::kStep;
  plan.operation = Operation::kStepMessage;
  plan.to = ticket.to;
  plan.deadline = ticket.deadline;
  plan.bytes = world_.dice.below(200);
  plan.step = std::make_shared<StepRequest>(ticket.request);
  plan.ticket = number;
  worker_.calls.start(std::move(plan));
}

void Steps::on_end(uint64_t number, const absl::Status& failure, const StepReply* reply) {
  const Ticket& ticket = tickets_.at(number);
  if (absl::IsResourceExhausted(failure) && ticket.deadline == kNever) {
    return after(kAgain, [this, number] { dispatch(number); });
  }
  const auto ended = tickets_.extract(number);
  if (failure.ok()) {
    ended.mapped().then(reply->status, *reply);
  } else {
    ended.mapped().then(failure, {});
  }
}

void Steps::after(Nanoseconds delay, std::function<void()> then) {
  timers_.emplace(next_timer_, std::move(then));
  world_.schedule.in(delay, EventKind::kStepTimer, worker_.slot, next_timer_++);
}

void Steps::on_event(const Event& event) {
  const auto timer = timers_.extract(event.a);
  timer.mapped()();
}

std::string Steps::leftovers() const {
  std::string text = owner_.leftovers();
  if (stepping()) absl::StrAppend(&text, " a step is under way");
  if (!tickets_.empty()) absl::StrAppend(&text, " ", tickets_.size(), " messages");
  return text;
}

}  // namespace weft::sim
