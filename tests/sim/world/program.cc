// The simulated programs: each step runs one random operation at a random worker.
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {
namespace {

// call, nested, forward, remote, method, to_here, cancel, own, drop, open, backward, cancel pass,
// release, probe, step, message of a step
constexpr uint32_t kWeights[][kOperations] = {
    {16, 0, 14, 12, 10, 8, 5, 6, 12, 4, 9, 1, 2, 0, 8, 0},   // everything
    {30, 0, 0, 10, 12, 8, 12, 4, 10, 0, 0, 0, 0, 0, 0, 0},   // calls
    {20, 0, 0, 20, 15, 15, 6, 10, 20, 0, 0, 0, 0, 0, 0, 0},  // references
    {3, 0, 45, 3, 2, 2, 4, 1, 2, 5, 25, 2, 4, 0, 0, 0},      // passes
    {6, 0, 0, 2, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 60, 0},       // steps
};

constexpr size_t kSteps = std::size(kWeights) - 1;

CallPlan plan_call(World& world, Worker& worker, Operation operation) {
  Dice& dice = world.dice;
  CallPlan plan;
  plan.operation = operation;
  const std::vector<WorkerId> peers = worker.sessions.live_peers();
  plan.to = peers.empty() || dice.chance(8) ? worker.id : peers[dice.below(peers.size())];
  plan.bytes = dice.chance(6) ? 3000 + dice.below(6000) : dice.below(600);
  plan.waited_for = dice.chance(30);
  const uint64_t kind = dice.below(100);
  if (kind < 20) {
    plan.deadline = world.schedule.now() + dice.micros(50, 6000);
  } else if (kind < 88) {
    plan.deadline = world.schedule.now() + dice.millis(50, 700);
  }
  return plan;
}

void add_arguments(World& world, Worker& worker, CallPlan& plan, unsigned percent) {
  for (int i = 0; i < 2 && world.dice.chance(percent); ++i) {
    if (HandlePtr handle = worker.references.some_held()) plan.arguments.push_back(handle);
  }
}

void call_on_object(World& world, Worker& worker, Operation operation) {
  const HandlePtr handle = worker.references.some_held();
  if (handle == nullptr) return;
  CallPlan plan = plan_call(world, worker, operation);
  plan.kind = operation == Operation::kToHere ? CallKind::kFetch : CallKind::kMethod;
  plan.target = handle;
  plan.to = handle->owner;
  if (operation == Operation::kMethod) add_arguments(world, worker, plan, 30);
  worker.calls.start(std::move(plan));
}

}  // namespace

void World::plan_program() {
  const size_t mixture = dice.below(std::size(kWeights));
  const auto& weights = kWeights[profile == Profile::kSteps ? kSteps : mixture];
  step_weights_.assign(std::begin(weights), std::end(weights));
  step_weight_sum_ = 0;
  for (const uint32_t weight : step_weights_) step_weight_sum_ += weight;
  if (weights[static_cast<size_t>(Operation::kStep)] > 0) plan_optimizers();
}

// One or two workers step, over one to three owners each. A worker may be an owner itself.
void World::plan_optimizers() {
  durable_every = dice.between(1, 4);
  every_step_durable = dice.chance(30);
  for (uint64_t i = 0, count = dice.between(1, 2); i < count; ++i) {
    std::set<uint32_t> owners;
    const uint64_t wanted = dice.between(profile == Profile::kSteps ? 2 : 1, 3);
    while (owners.size() < wanted) owners.insert(static_cast<uint32_t>(dice.below(places_)));
    step_owners[static_cast<uint32_t>(dice.below(places_))] = {owners.begin(), owners.end()};
  }
}

std::string World::sequence_of(uint32_t caller) const {
  const auto found = sequence_numbers_.find(caller);
  return absl::StrCat("sequence", found == sequence_numbers_.end() ? 0 : found->second, "@w",
                      caller);
}

std::set<std::string> World::step_lines() const {
  std::set<std::string> sequences;
  for (const auto& [caller, owners] : step_owners) sequences.insert(sequence_of(caller));
  return sequences;
}

void World::step() {
  if (steps_left_ == 0) {
    // Some faults continue without repair for a while, so that leases expire.
    const TimePoint soon = schedule.now() + step_gap_;
    return schedule.at(dice.chance(50) ? std::max(soon, last_mend_) : soon, EventKind::kSettle,
                       kNobody, 0);
  }
  --steps_left_;
  const std::vector<Slot> workers = awake();
  if (!workers.empty()) {
    Worker& worker = *incarnations_[workers[dice.below(workers.size())]].worker;
    step_at(worker);
    worker.settle();
  }
  schedule.in(Nanoseconds(static_cast<int64_t>(dice.below(2 * step_gap_.count() + 1))),
              EventKind::kStep, kNobody);
}

void World::step_at(Worker& worker) {
  uint64_t pick = dice.below(step_weight_sum_);
  size_t operation = 0;
  while (pick >= step_weights_[operation]) pick -= step_weights_[operation++];
  switch (static_cast<Operation>(operation)) {
    case Operation::kCall: {
      CallPlan plan = plan_call(*this, worker, Operation::kCall);
      add_arguments(*this, worker, plan, 50);
      return worker.calls.start(std::move(plan));
    }
    case Operation::kForward: {
      CallPlan plan = plan_call(*this, worker, Operation::kForward);
      plan.context = worker.passes.some_context();
      if (!plan.context.valid()) return worker.passes.open_context();
      add_arguments(*this, worker, plan, 15);
      return worker.calls.start(std::move(plan));
    }
    case Operation::kRemote: {
      CallPlan plan = plan_call(*this, worker, Operation::kRemote);
      plan.kind = CallKind::kCreate;
      add_arguments(*this, worker, plan, 30);
      return worker.calls.start(std::move(plan));
    }
    case Operation::kMethod:
    case Operation::kToHere:
      return call_on_object(*this, worker, static_cast<Operation>(operation));
    case Operation::kCancel:
      if (!worker.calls.any_open()) return;
      report.end(Operation::kCancel, Outcome::kValue);
      return worker.calls.cancel_one();
    case Operation::kOwn:
      if (HandlePtr handle = worker.references.own()) worker.references.keep(std::move(handle));
      return report.end(Operation::kOwn, Outcome::kValue);
    case Operation::kDrop:
      if (worker.references.held() > 0) report.end(Operation::kDrop, Outcome::kValue);
      return worker.references.drop_one();
    case Operation::kOpenContext:
      return worker.passes.open_context();
    case Operation::kBackward:
      return worker.passes.backward();
    case Operation::kCancelPass:
      return worker.passes.cancel_one();
    case Operation::kReleaseContext:
      return worker.passes.release_one();
    case Operation::kStep:
      return worker.steps.step();
    case Operation::kStepMessage:
    case Operation::kNestedCall:  // only handlers make them
    case Operation::kProbe:
      return;
  }
}

}  // namespace weft::sim
