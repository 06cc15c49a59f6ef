// Tells where a job stands in its sequence of steps and rounds of averages. All trainers go through
// this sequence, so the position is the same for all. Only between two rounds one trainer may be
// some steps ahead.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::examples {

struct Position {
  static constexpr int64_t kAverageEvery = 20;  // steps

  enum class Next : int64_t {
    kBegin,        // the trainers meet when all have looked at the folders
    kStep,         //
    kAverage,      // of the trainers' own layers
    kLastAverage,  // before an evaluation
    kEvaluate,     // one trainer evaluates, the others wait
    kDone,
  };
  Next next = Next::kBegin;
  int64_t epoch = 0;  // the number of finished epochs
  int64_t step = 0;   // finished steps of each trainer in this epoch
  int64_t steps = 0;  // finished steps in all epochs
  int64_t round = 0;  // the last round that has completed

  // `length`: steps of one epoch.
  Position after_step(int64_t length) const {
    Position then = *this;
    ++then.steps;
    ++then.step;
    if (then.step % kAverageEvery == 0) {
      then.next = Next::kAverage;
    } else if (then.step == length) {
      then.end_epoch();
    }
    return then;
  }
  // `done`: the trainer that had to evaluate, or to make the folders, has done it. Otherwise
  // another trainer will do it.
  Position after_round(bool done, int64_t length, int64_t epochs) const {
    Position then = *this;
    ++then.round;
    if (next == Next::kAverage) {
      then.next = Next::kStep;
      if (step == length) then.end_epoch();
    } else if (next == Next::kLastAverage) {
      then.next = Next::kEvaluate;
    } else if (done) {
      const bool over = epoch == epochs;  // a resumed job may begin at the end; it evaluates again
      then.next = !over ? Next::kStep : next == Next::kBegin ? Next::kLastAverage : Next::kDone;
    }
    return then;
  }

  // The position as AveragingGroup sends it, and back.
  std::vector<int64_t> numbers() const {
    return {static_cast<int64_t>(next), epoch, step, steps, round};
  }
  static Position of(const std::vector<int64_t>& numbers) {
    Position position;
    position.next = static_cast<Next>(numbers.at(0));
    position.epoch = numbers.at(1);
    position.step = numbers.at(2);
    position.steps = numbers.at(3);
    position.round = numbers.at(4);
    return position;
  }

  friend bool operator==(const Position&, const Position&) = default;

 private:
  void end_epoch() {
    ++epoch;
    step = 0;
    next = Next::kLastAverage;
  }
};

}  // namespace weft::examples
