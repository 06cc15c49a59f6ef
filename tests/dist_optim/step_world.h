// Runs owners and callers of optimizer steps under one seed.
//
// Workers die at any point, or are declared dead and go on until they hear of it. Owners are
// started again. Messages arrive in any order, and some arrive twice. When nothing can happen any
// more, run() checks that the surviving owners and the callers' results agree.
//
// Thread safety: none.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "weft/base/overloaded.h"
#include "weft/base/status.h"
#include "weft/dist_optim/steps/step_caller_core.h"
#include "weft/dist_optim/steps/step_owner_core.h"

namespace weft::dist_optim_internal {

class StepWorld {
 public:
  explicit StepWorld(uint64_t seed) : random_(seed) {
    owners_ = 1 + draw(4);
    callers_ = 1 + draw(3);
    deaths_ = draw(4);
    spiteful_ = draw(2) == 0;
    restarts_ = draw(3);
    repeats_ = draw(2) == 0;
    errors_ = draw(2) == 0;
    with_local_ = draw(2) == 0;  // the first caller owns parameters too
    for (size_t i = 0; i < owners_; ++i) start(i);
    for (size_t i = with_local_ ? 1 : 0; i < callers_; ++i) start(100 + i);
    for (size_t i = 0; i < callers_; ++i) {
      steps_left_[i] = 3 + draw(5);
      make_optimizer(i);
    }
  }

  void run() {
    for (size_t events = 0; events < 20'000; ++events) {
      if (!one_event()) {
        check();
        return;
      }
    }
    FAIL() << "does not come to rest";
  }

  size_t steps_told = 0, losses = 0, asked = 0, resumed = 0;
  size_t second_deaths = 0;  // questions after the caller's death that name a dead owner

 private:
  using Key = std::pair<OptimizerId, uint64_t>;
  static Key key(const StepId& step) { return {step.optimizer, step.number}; }

  struct Incarnation {
    StepOwnerCore core;  // used on owners
    std::map<Key, int> applied;
    std::map<Key, double> clips;
    std::map<std::string, uint64_t> checkpoint;
    bool alive = true;
    std::set<WorkerId> knows_dead;
  };
  struct Optimizer {
    std::vector<WorkerId> owners;
    std::unique_ptr<StepCallerCore> core;
    bool waits = false;  // true: on_late may come
    std::vector<std::pair<uint64_t, StepResult>> results;
  };
  // A call. If `fail` does nothing, it is a question whose failure the core learns elsewhere.
  struct Call {
    WorkerId from, to;
    std::function<std::function<void()>()> run;  // at the receiver; returns the caller's part
    std::function<void()> fail;                  // called if the receiver is dead
    std::function<void()> answer = {};           // set while the answer is on its way back
    bool over = false;
  };

  size_t draw(size_t below) { return random_() % below; }
  WorkerId now(size_t index) const { return {static_cast<uint32_t>(index), newest_.at(index)}; }
  Incarnation& incarnation(WorkerId id) { return incarnations_.at(id); }
  size_t place(size_t caller) const { return with_local_ && caller == 0 ? 0 : 100 + caller; }
  bool alive(WorkerId id) { return incarnation(id).alive; }

  void start(size_t index) {
    ++newest_[index];
    incarnations_[now(index)];
  }

  // ---- messages

  void call(WorkerId from, WorkerId to, std::function<std::function<void()>()> run,
            std::function<void()> fail) {
    if (incarnation(from).knows_dead.contains(to)) {
      fail();
      return;
    }
    wire_.push_back(std::make_shared<Call>(Call{from, to, std::move(run), std::move(fail)}));
  }

  void arrive(size_t place_on_wire) {
    const std::shared_ptr<Call> one = wire_[place_on_wire];
    const bool back = static_cast<bool>(one->answer);
    const WorkerId receiver = back ? one->from : one->to;
    if (!back && incarnation(receiver).knows_dead.contains(one->from)) {
      wire_.erase(wire_.begin() + place_on_wire);  // the sender was declared dead but still runs
      return;
    }
    if (!alive(receiver)) {
      if (back) one->over = true;  // else it fails when the sender learns of the death
      if (back || !alive(one->from)) wire_.erase(wire_.begin() + place_on_wire);
      return;
    }
    if (back) {
      wire_.erase(wire_.begin() + place_on_wire);
      one->over = true;
      one->answer();
      return;
    }
    if (repeats_ && draw(8) == 0) (void)one->run();  // the call arrives twice
    one->answer = one->run();
  }

