#include "weft/tests/sim/world/checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/tests/sim/world/world.h"

namespace weft::sim {

using namespace weft::rpc_internal;            // NOLINT: the words of the protocols
using namespace weft::rref_internal;           // NOLINT: as above
using namespace weft::dist_autograd_internal;  // NOLINT: as above

// ---- calls

uint64_t CallBook::open(Slot caller, WorkerId callee, Operation operation) {
  calls_.push_back({.caller = caller, .callee = callee, .operation = operation});
  return calls_.size() - 1;
}

std::string CallBook::describe(uint64_t ledger) const {
  const Facts& call = calls_[ledger];
  return absl::StrCat(std::string(name_of(call.operation)), " #", ledger, " from ",
                      world_.incarnation(call.caller).id.to_string(), " to ",
                      call.callee.to_string());
}

void CallBook::arrive(uint64_t ledger, WorkerId at) {
  Facts& call = calls_[ledger];
  if (call.callee != at) world_.violate("calls", describe(ledger) + " came to another worker");
  if (++call.arrived > 1) world_.violate("at most once", describe(ledger) + " arrived twice");
}

void CallBook::execute(uint64_t ledger, WorkerId at) {
  Facts& call = calls_[ledger];
  if (call.callee != at) world_.violate("S7", describe(ledger) + " ran at another worker");
  if (++call.executed > 1) world_.violate("at most once", describe(ledger) + " ran twice");
  if (call.promised_not_run) {
    world_.violate("true end", describe(ledger) + " ran after its caller was told that it did not");
  }
}

void CallBook::refuse(uint64_t ledger) {
  if (calls_[ledger].executed > 0) {
    world_.violate("true end", describe(ledger) + " is refused as not executed, and ran");
  }
}

void CallBook::resolve(uint64_t ledger, Outcome outcome) {
  Facts& call = calls_[ledger];
  if (call.outcome != Outcome::kUnresolved) {
    world_.violate("one end", describe(ledger) + " ended twice for its caller");
  }
  call.outcome = outcome;
  world_.report.end(call.operation, outcome);
  if (outcome == Outcome::kNotRun) {
    call.promised_not_run = true;
    if (call.executed > 0) world_.violate("true end", describe(ledger) + " ran after all");
  }
  // The answer to a creation says only that it was accepted. It may run later.
  const bool accepted = call.operation == Operation::kRemote && outcome == Outcome::kValue;
  const bool ran = outcome == Outcome::kValue || outcome == Outcome::kRan;
  if (ran && !accepted && call.executed == 0) {
    world_.violate("true end", describe(ledger) + " ended as run, and did not run");
  }
}

void CallBook::keep_result(WorkerId caller, const FrameHeader& header, const ReplyBody& body,
                           size_t bytes) {
  if (bytes >= 4096) large_results_[{caller, header.call}] = body;
}

ReplyBody CallBook::lost_result(Slot caller, const FrameHeader& header) {
  auto found = large_results_.find({world_.incarnation(caller).id, header.call});
  if (found == large_results_.end()) {
    world_.violate("session", "a small result, or an error, was lost");
    return {};
  }
  return found->second;
}

void CallBook::check_all_resolved() {
  for (uint64_t i = checked_; i < calls_.size(); ++i) {
    if (calls_[i].outcome != Outcome::kUnresolved) continue;
    if (world_.incarnation(calls_[i].caller).worker != nullptr) {
      world_.violate("one end", describe(i) + " never ended for its caller");
    } else {
      world_.report.end(calls_[i].operation, Outcome::kUnresolved);
    }
  }
  checked_ = calls_.size();
}

// ---- references

void OwnershipBook::create(RRefId rref, ForkId fork, WorkerId owner, WorkerId creator) {
  RRefFacts& facts = rrefs_[rref];
  facts.owner = owner;
  if (!fork.valid()) return;
  facts.forks.push_back(fork);
  ForkFacts& share = forks_[fork];
  share.rref = rref;
  share.owner = owner;
  share.to = creator;
}

void OwnershipBook::created(RRefId rref) {
  if (std::exchange(rrefs_[rref].created, true)) {
    world_.violate("S3", rref.to_string() + " was created twice");
  }
}

void OwnershipBook::value_set(RRefId rref) { rrefs_[rref].value = true; }
void OwnershipBook::excuse(RRefId rref) { rrefs_[rref].excused = true; }

void OwnershipBook::fork(const rref_internal::Reference& reference, WorkerId to) {
  rrefs_[reference.rref].forks.push_back(reference.fork);
  if (reference.parent.valid()) forks_[reference.parent].children.push_back(reference.fork);
  ForkFacts& fork = forks_[reference.fork];
  fork.rref = reference.rref;
  fork.owner = reference.owner;
  fork.parent = reference.parent;
  fork.to = to;
}

void OwnershipBook::read(const rref_internal::Reference& reference, WorkerId at) {
  if (reference.owner == at) forks_[reference.fork].decided = true;
}

void OwnershipBook::decide(ForkId fork) { forks_[fork].decided = true; }

void OwnershipBook::hold(Slot, const rref_internal::Handle& handle) {
  if (!handle.owned()) forks_[handle.fork].held = true;
}

void OwnershipBook::drop(Slot, const rref_internal::Handle& handle) {
  if (!handle.owned()) forks_[handle.fork].held = false;
}

bool OwnershipBook::is_decided(const ForkFacts& fork) const {
  return fork.decided || world_.ended(fork.to) || world_.ended(fork.owner);
}

void OwnershipBook::on_send(WorkerId at, const rref_internal::Message& message) {
  if (const auto* accept = std::get_if<rref_internal::ForkAccept>(&message)) {
    decide(accept->fork);
    if (rrefs_[accept->rref].freed > 0) {
      world_.violate("S3", "a fork of a freed value was accepted: " + accept->rref.to_string());
    }
  } else if (const auto* reject = std::get_if<rref_internal::ForkReject>(&message)) {
    decide(reject->fork);
  } else if (const auto* ack = std::get_if<rref_internal::CancelAck>(&message)) {
    if (ack->owner == at) decide(ack->fork);
  } else if (const auto* child = std::get_if<rref_internal::ChildAccept>(&message)) {
    decide(child->fork);
  } else if (const auto* end = std::get_if<rref_internal::UserDelete>(&message)) {
    ForkFacts& fork = forks_[end->fork];
    if (++fork.deletes > 1) {
      world_.violate("B2", "two USER_DELETE for " + end->fork.to_string());
    }
    if (world_.ended(at)) return;  // a fenced worker takes all others for dead
    for (const ForkId& child : fork.children) {
      if (is_decided(forks_[child])) continue;
      world_.violate("S4", absl::StrCat(end->fork.to_string(), " deleted before its child ",
                                        child.to_string(), " was decided"));
    }
  }
}

void OwnershipBook::on_free(Worker& owner, RRefId rref) {
  RRefFacts& facts = rrefs_[rref];
  if (++facts.freed > 1) world_.violate("S3", rref.to_string() + " was freed twice");
  if (world_.ended(owner.id)) return;
  for (const ForkId& id : facts.forks) {
    const ForkFacts& fork = forks_[id];
    if (fork.held && fork.confirmed && !world_.ended(fork.to)) {
      world_.violate("S2", absl::StrCat(rref.to_string(), " freed while ", fork.to.to_string(),
                                        " holds ", id.to_string()));
    }
  }
}

void OwnershipBook::on_confirmed(Worker& at, const rref_internal::Handle& handle) {
  if (handle.owned()) return;
  ForkFacts& fork = forks_[handle.fork];
  fork.confirmed = true;
  if (rrefs_[handle.rref].freed > 0 && !world_.ended(fork.owner) && !world_.ended(at.id)) {
    world_.violate("S2", handle.fork.to_string() + " confirmed after its value was freed");
  }
}

void OwnershipBook::on_lost(Worker& at, const rref_internal::Handle& handle, bool confirmed) {
  const RRefFacts& facts = rrefs_[handle.rref];
  if (!handle.owned() && confirmed && !world_.ended(facts.owner) && !world_.ended(at.id)) {
    world_.violate(
        "S2", "a confirmed share was lost although its owner lives: " + handle.fork.to_string());
  }
  if (!world_.any_ended() && !world_.tight_ownership && !facts.excused) {
    world_.violate("S1", "lost without a fault: " + handle.rref.to_string());
  }
}

void OwnershipBook::on_fetched(WorkerId, RRefId rref) {
  const RRefFacts& facts = rrefs_[rref];
  if (facts.freed > 0) world_.violate("S5", rref.to_string() + " was read after it was freed");
  if (!facts.value) world_.violate("S5", rref.to_string() + " was read before it was there");
}

void OwnershipBook::check_held(const Worker& at, const rref_internal::Handle& handle,
                               WorkerId owner) {
  if (world_.ended(at.id) || world_.ended(owner)) return;
  if (!at.references.core().confirmed(handle)) return;
  const Worker* there = world_.worker(owner);
  if (there == nullptr || there->references.core().draining()) return;
  if (!there->references.core().confirmed(rref_internal::Handle{handle.rref, {}})) {
    world_.violate("S2", absl::StrCat(owner.to_string(), " does not know ", handle.rref.to_string(),
                                      ", which ", at.id.to_string(), " holds"));
  }
}

// ---- passes

uint64_t PassBook::number(const dist_autograd_internal::PassId& pass) {
  const auto [found, fresh] = numbers_.emplace(pass, ids_.size());
  if (fresh) ids_.push_back(pass);
  return found->second;
}

void PassBook::start(const dist_autograd_internal::PassId& pass, Slot initiator,
                     std::vector<dist_autograd_internal::Program::Root> roots) {
  Facts& facts = passes_[pass];
  if (std::exchange(facts.started, true)) {
    world_.violate("I6", "two passes with one name: " + pass.to_string());
  }
  facts.initiator = initiator;
  facts.roots = std::move(roots);
  facts.truth = world_.contexts.at(pass.context).program.truth(facts.roots);
}

void PassBook::on_sent(Slot, WorkerId, const dist_autograd_internal::AutogradMessage& message,
                       bool counted) {
  if (!counted) return;
  const dist_autograd_internal::PassId& pass = *pass_of(message);
  Facts& facts = passes_[pass];
  if (std::holds_alternative<dist_autograd_internal::SealMessage>(message) &&
      !std::exchange(facts.sealed, true)) {
    check_quiet(pass, facts, "at the seal");
  }
  ++facts.under_way;
}

void PassBook::on_read(Slot at, const dist_autograd_internal::AutogradMessage& message,
                       bool counted) {
  if (std::holds_alternative<dist_autograd_internal::AbortMessage>(message))
    passes_[*pass_of(message)].told.insert(at);
  if (counted) --passes_[*pass_of(message)].under_way;
}

void PassBook::check_quiet(const dist_autograd_internal::PassId& pass, const Facts& facts,
                           const char* when) {
  if (facts.under_way != 0) {
    world_.violate("I4", absl::StrCat(facts.under_way, " messages of ", pass.to_string(),
                                      " are under way ", when));
  }
  for (const Incarnation& incarnation : world_.incarnations()) {
    if (incarnation.worker == nullptr) continue;
    if (incarnation.worker->passes.works(pass) || incarnation.worker->passes.holds(pass)) {
      world_.violate("I4", absl::StrCat(incarnation.id.to_string(), " works for ", pass.to_string(),
                                        " ", when));
    }
  }
}

void PassBook::merge(const dist_autograd_internal::PassId& pass, Slot at,
                     const std::map<int, uint64_t>& stage) {
  Facts& facts = passes_[pass];
  if (at == facts.initiator) {
    facts.committed = true;
    check_quiet(pass, facts, "at the commit");
  } else if (!facts.committed) {
    world_.violate("I5", "gradients readable before the commit of " + pass.to_string());
  }
  if (!facts.merged.insert(at).second) {
    world_.violate("I5", "merged twice: " + pass.to_string());
  }
  world_.report.count(Effect::kHeldCommits);
  const dist_autograd_internal::Program& program = world_.contexts.at(pass.context).program;
  size_t here = 0;
  for (const auto& [leaf, gradient] : facts.truth) {
    if (program.values[leaf].worker != static_cast<int>(at)) continue;
    ++here;
    auto found = stage.find(leaf);
    if (found == stage.end() || found->second != gradient) {
      world_.violate("I7",
                     absl::StrCat("leaf ", leaf, " of ", world_.incarnation(at).id.to_string(),
                                  " has not the sum over its paths in ", pass.to_string()));
    }
  }
  if (stage.size() != here) {
    world_.violate("I7", "gradients for leaves that the roots do not reach in " + pass.to_string());
  }
}

void PassBook::part_dropped(const dist_autograd_internal::PassId& pass, Slot at) {
  world_.report.count(Effect::kPassesDropped);
  passes_[pass].dropped.insert(at);
}

void PassBook::engage(const dist_autograd_internal::PassId& pass, Slot at) {
  const Facts& facts = passes_[pass];
  if (facts.dropped.contains(at) || facts.merged.contains(at) || facts.told.contains(at)) {
    world_.violate("I6", absl::StrCat(world_.incarnation(at).id.to_string(), " joins ",
                                      pass.to_string(), ", which has ended there"));
  }
}

void PassBook::complete(const dist_autograd_internal::PassId& pass,
                        const dist_autograd_internal::PassFailure& outcome) {
  Facts& facts = passes_[pass];
  if (std::exchange(facts.completed, true)) {
    world_.violate("I6", "ended twice: " + pass.to_string());
  }
  if (outcome.status.ok() != facts.committed) {
    world_.violate("I6", "the outcome of a pass is not what was done: " + pass.to_string());
  }
  if (absl::IsInternal(outcome.status)) {
    world_.violate("I6", absl::StrCat("a pass accuses the protocol: ", outcome.status.ToString()));
  }
  world_.report.count(facts.committed ? Effect::kPassesCommitted : Effect::kPassesAborted);
  world_.report.end(Operation::kBackward, facts.committed ? Outcome::kValue : Outcome::kRan);
}

void PassBook::check_ended() {
  for (const auto& [pass, facts] : passes_) {
    if (!facts.started || world_.incarnation(facts.initiator).worker == nullptr) continue;
    if (!facts.completed) {
      world_.violate("I6", "never ended: " + pass.to_string());
      continue;
    }
    const ContextFacts& context = world_.contexts.at(pass.context);
    if (!facts.committed || context.released || world_.ended(pass.initiator) ||
        world_.ended(pass.context.creator)) {
      continue;
    }
    for (const auto& [leaf, gradient] : facts.truth) {
      const Slot slot = static_cast<Slot>(context.program.values[leaf].worker);
      const Incarnation& incarnation = world_.incarnation(slot);
      if (world_.ended(incarnation.id) || facts.merged.contains(slot)) continue;
      const auto standing = incarnation.worker->passes.core().standing(pass);
      if (standing != dist_autograd_internal::ContextCore::PassStanding::kDropped) {
        world_.violate("I7", absl::StrCat(incarnation.id.to_string(), " has no gradients of ",
                                          pass.to_string(), ", which was committed"));
      }
    }
  }
}

}  // namespace weft::sim
