// Remembers what a trainer held after each of its steps, so that it can go back to the step at
// which a restarted owner continues.
//
//   StepHistory<int64_t, TensorMap> history(200);     // 200 steps back
//   history.begin(optimizer.resume(), epoch, state);  // or begin(0, ...)
//   history.expect(next_epoch);
//   history.keep(optimizer.step(context).number, state);
//   ...                                               // RpcError: an owner died and came back
//   const auto then = history.go_back(optimizer.resume());
//
// A moment is a position of the program and the state that belongs to it. The state is what the
// owners do not hold. The history copies it as it is given: a state that holds tensors must hold
// copies that later steps do not write.
//
// The owners may have applied a step whose answer was lost. The trainer cannot do this step again.
// Then `go_back` returns the expected position and the state before the step: the state lacks this
// one update.
//
// Thread safety: belongs to one thread.
// Blocking: never.
// Errors: DataLoss from go_back. Methods other than `begin` need a `begin` before them.
// Protocol: docs/durable_steps.md, "A whole job".
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace weft {

template <class Position, class State>
class StepHistory {
 public:
  struct Moment {
    Position position;
    State state;
  };

  // `reach`: how many steps the owners may go back. With checkpoints this is
  // CheckpointerOptions::every, and more while the owner's disk fails. With Durability::kEveryStep
  // it is 2.
  explicit StepHistory(uint64_t reach) : reach_(reach) {}

  // The trainer begins after step `number`, and knows nothing of earlier steps. If the owners go
  // back further, this moment is still the one to go back to.
  void begin(uint64_t number, Position position, State state) {
    moments_.clear();
    moments_.emplace(number, Moment{position, std::move(state)});
    expected_ = std::move(position);
    knows_all_ = true;
  }
  // Call it before each step. `position` is the one after the step.
  void expect(Position position) { expected_ = std::move(position); }
  // Call it after each step, with its number. The moment has the expected position.
  void keep(uint64_t number, State state) {
    moments_.insert_or_assign(number, Moment{expected_, std::move(state)});
    while (moments_.begin()->first + reach_ < number) {
      moments_.erase(moments_.begin());
      knows_all_ = false;
    }
  }

  // Returns the moment after step `number` and forgets all later ones. DataLoss: this step is out
  // of reach.
  absl::StatusOr<Moment> go_back(uint64_t number) {
    const auto newest = std::prev(moments_.end());
    const auto oldest = moments_.begin();
    if (number == newest->first + 1) {  // it was applied, but its answer was lost
      moments_.emplace(number, Moment{expected_, newest->second.state});
    } else if (number < oldest->first && knows_all_) {
      auto first = moments_.extract(oldest);
      first.key() = number;
      moments_.insert(std::move(first));
    }
    const auto moment = moments_.find(number);
    if (moment == moments_.end()) {
      return absl::DataLossError(absl::StrCat("the owners came back after step ", number,
                                              ", of which nothing is kept here"));
    }
    moments_.erase(std::next(moment), moments_.end());
    return moment->second;
  }

  // The position of the earliest moment that is kept.
  const Position& earliest() const { return moments_.begin()->second.position; }

 private:
  const uint64_t reach_;
  std::map<uint64_t, Moment> moments_;  // by the number of the step before it
  Position expected_{};                 // after the step under way
  bool knows_all_ = true;               // no moment was dropped since `begin`
};

}  // namespace weft