  void learn(WorkerId observer, WorkerId dead) {
    if (observer == dead) {  // it was declared dead, and stops
      incarnation(dead).alive = false;
      return;
    }
    incarnation(observer).knows_dead.insert(dead);
    std::vector<std::shared_ptr<Call>> failed;
    std::erase_if(wire_, [&](const std::shared_ptr<Call>& one) {
      if (one->from == observer && one->to == dead) failed.push_back(one);
      return (one->from == observer && one->to == dead) ||
             (one->from == dead && one->to == observer);
    });
    OwnerActions actions;
    incarnation(observer).core.on_worker_dead(dead, actions);
    carry_out(observer, std::move(actions));
    for (const auto& one : failed) one->fail();
  }

  // ---- owners

  void carry_out(WorkerId owner, OwnerActions actions) {
    for (const OwnerAction& action : actions) {
      std::visit(Overloaded{
                     [&](const step::Apply& apply) {
                       Incarnation& here = incarnation(owner);
                       ++here.applied[key(apply.step)];
                       here.clips[key(apply.step)] = apply.update.clip;
                       if (draw(3) == 0) here.checkpoint = here.core.sequences();
                     },
                     [](const step::Drop&) {},  // no gradients are kept here
                     [&](const step::Ask& question) { ask(owner, question); },
                 },
                 action);
    }
  }

  void ask(WorkerId owner, const step::Ask& question) {
    ++asked;
    second_deaths += question.dead.empty() ? 0 : 1;
    const WorkerId other = others_.at({owner, question.step.optimizer}).at(question.other);
    call(
        owner, other,
        [this, owner, other, question] {
          OwnerActions out;
          const StepDecision decision =
              incarnation(other).core.inquire(question.step, question.dead, out);
          carry_out(other, std::move(out));
          return [this, owner, question, decision] {
            OwnerActions out;
            incarnation(owner).core.on_answer(question.step, question.other, question.round,
                                              decision, out);
            carry_out(owner, std::move(out));
          };
        },
        [] {});  // learn() has told the core
  }

  // ---- callers

  void make_optimizer(size_t caller) {
    const auto optimizer = std::make_shared<Optimizer>();
    StepCallerCore::Options options;
    options.optimizer = {now(place(caller)), ++last_optimizer_};
    options.sequence = absl::StrCat("sequence", caller);
    for (size_t i = 0; i < owners_; ++i) {
      optimizer->owners.push_back(now(i));
      options.owners.push_back({now(i).to_string(), now(i) == now(place(caller))});
    }
    for (const WorkerId owner : optimizer->owners) {
      std::vector<WorkerId> others;
      for (const WorkerId other : optimizer->owners) {
        if (other != owner) others.push_back(other);
      }
      others_[{owner, options.optimizer}] = others;
      incarnation(owner).core.meet(options.optimizer, others);
      // The caller knew of these deaths when it introduced the owners to each other.
      OwnerActions actions;
      for (const WorkerId dead : incarnation(owner).knows_dead) {
        incarnation(owner).core.on_worker_dead(options.optimizer, dead, actions);
      }
      carry_out(owner, std::move(actions));
    }
    optimizer->core = std::make_unique<StepCallerCore>(std::move(options));
    current_[caller] = optimizer;
    all_.push_back(optimizer);
  }

  template <class Make>
  void send(size_t caller, size_t owner, Make make) {
    const std::shared_ptr<Optimizer> optimizer = current_[caller];
    const WorkerId from = now(place(caller)), to = optimizer->owners[owner];
    auto event = [this, caller, optimizer](auto&& tell) {
      CallerActions out;
      tell(*optimizer->core, out);
      carry_out(caller, optimizer, std::move(out));
    };
    make(from, to, event, with_ran(absl::UnavailableError("dead"), Ran::kMaybe));
  }

