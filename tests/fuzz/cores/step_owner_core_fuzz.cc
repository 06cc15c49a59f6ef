// An owner's half of an optimizer's step. The caller and other owners may send anything. A step
// must be applied at most once, and a decision must stay. The input is a sequence of events.
#include <map>
#include <set>
#include <variant>

#include "weft/base/overloaded.h"
#include "weft/dist_optim/steps/step_owner_core.h"
#include "weft/tests/fuzz/fuzz.h"

namespace weft::fuzz {
namespace {

using namespace weft::dist_optim_internal;

class Run {
 public:
  explicit Run(Bytes input) : input_(input) {}

  void play() {
    while (!input_.empty()) {
      event();
      check();
    }
  }

 private:
  WorkerId worker() { return {static_cast<uint32_t>(input_.below(4)), 1}; }
  OptimizerId optimizer() { return {{1, 1}, 1 + input_.below(2)}; }
  dist_optim_internal::StepId step() {
    const OptimizerId of = optimizer();
    const size_t number = input_.below(8);
    return {of, number == 7 ? input_.number<uint64_t>() : number};
  }
  dist_optim_internal::StepUpdate update() {
    return {std::vector<double>(input_.below(3), 0.1), 1.0};
  }
  std::vector<WorkerId> workers() {
    // Sometimes more workers than a 64-bit word has bits.
    const size_t count = input_.below(5);
    std::vector<WorkerId> workers(count == 4 ? 80 : count);
    for (WorkerId& one : workers) one = count == 4 ? WorkerId{3, 1} : worker();
    return workers;
  }
  std::string line() { return std::string(1, static_cast<char>('a' + input_.below(2))); }

  void event() {
    switch (input_.below(14)) {
      case 0: {
        const OptimizerId of = optimizer();
        core_.meet(of, workers());
        break;
      }
      case 1:
      case 2:
        prepare();
        break;
      case 3:
      case 4: {
        const dist_optim_internal::StepId of = step();
        (void)core_.commit(of, update(), out_);
        break;
      }
      case 5:
        (void)core_.abort(step(), out_);
        break;
      case 6:
        settle();
        break;
      case 7:
        if (const dist_optim_internal::StepId of = step();
            core_.outcome(of) == dist_optim_internal::StepOutcome::kApplied) {
          core_.on_damage(of, absl::DataLossError("failed half-way"));
        }
        break;
      case 8: {
        const WorkerId dead = worker();
        if (input_.flag()) {
          core_.on_worker_dead(dead, out_);
        } else {
          core_.on_worker_dead(optimizer(), dead, out_);
        }
        break;
      }
      case 9: {
        const dist_optim_internal::StepId of = step();
        (void)core_.inquire(of, workers(), out_);
        break;
      }
      case 10:
        answer();
        break;
      case 11: {
        const OptimizerId of = optimizer();
        (void)core_.join(of, line());
        break;
      }
      case 12: {
        const OptimizerId of = optimizer();
        const uint64_t number = input_.below(8);
        // The program may go back to an earlier step.
        if (core_.resume(of, number, input_.flag()).ok()) {
          std::erase_if(decided_, [&](const auto& one) { return one.first.first == of; });
        }
        break;
      }
      default:
        switch (input_.below(16)) {
          case 0:
            core_.restore({{line(), input_.below(8)}}, out_);
            decided_.clear();
            break;
          case 1: {
            const OptimizerId of = optimizer();
            core_.forget(of, out_);
            std::erase_if(decided_, [&](const auto& one) { return one.first.first == of; });
            break;
          }
          default:
            break;
        }
    }
  }

  void prepare() {
    const dist_optim_internal::StepId of = step();
    const auto known = core_.prepare(of);
    if (!known.ok() || known->has_value()) return;
    core_.on_prepared(of, 1.0, {0.1}, out_);
  }
  void settle() {
    const dist_optim_internal::StepId of = step();
    const auto decision = core_.settle(of, out_);
    if (!decision.ok()) return;
    require(decision->outcome != dist_optim_internal::StepOutcome::kPrepared &&
                decision->outcome != dist_optim_internal::StepOutcome::kUnknown,
            "a settled step is undecided");
  }
  // An answer to a question of the core, or to no question.
  void answer() {
    dist_optim_internal::StepId of = step();
    size_t other = input_.below(4);
    uint64_t round = input_.below(4);
    if (!asked_.empty() && input_.flag()) {
      const dist_optim_internal::step::Ask& ask = asked_[input_.below(256) % asked_.size()];
      of = ask.step;
      other = ask.other;
      round = ask.round;
    }
    core_.on_answer(of, other, round,
                    {static_cast<dist_optim_internal::StepOutcome>(input_.below(5)), 1.0, 1.0},
                    out_);
  }

  void check() {
    for (const dist_optim_internal::OwnerAction& action : out_) {
      std::visit(Overloaded{
                     [this](const dist_optim_internal::step::Apply& apply) {
                       decide(apply.step, dist_optim_internal::StepOutcome::kApplied);
                     },
                     [this](const dist_optim_internal::step::Drop& drop) {
                       require(
                           core_.outcome(drop.step) != dist_optim_internal::StepOutcome::kApplied,
                           "an applied step is dropped");
                     },
                     [this](const dist_optim_internal::step::Ask& ask) { asked_.push_back(ask); },
                 },
                 action);
    }
    out_.clear();
    for (const auto& [of, outcome] : decided_) {
      const dist_optim_internal::StepOutcome now = core_.outcome({of.first, of.second});
      require(now == outcome || now == dist_optim_internal::StepOutcome::kForgotten,
              "a decided step has changed");
    }
    for (const dist_optim_internal::StepId& of : core_.undecided()) {
      require(core_.outcome(of) == dist_optim_internal::StepOutcome::kPrepared,
              "undecided, but not prepared");
    }
  }
  void decide(const dist_optim_internal::StepId& of, dist_optim_internal::StepOutcome outcome) {
    require(decided_.emplace(std::pair(of.optimizer, of.number), outcome).second,
            "a step is applied twice");
  }

  Bytes input_;
  dist_optim_internal::StepOwnerCore core_;
  dist_optim_internal::OwnerActions out_;
  std::vector<dist_optim_internal::step::Ask> asked_;
  std::map<std::pair<OptimizerId, uint64_t>, dist_optim_internal::StepOutcome> decided_;
};

}  // namespace
}  // namespace weft::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weft::fuzz::Run(weft::fuzz::Bytes(data, size)).play();
  return 0;
}