  // Runs `run(core, out)` at the owner, and passes its result to `take(caller core, result, out)`.
  template <class R, class Run, class Take>
  void exchange(size_t caller, size_t owner, Run run, Take take) {
    send(caller, owner, [&](WorkerId from, WorkerId to, auto event, absl::Status dead) {
      call(
          from, to,
          [this, to, run, event, take] {
            OwnerActions out;
            const absl::StatusOr<R> result = run(incarnation(to).core, out);
            carry_out(to, std::move(out));
            return [event, take, result] {
              event([&](StepCallerCore& core, CallerActions& out) { take(core, result, out); });
            };
          },
          [event, take, dead] {
            event([&](StepCallerCore& core, CallerActions& out) {
              take(core, absl::StatusOr<R>(dead), out);
            });
          });
    });
  }

  static absl::StatusOr<double> prepare(StepOwnerCore& core, const StepId& step, bool refuse,
                                        OwnerActions& out) {
    WEFT_ASSIGN_OR_RETURN(const std::optional<double> before, core.prepare(step));
    if (before.has_value()) return *before;
    if (refuse) return with_ran(absl::InvalidArgumentError("does not fit"), Ran::kYes);
    core.on_prepared(step, 4, {0.1}, out);
    return 4.0;
  }

  void carry_out(size_t caller, const std::shared_ptr<Optimizer>& optimizer,
                 CallerActions actions) {
    const StepId step = optimizer->core->step();
    for (const CallerAction& action : actions) carry_out(caller, *optimizer, step, action);
  }

  void carry_out(size_t caller, Optimizer& optimizer, const StepId& step,
                 const CallerAction& action) {
    const auto join = [&](const step::Join& asks) {
      const std::string sequence = absl::StrCat("sequence", caller);
      exchange<SequenceStanding>(
          caller, asks.owner,
          [step, sequence](auto& core, auto&) { return core.join(step.optimizer, sequence); },
          [i = asks.owner](auto& core, const auto& r, auto& out) { core.on_joined(i, r, out); });
    };
    const auto prepares = [&](const step::Prepare& asks) {
      exchange<double>(
          caller, asks.owner,
          [step, refuse = draw(20) == 0](auto& core, auto& out) {
            return prepare(core, step, refuse, out);
          },
          [i = asks.owner](auto& core, const auto& r, auto& out) { core.on_prepared(i, r, out); });
    };
    const auto finish = [&](const step::Finish& asks) {
      const bool lost = draw(10) == 0;  // the answer is lost: a deadline
      exchange<StepSummary>(
          caller, asks.owner,
          [step, refuse = draw(20) == 0, norm2 = asks.others_norm2](
              auto& core, auto& out) -> absl::StatusOr<StepSummary> {
            WEFT_ASSIGN_OR_RETURN(const double own, prepare(core, step, refuse, out));
            StepSummary summary{own + norm2, clip_factor(own + norm2, 1)};
            const absl::Status done = core.commit(step, {{0.1}, summary.clip}, out);
            if (!done.ok()) (void)core.abort(step, out);
            if (!done.ok()) return done;
            return summary;
          },
          [i = asks.owner, lost](auto& core, const auto& r, auto& out) {
            if (lost) {
              const absl::Status late = with_ran(absl::DeadlineExceededError("late"), Ran::kMaybe);
              core.on_finished(i, late, out);
            } else {
              core.on_finished(i, r, out);
            }
          });
    };
    const auto settle = [&](const step::Settle& asks) {
      exchange<StepDecision>(
          caller, asks.owner, [step](auto& core, auto& out) { return core.settle(step, out); },
          [i = asks.owner](auto& core, const auto& r, auto& out) { core.on_settled(i, r, out); });
    };
    const auto commit = [&](const step::Commit& asks) {
      exchange<StepDurable>(
          caller, asks.owner,
          [step, clip = asks.clip](auto& core, auto& out) -> absl::StatusOr<StepDurable> {
            WEFT_RETURN_IF_ERROR(core.commit(step, {{0.1}, clip}, out));
            return StepDurable{};
          },
          [i = asks.owner](auto& core, const auto& r, auto& out) { core.on_committed(i, r, out); });
    };
    const auto abort = [&](const step::Abort& asks) {
      exchange<StepDurable>(
          caller, asks.owner,
          [step](auto& core, auto& out) -> absl::StatusOr<StepDurable> {
            (void)core.abort(step, out);
            return StepDurable{};
          },
          [i = asks.owner](auto& core, const auto&, auto& out) { core.on_aborted(i, out); });
    };
    const auto tell = [&](const step::Tell& told) {
      ++steps_told;
      losses += told.result.outcome == StepResult::Outcome::kDataLoss ? 1 : 0;
      // A caller that was declared dead may be told anything, so its result does not count.
      if (!dead_.contains(step.optimizer.creator)) {
        optimizer.results.emplace_back(step.number, told.result);
      }
    };
    const auto wait = [&](const step::LimitWait&) { optimizer.waits = draw(4) == 0; };
    const auto end = [&](const step::End&) { optimizer.waits = false; };
    const auto apply_alone = [](const step::ApplyAlone&) { ADD_FAILURE() << "not mode hogwild"; };
    std::visit(
        Overloaded{join, prepares, finish, settle, commit, abort, tell, wait, end, apply_alone},
        action);
  }

  void begin(size_t caller) {
    --steps_left_[caller];
    CallerActions out;
    ASSERT_TRUE(current_[caller]->core->begin(1, out).ok());
    carry_out(caller, current_[caller], std::move(out));
  }

  // The program has heard of a loss. It goes back to the step that all owners have; owners that are
  // ahead get what the program itself saved.
  void resume(size_t caller) {
    Optimizer& optimizer = *current_[caller];
    const std::string sequence = absl::StrCat("sequence", caller);
    const OptimizerId id = optimizer.core->step().optimizer;
    uint64_t target = UINT64_MAX;
    for (const WorkerId owner : optimizer.owners) {
      if (!alive(owner)) return;
      const absl::StatusOr<SequenceStanding> standing = incarnation(owner).core.join(id, sequence);
      if (!standing.ok()) return;
      if (standing->restored) target = std::min(target, standing->applied);
    }
    if (target == UINT64_MAX) return;
    for (const WorkerId owner : optimizer.owners) {
      ASSERT_TRUE(incarnation(owner).core.resume(id, target, true).ok());
    }
    ASSERT_TRUE(optimizer.core->resumed(target).ok());
    ++resumed;
  }

  // ---- the schedule

  bool one_event() {
    std::vector<std::function<void()>> possible;
    for (size_t i = 0; i < wire_.size(); ++i) possible.push_back([this, i] { arrive(i); });
    for (const auto& [observer, its_incarnation] : incarnations_) {
      if (!its_incarnation.alive) continue;
      for (const WorkerId dead : dead_) {
        if (its_incarnation.knows_dead.contains(dead)) continue;
        possible.push_back([this, o = observer, dead] { learn(o, dead); });
      }
    }
    for (size_t caller = 0; caller < callers_; ++caller) {
      Optimizer& optimizer = *current_[caller];
      if (!alive(now(place(caller)))) continue;
      if (optimizer.waits) {
        possible.push_back([this, caller, &optimizer] {
          optimizer.waits = false;
          CallerActions out;
          optimizer.core->on_late("late", out);
          carry_out(caller, current_[caller], std::move(out));
        });
      }
      if (steps_left_[caller] == 0 || optimizer.core->stepping()) continue;
      possible.push_back([this, caller] { begin(caller); });
      possible.push_back([this, caller] { resume(caller); });
      for (size_t i = 0; i < owners_; ++i) {  // an owner was started again: make a new optimizer
        if (optimizer.owners[i] == now(i)) continue;
        possible.push_back([this, caller] { make_optimizer(caller); });
        break;
      }
    }
    if (possible.empty()) return false;
    if (deaths_ > 0 && spiteful_ && kill_who_knows_most()) return true;
    if (deaths_ > 0 && draw(20) == 0) {
      kill();
    } else if (restarts_ > 0 && draw(8) == 0) {
      start_again();
    } else {
      possible[draw(possible.size())]();
    }
    return true;
  }

  void kill() {
    std::vector<WorkerId> living;
    for (const auto& [id, its_incarnation] : incarnations_) {
      if (its_incarnation.alive) living.push_back(id);
    }
    if (!living.empty()) kill(living[draw(living.size())]);
  }

  void kill(WorkerId victim) {
    if (!dead_.insert(victim).second) return;
    --deaths_;
    // With `errors_`, half of the victims are declared dead wrongly, and go on until they hear of
    // it.
    if (!errors_ || draw(2) == 0) incarnation(victim).alive = false;
  }

  // Kills the caller of a step, or an owner that has applied it, while another owner is still
  // undecided.
  bool kill_who_knows_most() {
    for (const auto& [undecided, its_incarnation] : incarnations_) {
      if (!its_incarnation.alive) continue;
      for (const StepId& step : its_incarnation.core.undecided()) {
        for (const auto& [owner, other] : incarnations_) {
          if (!other.alive || !other.applied.contains(key(step))) continue;
          const WorkerId caller = step.optimizer.creator;
          if (draw(alive(caller) ? 4 : 16) != 0) continue;  // the owner has time to tell somebody
          kill(alive(caller) ? caller : owner);
          return true;
        }
      }
    }
    return false;
  }

  void start_again() {
    const size_t index = draw(owners_);
    if (alive(now(index)) || (with_local_ && index == 0)) return;
    --restarts_;
    const std::map<std::string, uint64_t> saved = incarnation(now(index)).checkpoint;
    start(index);
    OwnerActions out;
    incarnation(now(index)).core.restore(saved, out);
  }

  // ---- the checks

  void check() {
    for (const auto& optimizer : all_) {
      const OptimizerId id = optimizer->core->step().optimizer;
      std::set<uint64_t> numbers;
      for (const auto& [owner, its_incarnation] : incarnations_) {
        for (const auto& [step, times] : its_incarnation.applied) {
          EXPECT_EQ(times, 1) << owner << " applied "
                              << StepId{step.first, step.second}.to_string();
          if (step.first == id) numbers.insert(step.second);
        }
        if (its_incarnation.alive) {
          for (const StepId& step : its_incarnation.core.undecided()) {
            EXPECT_NE(step.optimizer, id) << owner << " is left with " << step.to_string();
          }
        }
      }
      for (const auto& [number, result] : optimizer->results) numbers.insert(number);
      for (const uint64_t number : numbers) check_step(*optimizer, {id, number});
    }
  }

  void check_step(const Optimizer& optimizer, const StepId& step) {
    std::optional<bool> applied;
    std::optional<double> clip;
    for (const WorkerId owner : optimizer.owners) {
      if (!alive(owner)) continue;
      const bool here = incarnation(owner).applied.contains(key(step));
      EXPECT_EQ(applied.value_or(here), here) << step.to_string() << " differs at " << owner;
      applied = here;
      if (!here) continue;
      EXPECT_EQ(clip.value_or(incarnation(owner).clips[key(step)]),
                incarnation(owner).clips[key(step)]);
      clip = incarnation(owner).clips[key(step)];
    }
    if (!applied.has_value()) return;
    for (const auto& [number, result] : optimizer.results) {
      if (number != step.number || result.number == 0) continue;
      if (result.outcome == StepResult::Outcome::kApplied) {
        EXPECT_TRUE(*applied) << step.to_string();
      } else if (result.outcome == StepResult::Outcome::kNotApplied) {
        EXPECT_FALSE(*applied) << step.to_string() << ": " << result.status;
      }
    }
  }

  std::mt19937_64 random_;
  size_t owners_ = 0, callers_ = 0, deaths_ = 0, restarts_ = 0;
  bool repeats_ = false, with_local_ = false, spiteful_ = false;
  bool errors_ = false;                // living workers are declared dead
  std::map<size_t, uint32_t> newest_;  // incarnation, by index
  std::map<WorkerId, Incarnation> incarnations_;
  std::set<WorkerId> dead_;
  std::vector<std::shared_ptr<Call>> wire_;
  std::map<std::pair<WorkerId, OptimizerId>, std::vector<WorkerId>> others_;
  std::map<size_t, std::shared_ptr<Optimizer>> current_;  // by caller
  std::vector<std::shared_ptr<Optimizer>> all_;
  std::map<size_t, size_t> steps_left_;
  uint64_t last_optimizer_ = 0;
};

}  // namespace weft::dist_optim_internal
